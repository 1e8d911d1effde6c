"""KV-Compress, section 4, from the paper's formulas: sorted metrics in rows of one block."""

import numpy as np

from oracle_parts import attention
from replay_parts import LAYERS, by_layer, each_head

BLOCK = 16


def metrics(prompt, layer, kv_head, tokens, window, kernel, exclude):
    group = prompt.heads // prompt.kv_heads
    squared = sum(attention(prompt, layer, kv_head * group + i)[:tokens, :tokens] ** 2 for i in range(group))
    if window == 0:
        late = np.arange(tokens)[:, None] >= np.arange(tokens)[None] + exclude
        sums, protected = (squared * late).sum(axis=0), exclude
    else:
        sums, protected = squared[tokens - window:, :tokens - window].sum(axis=0), window
        around = np.pad(sums, kernel // 2, constant_values=-np.inf)
        sums = np.lib.stride_tricks.sliding_window_view(around, kernel).max(axis=-1)
    of_all = np.full(tokens, np.inf)
    of_all[:tokens - protected] = sums[:tokens - protected]
    return of_all


def kept(prompt, tokens, budget, window, kernel, exclude):
    heads = each_head(prompt)
    all_metrics = [metrics(prompt, *head, tokens, window, kernel, exclude) for head in heads]
    blocks = -(-tokens // BLOCK)
    rows = []  # (largest metric, head, its tokens) for each block, in the head's order of eviction
    for head, of_head in enumerate(all_metrics):
        order = [-1] * (blocks * BLOCK - tokens) + sorted(
            range(tokens), key=lambda i: (of_head[i], -i))  # -1: an empty slot; of equal ones, the newest leaves first
        for block in range(blocks - 1):
            slots = order[block * BLOCK:(block + 1) * BLOCK]
            rows.append((of_head[slots[-1]], head, [slot for slot in slots if slot >= 0]))
    rows.sort(key=lambda row: row[0])
    excess = blocks * len(heads) - int(budget * tokens * len(heads) / BLOCK)
    lost = [set() for _ in heads]
    for _, head, slots in rows[:excess]:
        lost[head].update(slots)
    return [sorted(set(range(tokens)) - gone) for gone in lost]


def golden(prompt):
    made = {}
    for filled, numbers in [(90, "budget=0.4:window=8:kernel=7"), (96, "budget=0.5:window=4:kernel=3"),
                            (90, "budget=0.4:window=0:exclude=10")]:
        given = {"window": 8, "kernel": 7, "exclude": 10} | dict(
            (name, float(value)) for name, value in (part.split("=") for part in numbers.split(":")))
        heads = kept(prompt, filled, given["budget"], int(given["window"]), int(given["kernel"]), int(given["exclude"]))
        heads = [head + list(range(filled, len(prompt.ids))) for head in heads]
        assert len({len(head) for head in heads}) > 1  # rates differ
        slot = 2 * prompt.head_dim * 2 + 4 + 4
        made[numbers] = {"filled": filled, "kept": by_layer(prompt, heads),
                         "bytes": sum(-(-len(head) // BLOCK) * (BLOCK * slot + 4) for head in heads)}
    assert LAYERS * prompt.kv_heads == 6
    return made
