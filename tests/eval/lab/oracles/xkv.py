"""xKV: a group of layers' keys before RoPE, and values, in the space of their leading singular vectors."""

import numpy as np

from row_parts import case, heads_of, turned


def low_rank(matrix, rank):
    left, strengths, right = np.linalg.svd(matrix, full_matrices=False)
    return (left[:, :rank] * strengths[:rank]) @ right[:rank]


def held(prompt, start, group, key_rank, value_rank):
    tokens, count, width = len(prompt.ids), len(prompt.layers), 8 * prompt.kv_heads
    keys, values = heads_of(prompt, "keys"), heads_of(prompt, "values")
    numbers = (tokens - start) * 2 * width * count
    for first in range(0, count, group):
        layers = range(first, min(first + group, count))
        for part, name, share in ((keys, "keys_before", key_rank), (values, "values", value_rank)):
            together = np.concatenate([prompt.layers[layer][name][:start] for layer in layers], axis=1)
            rank = round(share * together.shape[1])
            made = low_rank(together.astype(np.float64), rank)
            numbers += rank * sum(made.shape)
            for at, layer in enumerate(layers):
                own = made[:, at * width:(at + 1) * width]
                own = turned(own, np.arange(start)) if name == "keys_before" else own
                for head in range(prompt.kv_heads):
                    part[layer][head][:start] = own[:, head * 8:head * 8 + 8]
    return keys, values, numbers * 2


def golden(prompt):
    return [case("layers=4:key_rank=0.125:value_rank=0.1875", 70, *held(prompt, 70, 4, 0.125, 0.1875)),
            case("layers=2:key_rank=0.5:value_rank=0.75", 90, *held(prompt, 90, 2, 0.5, 0.75))]
