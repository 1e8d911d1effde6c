"""OSCAR: rotations by covariances that attention sees, clipping by a quantile, and 2 bits a token."""

import numpy as np

from oracle_parts import head_of
from row_parts import case, hadamard_matrix, heads_of, rounded_groups


def rotation_of(covariance):
    strengths, vectors = np.linalg.eigh(covariance)
    vectors = vectors * np.sign(vectors[np.abs(vectors).argmax(0), np.arange(len(vectors))])
    size = len(vectors)
    width = size.bit_length() - 1
    order = np.zeros(size, dtype=int)
    for rank, column in enumerate(np.argsort(-strengths)):
        order[int(f"{rank:0{width}b}"[::-1], 2)] = column
    return (vectors @ hadamard_matrix(size))[:, order]


def rotations(prompt, layer, start):
    of_keys, of_values = np.zeros((8, 8)), np.zeros((8, 8))
    group = prompt.heads // prompt.kv_heads
    for kv_head in range(prompt.kv_heads):
        queries = np.concatenate([head_of(prompt, layer, "queries", head)[:start].astype(np.float64)
                                  for head in range(kv_head * group, (kv_head + 1) * group)])
        keys = head_of(prompt, layer, "keys", kv_head)[:start].astype(np.float64)
        values = head_of(prompt, layer, "values", kv_head)[:start].astype(np.float64)
        own = queries.T @ queries / len(queries)
        weights = np.einsum("ti,ij,tj->t", keys, own, keys)
        weights /= weights.sum()
        of_keys += own / prompt.kv_heads
        of_values += (values * weights[:, None]).T @ values / prompt.kv_heads
    return rotation_of(of_keys), rotation_of(of_values)


def turned_and_rounded(rows, rotation, clip, bits, group):
    rows = rows @ rotation
    most = np.quantile(np.abs(rows), clip, axis=1, keepdims=True)
    return rounded_groups(np.clip(rows, -most, most), bits, group, 1) @ rotation.T


def held(prompt, start, bits, group, sinks, recent, key_clip=0.96, value_clip=0.92):
    tokens = len(prompt.ids)
    keys, values = heads_of(prompt, "keys"), heads_of(prompt, "values")
    inner = slice(sinks, tokens - recent)
    for layer in range(len(keys)):
        of_keys, of_values = rotations(prompt, layer, start)
        for head in range(prompt.kv_heads):
            keys[layer][head][inner] = turned_and_rounded(keys[layer][head][inner], of_keys, key_clip, bits, group)
            values[layer][head][inner] = turned_and_rounded(values[layer][head][inner], of_values, value_clip, bits,
                                                            group)
    quantised = tokens - recent - sinks
    each = quantised * (8 * bits // 8 + int(np.ceil(8 / group)) * 4) + (sinks + recent) * 8 * 2
    return keys, values, each * 2 * len(keys) * prompt.kv_heads


def golden(prompt):
    return [case("bits=2:group=8:sinks=4:recent=16", 70, *held(prompt, 70, 2, 8, 4, 16)),
            case("bits=3:group=4:sinks=0:recent=0", 90, *held(prompt, 90, 3, 4, 0, 0))]
