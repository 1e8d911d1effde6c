"""KVMerger: sets of consecutive similar keys, merged by a Gaussian kernel around the pivot."""

import numpy as np

from oracle_parts import attention, best, by_group, head_of, packed

LAYER = 1


def merged(prompt, budget, recent, important):
    tokens = len(prompt.ids)
    sums = by_group(prompt, [attention(prompt, LAYER, head).sum(axis=0) for head in range(prompt.heads)])
    newest = tokens - int(recent * tokens)
    result = {"positions": [], "keys": [], "values": []}
    for head in range(prompt.kv_heads):
        keys, values = (head_of(prompt, LAYER, name, head).astype(np.float64) for name in ("keys", "values"))
        apart = set(range(newest, tokens)) | set(best(sums[head][:newest], int(important * tokens)))
        unit = keys / np.linalg.norm(keys, axis=1, keepdims=True)
        likeness = {i: unit[i] @ unit[i - 1] for i in range(1, tokens) if not {i, i - 1} & apart}
        joins = set(sorted(likeness, key=lambda i: -likeness[i])[:tokens - int(budget * tokens)])
        sets = []
        for token in range(tokens):
            if token in joins:
                sets[-1].append(token)
            else:
                sets.append([token])
        pivots = [own[int(np.argmax(sums[head][own]))] for own in sets]
        rows = {"keys": [], "values": []}
        for own, pivot in zip(sets, pivots):
            distances = np.linalg.norm(keys[own] - keys[pivot], axis=1)
            sigma = distances.sum() / (np.sqrt(2) * len(own))
            weights = np.exp(-distances ** 2 / (2 * sigma ** 2)) if sigma > 0 else np.ones(len(own))
            rows["keys"].append(np.average(keys[own], axis=0, weights=weights))
            rows["values"].append(np.average(values[own], axis=0, weights=weights))
        result["positions"].append(pivots)
        for name, of in rows.items():
            result[name].append(packed(np.array(of)))
    return result


def golden(prompt):
    return {"budget=0.5:recent=0.1:important=0.1": merged(prompt, 0.5, 0.1, 0.1), "": merged(prompt, 0.5, 0.17, 0.12)}
