"""ZipCache: salient tokens in more bits; keys by channel, values by token over scales of channels."""

import numpy as np

from oracle_parts import attention, head_of
from row_parts import case, heads_of, rounded


def is_probe(place, tokens):
    return place >= tokens - max(1, tokens // 20) or place % 20 == 19


def block(keys, values, saliency, salient, bits, low_bits):
    """Rounds a block of one head. Returns: its bytes."""
    count = len(keys)
    others = int((1 - salient) * count + 1e-9)
    best = np.argsort(-saliency, kind="stable")[:count - others]
    important = np.isin(np.arange(count), best)
    scales = np.sqrt(np.abs(values).max(0))
    size = 0
    for own, own_bits in ((important, bits), (~important, low_bits)):
        if own.any():
            keys[own] = rounded(keys[own], own_bits, 0)
            values[own] = rounded(values[own] / scales, own_bits, 1) * scales
        size += 2 * ((own.sum() * 8 * own_bits + 7) // 8)
    return size + (16 + count) * 4 + 16 + (count + 7) // 8


def held(prompt, start, salient, bits, low_bits, gap):
    keys, values = heads_of(prompt, "keys"), heads_of(prompt, "values")
    tokens, ratio, size = len(prompt.ids), prompt.heads // prompt.kv_heads, 0
    for layer in range(len(keys)):
        for kv_head in range(prompt.kv_heads):
            own_keys, own_values = keys[layer][kv_head], values[layer][kv_head]
            exact = own_keys.copy()
            rows = [attention(prompt, layer, kv_head * ratio + i)[query, :start]
                    for i in range(ratio) for query in range(start) if is_probe(query, start)]
            seen = [np.arange(start) <= query for i in range(ratio) for query in range(start) if is_probe(query, start)]
            means = np.sum(rows, 0) / np.maximum(1, np.sum(seen, 0))
            size += block(own_keys[:start], own_values[:start], means, salient, bits, low_bits)
            done = start
            while tokens - done >= gap:
                sums, probes = np.zeros(gap), np.zeros(gap)
                for place in (place for place in range(gap) if is_probe(place, gap)):
                    for i in range(ratio):
                        query = head_of(prompt, layer, "queries", kv_head * ratio + i)[done + place].astype(np.float64)
                        read = np.concatenate([own_keys[:done], exact[done:done + place + 1]])
                        weights = np.exp(read @ query * prompt.scale)
                        sums[:place + 1] += (weights / weights.sum())[done:]
                        probes[:place + 1] += 1
                part = slice(done, done + gap)
                size += block(own_keys[part], own_values[part], sums / np.maximum(1, probes), salient, bits, low_bits)
                done += gap
            size += (tokens - done) * 2 * 16
    return keys, values, size


def golden(prompt):
    return [case("salient=0.6:bits=4:low_bits=2:gap=10", 70, *held(prompt, 70, 0.6, 4, 2, 10)),
            case("salient=0.25:bits=3:low_bits=1:gap=40", 50, *held(prompt, 50, 0.25, 3, 1, 40))]
