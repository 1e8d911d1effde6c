"""MiKV: what H2O evicts stays in few bits, with channels of keys balanced against the queries'."""

import numpy as np

from oracle_parts import group_weights, head_of
from row_parts import case, heads_of, rounded_groups


def head(prompt, start, layer, kv_head, keys, values, kept, bits, group):
    """Rounds the evicted rows of one head's keys and values, where they lie."""
    ratio = prompt.heads // prompt.kv_heads
    queries = np.concatenate([head_of(prompt, layer, "queries", kv_head * ratio + i)[:start] for i in range(ratio)])
    balance = np.sqrt(np.abs(queries).max(0) / np.abs(keys[:start]).max(0))
    scores, important = np.zeros(len(keys)), []
    exact = prompt.layers[layer]["keys"][:, kv_head * 8:kv_head * 8 + 8].astype(np.float64)

    def demote():
        while len(important) > kept:
            older = important[:len(important) - kept // 2]
            worst = min(older, key=lambda token: (scores[token], -token))
            important.remove(worst)
            keys[worst] = rounded_groups(keys[worst:worst + 1] * balance, bits, group, 1)[0] / balance
            values[worst] = rounded_groups(values[worst:worst + 1], bits, group, 1)[0]

    for query in range(len(keys)):
        important.append(query)
        if query < start:
            scores[:query + 1] += group_weights(prompt, layer, kv_head, query, list(range(query + 1))).sum(0)
            if query == start - 1:
                demote()
            continue
        for i in range(ratio):  # reads what is held
            own = head_of(prompt, layer, "queries", kv_head * ratio + i)[query].astype(np.float64)
            logits = np.where(np.arange(query + 1)[:, None] == query, exact[:query + 1], keys[:query + 1]) @ own
            weights = np.exp(logits * prompt.scale - (logits * prompt.scale).max())
            scores[:query + 1] += weights / weights.sum()
        demote()


def held(prompt, start, share, bits, group):
    tokens, kept = len(prompt.ids), int(share * start)
    keys, values = heads_of(prompt, "keys"), heads_of(prompt, "values")
    for layer in range(len(keys)):
        for kv_head in range(prompt.kv_heads):
            head(prompt, start, layer, kv_head, keys[layer][kv_head], values[layer][kv_head], kept, bits, group)
    low = tokens - kept
    each = 2 * (kept * 16 + low * 8 * bits // 8 + low * int(np.ceil(8 / group)) * 4)
    return keys, values, (each + tokens * 4 + (tokens + 7) // 8 + 16) * len(keys) * prompt.kv_heads


def golden(prompt):
    return [case("important=0.3:bits=2:group=4", 70, *held(prompt, 70, 0.3, 2, 4)),
            case("important=0.2:bits=4:group=8", 40, *held(prompt, 40, 0.2, 4, 8))]
