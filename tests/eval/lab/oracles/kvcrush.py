"""KVCrush over SnapKV: representatives by the distance of head patterns from their majority."""

import numpy as np

from oracle_parts import best, by_group, mean_pool, window_rows


def kept(prompt, budget, share, window):
    tokens = len(prompt.ids)
    before, count = tokens - window, int(budget * tokens) - window
    parts, result = int(share * count), []
    for layer in range(len(prompt.layers)):
        rows = [mean_pool(row) for row in window_rows(prompt, layer, window)]
        bits = np.zeros((prompt.heads, before), bool)
        for head, row in enumerate(rows):
            bits[head, best(row, count)] = True
        anchor = bits.mean(axis=1, keepdims=True) > 0.5
        distances = (bits != anchor).sum(axis=0)
        result.append([])
        for row in by_group(prompt, rows):
            important = best(row, count - parts)
            others = [i for i in range(before) if i not in important]
            others.sort(key=lambda i: distances[i])
            chosen = [others[part * len(others) // parts] for part in range(parts)]
            result[-1].append(sorted(important + chosen) + list(range(before, tokens)))
    return result


def golden(prompt):
    return {"budget=0.5:window=8": kept(prompt, 0.5, 0.25, 8),
            "budget=0.75:window=8:share=0.5": kept(prompt, 0.75, 0.5, 8)}
