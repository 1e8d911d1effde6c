"""ZigZagKV: budgets by the number of tokens that get 90 % of the last queries' attention."""

import numpy as np

from oracle_parts import attention


def golden(prompt):
    return {"budget=0.25:window=8:bound=0.5": kept(prompt, 0.25, 0.5, 8),
            "budget=0.5:window=16:bound=0.2": kept(prompt, 0.5, 0.2, 16)}


def kept(prompt, budget, bound, window, kernel=5):
    tokens, group = len(prompt.ids), prompt.heads // prompt.kv_heads
    before = tokens - window
    scores, sizes = {}, {}
    for layer in range(len(prompt.layers)):
        for kv_head in range(prompt.kv_heads):
            rows = [attention(prompt, layer, kv_head * group + i)[before:, :before].sum(axis=0) for i in range(group)]
            scores[layer, kv_head] = sum(np.convolve(row, np.ones(kernel) / kernel, "same") for row in rows)
            ordered = np.sort(sum(rows))[::-1]
            sizes[layer, kv_head] = int(np.argmax(np.cumsum(ordered) >= 0.9 * ordered.sum())) + 1
    mean, whole = budget * tokens - window, sum(sizes.values())
    result = []
    for layer in range(len(prompt.layers)):
        result.append([])
        for head in range(prompt.kv_heads):
            count = int(mean * (bound + (1 - bound) * len(sizes) * sizes[layer, head] / whole))
            best = np.argsort(-scores[layer, head], kind="stable")[:count]
            result[-1].append(sorted(best.tolist()) + list(range(before, tokens)))
    return result
