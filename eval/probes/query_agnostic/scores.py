"""Scores of cached tokens that are computed without a question, each [layers, kv_heads, tokens].

A higher score is kept longer. Papers: KVzip (2025), Expected Attention (2025), KeyDiff (2025), LagKV
(2025), H2O (2023), SnapKV (2024), LeanKV (2024).
"""

import numpy as np

from llama import Cache, softmax

REPEAT = "\n\nRepeat the previous context exactly.\n\n"  # KVzip, section 3.2
FUTURE = 512  # next positions over which Expected Attention averages RoPE (its code's default)


class Attention:
    """The results of one prefill: sums of attention for the window scorers, moments of the queries."""

    def __init__(self, model, ids, borders):
        shape = (model.layers, model.kv_heads, len(ids))
        self.h2o = np.zeros(shape, np.float32)
        self.windows = (
            {}
        )  # (queries, border) -> mean attention of the last queries before the border
        self.queries = [None] * model.layers  # before RoPE, [kv_heads, group, tokens, head_dim]

        def see(seen):
            p = seen.probabilities[:, 0]
            self.h2o[seen.layer] = p.sum(axis=(1, 2))
            for border in borders:
                for count in (16, 32):
                    window = p[:, :, max(0, border - count) : border].mean(axis=(1, 2))
                    self.windows.setdefault((count, border), np.zeros(shape, np.float32))[
                        seen.layer
                    ] = window
            self.queries[seen.layer] = seen.queries[:, 0]

        _, keys, values = model.forward([ids], see=see)
        self.cache = Cache(keys[:, 0], values[:, 0])


def pooled(scores, width):
    """The highest score among `width` neighbours (SnapKV)."""
    half = width // 2
    padded = np.pad(scores, [(0, 0), (0, 0), (half, half)], constant_values=-np.inf)
    return np.lib.stride_tricks.sliding_window_view(padded, width, axis=-1).max(axis=-1)


def replay(model, ids, cache, begin, end):
    """KVzip: the most attention that each token of [begin, end) gets while the model writes these
    tokens again behind `cache`, over queries and query heads."""
    repeat = model.tokenizer.encode(REPEAT).ids
    scores = np.zeros((model.layers, model.kv_heads, end - begin), np.float32)

    def see(seen):
        scores[seen.layer] = seen.probabilities[:, 0, :, :, begin:end].max(axis=(1, 2))

    model.forward([repeat + list(ids[begin:end])], cache, see=see)
    return scores


def expected_attention(model, attention, begin, end, known):
    """The mean attention of future queries, which are taken as normal with the moments of the first
    `known` queries; times the norm of the value."""
    positions = known + np.arange(FUTURE)
    basis = np.eye(model.head_dim, dtype=np.float32)
    turn = np.mean([model.rotate(basis, np.full(model.head_dim, p)) for p in positions], axis=0)
    keys, values = attention.cache.keys[:, :, begin:end], attention.cache.values[:, :, begin:end]
    scores = np.zeros(keys.shape[:3], np.float32)
    for layer in range(model.layers):
        for head in range(model.kv_heads):
            k = keys[layer, head]
            for q in attention.queries[layer][head]:
                q = q[min(4, known - 1) : known]  # without the queries of sink tokens
                mean, spread = q.mean(axis=0) @ turn, turn.T @ np.cov(q.T) @ turn
                logits = k @ mean / np.sqrt(model.head_dim)
                logits += np.einsum("td,de,te->t", k, spread, k, optimize=True) / (
                    2 * model.head_dim
                )
                scores[layer, head] += softmax(logits.astype(np.float32))
    return (scores / model.group + 0.02) * np.linalg.norm(values, axis=-1)


def keydiff(attention, begin, end, known):
    """How little a key resembles the mean of the first `known` keys."""
    unit = lambda x: x / np.linalg.norm(x, axis=-1, keepdims=True)
    keys = attention.cache.keys
    mean = unit(keys)[:, :, :known].mean(axis=2, keepdims=True)
    return -np.sum(unit(keys[:, :, begin:end]) * unit(mean), axis=-1)


def lagkv(attention, lag=128, sinks=4):
    """The spread of a token's channels, normalised by the range of the next `lag` tokens; ranks are
    within each run of `lag` tokens. The last run has no next one and scores highest."""
    cache = attention.cache
    scores = np.full(cache.keys.shape[:3], 2, np.float32)
    for begin in range(sinks, cache.tokens() - lag, lag):
        middle, end = begin + lag, min(begin + 2 * lag, cache.tokens())
        total = 0
        for x in (cache.keys, cache.values):
            own, following = x[:, :, begin:middle], x[:, :, middle:end]
            low, high = following.min(axis=2, keepdims=True), following.max(axis=2, keepdims=True)
            total = total + softmax(((own - low) / (high - low + 1e-6)).std(axis=-1))
        order = total.argsort(axis=-1).argsort(axis=-1)
        scores[:, :, begin:middle] = order / lag
    return scores


# Each computes the scores of [begin, end) from the tokens before `end` alone.
SCORERS = {
    "kvzip": lambda m, ids, a, begin, end: replay(m, ids, a.cache.first(end), begin, end),
    "expected": lambda m, ids, a, begin, end: expected_attention(m, a, begin, end, end),
    "keydiff": lambda m, ids, a, begin, end: keydiff(a, begin, end, end),
    "leankv": lambda m, ids, a, begin, end: pooled(a.windows[16, end], 31)[:, :, begin:end],
}
# These have no form by chunk here.
WHOLE = {
    "lagkv": lambda m, ids, a: lagkv(a),
    "snapkv": lambda m, ids, a: pooled(a.windows[32, len(ids)], 7),
    "h2o": lambda m, ids, a: a.h2o,
}


def all_scores(model, ids, attention, chunk, wanted):
    """Yields (scorer, "whole" or "chunk", scores) for the wanted scorers."""
    count = len(ids)
    for name, score in SCORERS.items():
        if name in wanted:
            yield name, "whole", score(model, ids, attention, 0, count)
            parts = [
                score(model, ids, attention, b, min(b + chunk, count))
                for b in range(0, count, chunk)
            ]
            yield name, "chunk", np.concatenate(parts, axis=-1)
    for name, score in WHOLE.items():
        if name in wanted:
            yield name, "whole", score(model, ids, attention)
