"""GEAR: quantisation in groups, outliers of each vector apart, and a low rank of each head's error."""

import numpy as np

from row_parts import case, heads_of, rounded_groups


def without_outliers(rows, share, axis):
    """Returns: rows with the vectors' means in the outliers' places, and the places."""
    each = int(rows.shape[axis] * share / 2)
    ranks = np.argsort(np.argsort(rows, axis=axis, kind="stable"), axis=axis)
    apart = (ranks < each) | (ranks >= rows.shape[axis] - each)
    return np.where(apart, rows.mean(axis, keepdims=True), rows), apart


def low_rank(matrix, rank):
    left, strengths, right = np.linalg.svd(matrix, full_matrices=False)
    return (left[:, :rank] * strengths[:rank]) @ right[:rank]


def block(heads, axis, bits, group, share, rank):
    """Compresses one part of a layer, [kv_heads] matrices. Returns: the matrices and their bytes."""
    width = heads[0].shape[1]
    exact = np.concatenate(heads, axis=1)
    plain, apart = without_outliers(exact, share, axis)
    made = np.where(apart, exact, rounded_groups(plain, bits, group, axis))
    error = exact - made
    parts = [made[:, at:at + width] + low_rank(error[:, at:at + width], rank)
             for at in range(0, exact.shape[1], width)]
    groups = exact.size // exact.shape[axis] * int(np.ceil(exact.shape[axis] / group))
    size = (exact.size * bits + 7) // 8 + groups * 4 + apart.sum() * 4
    return parts, size + len(heads) * (len(exact) + width) * rank * 2


def held(prompt, start, bits, group, share, rank, later_rank):
    tokens = len(prompt.ids)
    keys, values = heads_of(prompt, "keys"), heads_of(prompt, "values")
    blocks = [(0, start - start % group, rank)]
    while tokens - blocks[-1][1] >= group:
        blocks.append((blocks[-1][1], blocks[-1][1] + group, later_rank))
    size = (tokens - blocks[-1][1]) * 2 * 8 * 2 * len(keys) * prompt.kv_heads
    for begin, end, own_rank in blocks:
        for layer in range(len(keys)):
            for part, axis in ((keys, 0), (values, 1)):
                made, more = block([head[begin:end] for head in part[layer]], axis, bits, group, share, own_rank)
                size += more
                for head, rows in zip(part[layer], made):
                    head[begin:end] = rows
    return keys, values, size


def golden(prompt):
    return [case("bits=2:group=8:outliers=0.13:rank=2:later_rank=1", 70, *held(prompt, 70, 2, 8, 0.13, 2, 1))]
