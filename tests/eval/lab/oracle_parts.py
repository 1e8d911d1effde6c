"""Parts that several oracles share."""

import numpy as np
import torch
from transformers import DynamicCache


def kept_by_press(prompt, press):
    """Returns: the positions that a press of kvpress keeps, [layers][kv_heads], ascending."""
    cache = DynamicCache()
    with torch.no_grad(), press(prompt.model):
        prompt.model.model(torch.tensor([prompt.ids]), past_key_values=cache)
    kept = []
    for layer, own in zip(prompt.layers, cache.layers):
        keys = layer["keys"].reshape(len(prompt.ids), prompt.kv_heads, prompt.head_dim)  # each position's is another
        kept.append([positions_of(own.keys[0, head].numpy(), keys[:, head]) for head in range(prompt.kv_heads)])
    return kept


def positions_of(rows, among):
    """Returns: the indices in `among` of rows that are equal to one of `rows`."""
    same = (np.abs(among[:, None] - rows[None]) < 1e-6).all(axis=-1)
    assert (same.sum(axis=0) == 1).all()
    return sorted(np.argmax(same, axis=0).tolist())


def head_of(prompt, layer, name, head):
    """Returns: one head's rows, [tokens, head_dim]."""
    rows = prompt.layers[layer][name]
    return rows[:, head * prompt.head_dim:(head + 1) * prompt.head_dim]


def attention(prompt, layer, head):
    """Returns: the causal attention of a query head, [tokens, tokens], in f64."""
    queries = head_of(prompt, layer, "queries", head).astype(np.float64)
    keys = head_of(prompt, layer, "keys", head // (prompt.heads // prompt.kv_heads)).astype(np.float64)
    logits = queries @ keys.T * prompt.scale
    logits[np.triu_indices(len(logits), 1)] = -np.inf
    weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)
