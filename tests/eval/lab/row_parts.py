"""Parts that the oracles of rows share: quantisation, RoPE, and the cases of a golden file."""

import base64

import numpy as np

from oracle_parts import head_of

HEADS = ((0, 0), (2, 1))  # whose rows a golden file holds


def case(numbers, prompt_tokens, keys, values, size):
    """Returns: a case of expect_rows_as_golden.

    keys, values: [layers][kv_heads] matrices after the prompt's tokens and the generated ones
    size: bytes that the sequence holds
    """
    return {"numbers": numbers, "prompt": prompt_tokens, "bytes": int(size),
            "rows": [{"layer": layer, "head": head, "keys": packed(keys[layer][head]),
                      "values": packed(values[layer][head])} for layer, head in HEADS]}


def packed(array):
    return base64.b64encode(np.ascontiguousarray(array, dtype="<f4").tobytes()).decode()


def heads_of(prompt, name):
    """Returns: copies of all heads' rows in f64, [layers][kv_heads][tokens, head_dim]."""
    return [[head_of(prompt, layer, name, head).astype(np.float64) for head in range(prompt.kv_heads)]
            for layer in range(len(prompt.layers))]


def rounded(numbers, bits, axis):
    """Returns: numbers rounded to 2^bits levels between the least and the largest along an axis."""
    least, most = numbers.min(axis, keepdims=True), numbers.max(axis, keepdims=True)
    step = (most - least) / (2 ** bits - 1)
    return least + np.round((numbers - least) / np.where(step == 0, 1, step)) * step


def rounded_groups(numbers, bits, group, axis):
    """Returns: likewise in groups along the axis, of which the last may be shorter."""
    cuts = range(group, numbers.shape[axis], group)
    return np.concatenate([rounded(part, bits, axis) for part in np.split(numbers, cuts, axis)], axis)


def turned(rows, angle_of_row):
    """Returns: rows of heads of eight after RoPE by angles (a number for each row), or taken back if negative."""
    half = 4
    made = rows.astype(np.float64).reshape(len(rows), -1, 2 * half).copy()
    angles = np.asarray(angle_of_row, dtype=np.float64)[:, None] * 10000.0 ** (-np.arange(half) / half)
    cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]
    first, second = made[..., :half].copy(), made[..., half:].copy()
    made[..., :half], made[..., half:] = first * cos - second * sin, second * cos + first * sin
    return made.reshape(rows.shape)


def hadamard_matrix(size):
    matrix = np.ones((1, 1))
    while len(matrix) < size:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    return matrix / np.sqrt(size)
