"""PyramidInfer: layers drop tokens by the newest queries' attention; generated tokens are thinned."""

import math

import numpy as np

from oracle_parts import head_of

BEGIN = 64


def share(decay, layer, layers):
    return (1 - decay) * (math.cos(math.pi * layer / layers) + 1) / 2 + decay


def attention_over(prompt, layer, query, positions):
    """Returns: the mean attention of all heads of a query to some tokens, as in the whole prompt's values."""
    weights = []
    for head in range(prompt.heads):
        keys = head_of(prompt, layer, "keys", head // (prompt.heads // prompt.kv_heads))[positions].astype(np.float64)
        own = np.exp(keys @ head_of(prompt, layer, "queries", head)[query].astype(np.float64) * prompt.scale)
        weights.append(own / own.sum())
    return np.mean(weights, 0)


def best(scores, count):
    return sorted(np.argsort(-scores, kind="stable")[:count].tolist())


def kept(prompt, recent_share, decay, least, thinned):
    layers, recent = len(prompt.layers), int(recent_share * BEGIN) + 1
    left, result = list(range(BEGIN)), {"prompt": [], "later": []}
    for layer in range(layers):
        positions = list(left)
        result["prompt"].append([positions] * prompt.kv_heads)
        newest = positions[-recent:]
        rows = {query: dict(zip(positions, attention_over(prompt, layer, query, [p for p in positions if p <= query])))
                for query in newest}
        older = positions[:-recent]
        weights = np.linspace(1, 1.2, recent)
        count = int(len(older) * share(decay, layer, layers))
        bound = min(least, BEGIN - recent)
        if len(older) > bound and share(decay, layer, layers) < 1 and count > bound:
            scores = np.array([np.mean([w * rows[q].get(p, 0) for w, q in zip(weights, newest)]) for p in older])
            scores[:4] = np.inf
            left = [older[i] for i in best(scores, count)] + newest
        positions, done = list(positions), len(older)
        for query in range(BEGIN, len(prompt.ids)):
            positions.append(query)
            rows[query] = dict(zip(positions, attention_over(prompt, layer, query, positions)))
            end = len(positions) - recent
            if end - done >= thinned:
                candidates = positions[end - thinned:end]
                scores = np.array([np.mean([w * rows[q].get(p, 0) for w, q in zip(weights, sorted(rows)[-recent:])])
                                   for p in candidates])
                count = max(1, int(thinned * 0.9 * share(0.1, layer, layers)))
                positions = positions[:end - thinned] + [candidates[i] for i in best(scores, count)] + positions[end:]
                done = len(positions) - recent
        result["later"].append([positions] * prompt.kv_heads)
    return result


def golden(prompt):
    return {"": kept(prompt, 0.2, 0.9, 64, 16),
            "recent=0.1:decay=0.3:least=8:thinned=6": kept(prompt, 0.1, 0.3, 8, 6)}
