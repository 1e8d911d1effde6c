"""WindowKV: windows by the authors' formulas, shared by the layers of a group."""

import math

import numpy as np

from oracle_parts import window_rows


def kept(prompt, budget, suffix, window, shared, beta, gathers):
    tokens, layers = len(prompt.ids), len(prompt.layers)
    before, groups = tokens - suffix, -(-layers // shared)
    mean = int(budget * tokens) - suffix
    last = min(mean, mean * shared // beta)
    first = 2 * mean - last
    result = []
    for layer in range(layers):
        if layer % shared == 0:
            group = layer // shared
            count = mean if groups == 1 else last if group == groups - 1 else \
                first - group * ((first - last) // (groups - 1))
            sums, scores = np.stack(window_rows(prompt, layer, suffix)), []
            for begin in range(0, before, window):
                part = -np.sort(-sums[:, begin:min(begin + window, before)], axis=1)
                scores.append((part if gathers else part[:, :window // 2]).mean())
            bottom = math.ceil(max(0, before - count) / window)
            chosen = sorted(np.argsort(-np.array(scores), kind="stable")[:len(scores) - bottom])
            positions = [i for w in chosen for i in range(w * window, min(before, (w + 1) * window))]
        result.append([positions + list(range(before, tokens))] * prompt.kv_heads)
    return result


def golden(prompt):
    return {"budget=0.5:suffix=16:shared=1:beta=3": kept(prompt, 0.5, 16, 8, 1, 3, False),
            "budget=0.4:suffix=6:window=4:shared=2:beta=4:gathers=1": kept(prompt, 0.4, 6, 4, 2, 4, True)}
