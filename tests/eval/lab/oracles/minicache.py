"""MiniCache: pairs of layers share directions between their own, but for those that differ most."""

import numpy as np

from row_parts import case, heads_of


def angles(first, second):
    lengths = np.linalg.norm(first, axis=1) * np.linalg.norm(second, axis=1)
    return np.arccos(np.clip((first * second).sum(1) / lengths, -1, 1))


def merged(first, second, place, bound):
    between = angles(first, second)[:, None]
    lengths = [np.linalg.norm(rows, axis=1, keepdims=True) for rows in (first, second)]
    direction = (np.sin((1 - place) * between) * first / lengths[0]
                 + np.sin(place * between) * second / lengths[1]) / np.sin(between)
    apart = between > bound
    return [np.where(apart, rows, direction * length) for rows, length in zip((first, second), lengths)], apart.sum()


def held(prompt, begin, start, place, retained):
    tokens, count = len(prompt.ids), len(prompt.layers)
    parts, apart = [heads_of(prompt, "keys"), heads_of(prompt, "values")], 0
    pairs = list(range(start, count - 1, 2))
    for part in parts:
        for layer in pairs:
            own = [angles(part[layer][head][:begin], part[layer + 1][head][:begin]) for head in range(prompt.kv_heads)]
            bound = np.max(own) - (np.max(own) - np.min(own)) * retained
            for head in range(prompt.kv_heads):
                made, more = merged(part[layer][head], part[layer + 1][head], place, bound)
                part[layer][head], part[layer + 1][head] = made
                apart += more
    rows = tokens * prompt.kv_heads * 2
    size = (count - 2 * len(pairs)) * rows * 16 + len(pairs) * rows * (8 + 2) * 2 + apart * (2 * 16 + 4)
    return parts[0], parts[1], size


def golden(prompt):
    return [case("place=0.6:retained=0.05", 70, *held(prompt, 70, 1, 0.6, 0.05)),
            case("start=0:place=0.5:retained=0.4", 50, *held(prompt, 50, 0, 0.5, 0.4))]
