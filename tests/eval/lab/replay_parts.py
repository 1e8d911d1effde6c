"""A cache that is read token by token, for oracles of methods that act while generating."""

import numpy as np

from golden_prompt import packed
from oracle_parts import head_of

LAYERS = 3


def softmax(logits):
    weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)


def each_head(prompt):
    """Returns: (layer, kv head) in the order of a cache."""
    return [(layer, head) for layer in range(LAYERS) for head in range(prompt.kv_heads)]


def queries_of(prompt, layer, kv_head):
    """Returns: the queries of a head group, [group, tokens, head_dim]."""
    group = prompt.heads // prompt.kv_heads
    return np.stack([head_of(prompt, layer, "queries", kv_head * group + i) for i in range(group)])


def by_layer(prompt, lists):
    """Returns: lists of all heads, [layers][heads]."""
    heads = len(lists) // LAYERS
    return [lists[layer * heads:(layer + 1) * heads] for layer in range(LAYERS)]


def packed_rows(heads):
    """heads: rows of each head. Returns: those of the first two, packed."""
    return packed(np.concatenate(heads[:2]))


def replay_reads(prompt, filled, choose, full_layers=0):
    """choose(layer, head, token): the positions up to `token` that a query head reads.
    Returns: [tokens][layers][heads][positions]."""
    return [[[list(range(token + 1)) if layer < full_layers else sorted(int(i) for i in choose(layer, head, token))
              for head in range(prompt.heads)] for layer in range(LAYERS)]
            for token in range(filled, len(prompt.ids))]
