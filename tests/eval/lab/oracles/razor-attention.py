"""RazorAttention: heads by attention to repeated tokens, and a compensation token."""

import numpy as np

from oracle_parts import head_of, head_profile, packed


def retrieving(prompt, echo, induction, period=24):
    profile, heads = head_profile(prompt, period), set()
    for scores, share in ((profile[0], echo), (profile[1], induction)):
        count = max(1, int(np.floor(share * scores.size + 0.5)))
        for place in np.argsort(-scores.ravel(), kind="stable")[:count]:
            heads.add((place // prompt.heads, place % prompt.heads * prompt.kv_heads // prompt.heads))
    return heads


def kept(prompt, heads, tokens, sinks, window):
    positions, means = [], []
    for layer in range(len(prompt.layers)):
        positions.append([])
        means.append([])
        for head in range(prompt.kv_heads):
            dropped = range(sinks, tokens - window)
            whole = (layer, head) in heads
            positions[-1].append(list(range(tokens)) if whole else
                                 list(range(sinks)) + list(range(dropped[-1], tokens)))
            parts = [head_of(prompt, layer, name, head)[dropped] for name in ("keys", "values")]
            means[-1].append(packed(np.concatenate([part.mean(axis=0) for part in parts] + [[np.log(len(dropped))]]))
                             if not whole else "")
    return {"positions": positions, "means": means}


def golden(prompt):
    heads = retrieving(prompt, 0.01, 0.14)
    window = int(0.2 * 64)
    return {"period=24": {"prompt": kept(prompt, heads, 64, 4, window), "later": kept(prompt, heads, 96, 4, window)}}
