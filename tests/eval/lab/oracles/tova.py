"""TOVA by kvpress; and while tokens are generated, by the paper's section 3."""

import numpy as np
from kvpress import TOVAPress

from oracle_parts import group_weights, kept_by_press


def kept_while_generating(prompt, tokens, begin=64):
    result = {"prompt": [], "later": []}
    for layer in range(len(prompt.layers)):
        positions = list(range(begin))
        for query in range(begin - 1, len(prompt.ids)):
            if query >= begin:
                positions = positions + [query]
            weights = np.mean([group_weights(prompt, layer, head, query, positions)
                               for head in range(prompt.kv_heads)], axis=(0, 1))
            best = np.argsort(-weights[:-1], kind="stable")[:tokens - 1]
            positions = [positions[i] for i in sorted(best)] + positions[-1:]
            if query == begin - 1:
                result["prompt"].append([positions] * prompt.kv_heads)
        result["later"].append([positions] * prompt.kv_heads)
    return result


def golden(prompt):
    return {"press": {"budget=0.25": kept_by_press(prompt, TOVAPress(compression_ratio=0.75))},
            "paper": {"budget=0.25": kept_while_generating(prompt, 16)}}
