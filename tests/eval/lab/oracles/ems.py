"""EMS: the larger share of global and local attention, and merges into the nearest kept key."""

import numpy as np

from oracle_parts import attention, best, by_group, head_of, mean_pool, packed, window_rows

LAYER = 1


def merged(prompt, budget, factor, threshold, window):
    tokens = len(prompt.ids)
    before, count = tokens - window, int(budget * tokens) - window
    local = by_group(prompt, [mean_pool(row) for row in window_rows(prompt, LAYER, window)])
    whole = by_group(prompt, [attention(prompt, LAYER, head).sum(axis=0)[:before] for head in range(prompt.heads)])
    result = {"positions": [], "keys": [], "values": []}
    for head in range(prompt.kv_heads):
        keys, values = (head_of(prompt, LAYER, name, head).astype(np.float64) for name in ("keys", "values"))
        scores = np.maximum(local[head] / local[head].sum(), whole[head] / whole[head].sum())
        centres = best(scores, count)
        more = [i for i in best(scores, count + int(factor * count)) if i not in centres]
        classes = {centre: [centre] for centre in centres}
        unit = keys / np.linalg.norm(keys, axis=1, keepdims=True)
        for token in more:
            likeness = unit[centres] @ unit[token]
            if likeness.max() >= threshold:
                classes[centres[int(np.argmax(likeness))]].append(token)
        positions = centres + list(range(before, tokens))
        for name, rows in (("keys", keys), ("values", values)):
            means = [np.average(rows[classes[c]], axis=0, weights=scores[classes[c]]) for c in centres]
            result[name].append(packed(np.concatenate([means, rows[before:]])))
        result["positions"].append(positions)
    return result


def golden(prompt):
    return {"budget=0.25:window=8": merged(prompt, 0.25, 2, 0.6, 8),
            "budget=0.5:window=16:merged=0.5:threshold=0.3": merged(prompt, 0.5, 0.5, 0.3, 16)}
