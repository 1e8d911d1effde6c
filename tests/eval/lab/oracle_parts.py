"""Parts that several oracles share."""

import base64

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


def softmax(logits):
    weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)


def group_weights(prompt, layer, kv_head, query, positions):
    """Returns: the attention of one query's head group over some tokens, [group, tokens], in f64."""
    group = prompt.heads // prompt.kv_heads
    queries = np.stack([head_of(prompt, layer, "queries", kv_head * group + i)[query] for i in range(group)])
    keys = head_of(prompt, layer, "keys", kv_head)[positions]
    return softmax(queries.astype(np.float64) @ keys.astype(np.float64).T * prompt.scale)


def kept_while_generating(prompt, make, begin=64):
    """Runs an evicting policy token by token: a prompt of `begin` tokens, then generated ones.

    make(layer, kv_head) gives an object with see(query, positions, weights), called for each query, and
    kept(generated, positions), the places that stay, called after the prompt and after each generated token.
    Returns: the positions that stay after the prompt and after all tokens.
    """
    result = {"prompt": [], "later": []}
    for layer in range(len(prompt.layers)):
        for part in result.values():
            part.append([])
        for kv_head in range(prompt.kv_heads):
            policy, positions = make(layer, kv_head), []
            for query in range(len(prompt.ids)):
                positions.append(query)
                policy.see(query, positions, group_weights(prompt, layer, kv_head, query, positions))
                if query + 1 >= begin:
                    positions = [positions[i] for i in policy.kept(query + 1 - begin, positions)]
                if query + 1 == begin:
                    result["prompt"][-1].append(list(positions))
            result["later"][-1].append(positions)
    return result


def best_and_newest(scores, count, newest):
    """Returns: the places of the best scores and of the newest entries, ascending."""
    newest = min(newest, count)
    older = len(scores) - newest
    best = np.argsort(-np.asarray(scores[:older]), kind="stable")[:count - newest]
    return sorted(best.tolist()) + list(range(older, len(scores)))


def best(scores, count):
    """Returns: the places of the largest scores, ascending."""
    return sorted(np.argsort(-np.asarray(scores), kind="stable")[:max(count, 0)].tolist())


def mean_pool(row, kernel=5):
    return np.convolve(row, np.ones(kernel) / kernel, "same")


def window_rows(prompt, layer, window):
    """Returns: for each query head, its attention summed over the last `window` queries, before them."""
    before = len(prompt.ids) - window
    return [attention(prompt, layer, head)[before:, :before].sum(axis=0) for head in range(prompt.heads)]


def by_group(prompt, rows):
    """Returns: the sums of query heads' rows for each KV head."""
    group = prompt.heads // prompt.kv_heads
    return [sum(rows[head * group:(head + 1) * group]) for head in range(prompt.kv_heads)]


def head_profile(prompt, period, around=4):
    """Returns: echo, induction and the attention around the induction's tokens, [layers, heads]."""
    tokens = len(prompt.ids)
    result = np.zeros((3, len(prompt.layers), prompt.heads))
    for layer in range(len(prompt.layers)):
        for head in range(prompt.heads):
            weights = attention(prompt, layer, head)
            for query in range(period, tokens):
                for same in range(query - period, -1, -period):
                    near = weights[query, max(0, same + 1 - around):same + 2 + around].sum()
                    result[:, layer, head] += [weights[query, same], weights[query, same + 1], near]
    return result / (tokens - period)


def packed(array):
    return base64.b64encode(np.ascontiguousarray(array, dtype="<f4").tobytes()).decode()
