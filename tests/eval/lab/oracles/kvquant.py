"""KVQuant: keys before RoPE by channel, values by token, to levels by weighted k-means, with outliers apart."""

import math

import numpy as np

from oracle_parts import attention, head_of
from row_parts import case, heads_of, turned


def k_means(numbers, weights, count):
    order = np.argsort(numbers, kind="stable")
    numbers, weights = numbers[order], weights[order]
    sums = np.cumsum(weights)
    levels = numbers[np.searchsorted(sums, sums[-1] * (np.arange(count) + 0.5) / count)]
    for _ in range(100):
        cluster = np.searchsorted((levels[1:] + levels[:-1]) / 2, numbers)
        mass = np.bincount(cluster, weights, count)
        moved = np.where(mass > 0, np.bincount(cluster, weights * numbers, count) / np.where(mass > 0, mass, 1), levels)
        if (moved == levels).all():
            break
        levels = moved
    return levels


def nearest(levels, numbers):
    return levels[np.searchsorted((levels[1:] + levels[:-1]) / 2, numbers)]


def levels_of(numbers, weights, bits):
    levels = k_means(numbers, weights, 2 ** bits)
    if bits == 2:  # Q-Norm
        made = nearest(levels, numbers)
        levels = (levels - made.mean()) * numbers.std() / made.std() + numbers.mean()
    return levels


def ranges(rows, axis, share):
    """Returns: middles and halves of ranges that leave the outliers out."""
    count = rows.shape[axis]
    each = min((count - 1) // 2, math.ceil(count * share / 2))
    ordered = np.sort(rows, axis)
    least, most = ordered.take([each], axis), ordered.take([count - 1 - each], axis)
    return (least + most) / 2, (most - least) / 2 * (1 + 1e-6)


def held(prompt, start, bits, share, sinks):
    tokens, ratio, apart, size = len(prompt.ids), prompt.heads // prompt.kv_heads, 0, 0
    keys, values = heads_of(prompt, "keys"), heads_of(prompt, "values")
    for layer, own in enumerate(prompt.layers):
        parts = {}
        squares = sum((head_of(prompt, layer, "queries", head)[:start].astype(np.float64) ** 2).sum(0)[None]
                      * (np.arange(prompt.kv_heads) == head // ratio)[:, None] for head in range(prompt.heads))
        of_keys = (squares + np.roll(squares, 4, axis=1)).ravel()
        of_tokens = [sum((attention(prompt, layer, kv_head * ratio + i)[max(0, start - 32):start, :start] ** 2).sum(0)
                         for i in range(ratio)) for kv_head in range(prompt.kv_heads)]
        of_values = np.repeat(np.array(of_tokens).T[sinks:], 8, axis=1)
        for name, axis in (("keys_before", 0), ("values", 1)):
            rows = own[name].astype(np.float64)
            middle, half = ranges(rows[sinks:start] if axis == 0 else rows[sinks:], axis, share)
            inside = np.abs(rows[sinks:] - middle) <= half
            scaled = (rows[sinks:] - middle) / half
            weights = np.broadcast_to(of_keys, scaled[:start - sinks].shape) if axis == 0 else of_values
            chosen = inside[:start - sinks]
            levels = levels_of(scaled[:start - sinks][chosen], weights[chosen] + 1e-12, bits)
            rows[sinks:] = np.where(inside, nearest(levels, scaled) * half + middle, rows[sinks:])
            apart += (~inside).sum()
            parts[name] = rows
        parts["keys_before"] = turned(parts["keys_before"], np.arange(tokens))
        for head in range(prompt.kv_heads):
            columns = slice(head * 8, head * 8 + 8)
            keys[layer][head][sinks:] = parts["keys_before"][sinks:, columns]
            values[layer][head][sinks:] = parts["values"][sinks:, columns]
        size += (tokens - sinks) * (2 * 16 * bits // 8 + 4 + 8) + sinks * 2 * 16 * 2
    return keys, values, size + apart * 4


def golden(prompt):
    return [case("bits=3:outliers=0.01:sinks=1", 70, *held(prompt, 70, 3, 0.01, 1)),
            case("bits=2:outliers=0.1:sinks=0", 90, *held(prompt, 90, 2, 0.1, 0))]
