"""DuoAttention with the heads of kvpress's on-the-fly scores: the reach of the mean query over the mean key."""

import numpy as np

from oracle_parts import best, head_of, softmax


def turned(rows, positions, direction=1):
    half = rows.shape[-1] // 2
    angles = direction * np.outer(positions, 1e4 ** (-np.arange(half) / half))
    cos, sin, a, b = np.cos(angles), np.sin(angles), rows[:, :half], rows[:, half:]
    return np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=1)


def retrieving(prompt, tokens, share, reach):
    scores, reach, group = [], min(reach, tokens), prompt.heads // prompt.kv_heads
    for layer in range(len(prompt.layers)):
        for head in range(prompt.kv_heads):
            key = head_of(prompt, layer, "keys_before", head)[:tokens].astype(np.float64).mean(axis=0)
            keys, areas = turned(np.tile(key, (reach, 1)), np.arange(reach)), []
            for i in range(group):
                queries = head_of(prompt, layer, "queries", head * group + i)[:tokens].astype(np.float64)
                query = turned(queries, np.arange(tokens), -1).mean(axis=0)
                weights = softmax(turned(query[None], [reach - 1]) @ keys.T * prompt.scale)[0]
                areas.append(np.cumsum(weights).mean())
            scores.append(np.mean(areas))
    return best(scores, len(scores) - round(len(scores) * (1 - share)))


def kept(prompt, tokens, heads, sinks, recent):
    ends = list(range(sinks)) + list(range(tokens - recent, tokens))
    return [[list(range(tokens)) if layer * prompt.kv_heads + head in heads else ends
             for head in range(prompt.kv_heads)] for layer in range(len(prompt.layers))]


def golden(prompt):
    half, third = retrieving(prompt, 64, 0.5, 500), retrieving(prompt, 64, 0.34, 40)
    return {"sinks=4:recent=16": {"prompt": kept(prompt, 64, half, 4, 16), "later": kept(prompt, 96, half, 4, 16)},
            "sinks=2:recent=8:retrieving=0.34:reach=40": {"prompt": kept(prompt, 64, third, 2, 8),
                                                          "later": kept(prompt, 96, third, 2, 8)}}
