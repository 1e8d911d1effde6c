"""MUSTAFAR, sections 2 and 3, from the paper."""

import numpy as np

from oracle_parts import head_of
from replay_parts import each_head, packed_rows

FILLED = 64


def pruned(rows, sparsity, window):
    rows = rows.copy()
    kept = max(1, int((1 - sparsity) * rows.shape[1]))
    for row in rows[:max(0, len(rows) - window)]:
        row[np.argsort(-np.abs(row), kind="stable")[kept:]] = 0
    return rows


def tile_bytes(rows, window):
    rows = rows[:max(0, len(rows) - window)]
    bytes_ = 0
    for first in range(0, len(rows), 64):
        nonzero = (rows[first:first + 64] != 0).sum(axis=0)
        bytes_ += int(((nonzero + 7) // 8 * 8 * 2 + 8 + 4).sum())
    return bytes_


def golden(prompt):
    made = {}
    for keys, values, window in [(0.5, 0.5, 32), (0.7, 0.5, 16)]:
        k = [pruned(head_of(prompt, layer, "keys", head), keys, window) for layer, head in each_head(prompt)]
        v = [pruned(head_of(prompt, layer, "values", head), values, window) for layer, head in each_head(prompt)]
        dense = len(k) * window * 2 * prompt.head_dim * 2
        made[f"keys={keys}:values={values}:window={window}"] = {
            "filled": FILLED, "keys": packed_rows(k), "values": packed_rows(v),
            "bytes": dense + sum(tile_bytes(rows, window) for rows in k + v)}
    return made
