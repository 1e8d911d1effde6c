"""The tokens that a budget keeps, and the values of a quantised cache."""

import numpy as np

from llama import Cache

SINKS = 4
RECENT = 64  # newest tokens, which no policy drops


def protect(scores):
    scores = scores.copy()
    scores[:, :, :SINKS] = np.inf
    scores[:, :, -RECENT:] = np.inf
    return scores


def best(scores, count):
    """Marks the `count` highest of the last axis."""
    kept = np.zeros(scores.shape, bool)
    places = np.argpartition(-scores, count - 1, axis=-1)[..., :count]
    np.put_along_axis(kept, places, True, axis=-1)
    return kept


def keep(scores, share, heads_compete, chunk=None):
    """Returns: bool [layers, kv_heads, tokens] with `share` of all tokens, protected ones included.

    heads_compete: one budget for all heads of all layers (KVzip), else one of equal size for each
    head. chunk: the budget of the tokens that are not protected is divided by chunks, so that no
    token's fate depends on a later chunk.
    """
    scores = protect(scores)
    layers, heads, tokens = scores.shape
    free = max(0, round(share * tokens) - SINKS - RECENT)
    kept = np.isinf(scores)
    borders = list(range(0, tokens, chunk)) + [tokens] if chunk else [0, tokens]
    for begin, end in zip(borders, borders[1:]):
        part = scores[:, :, begin:end]
        protected = np.isinf(part[0, 0]).sum()
        count = round(free * (end - begin - protected) / (tokens - SINKS - RECENT)) + protected
        if count == 0:
            continue
        if heads_compete:
            flat = best(part.reshape(1, -1), count * layers * heads).reshape(part.shape)
        else:
            flat = best(part, count)
        kept[:, :, begin:end] |= flat
    return kept


def quantise(x, bits):
    """Asymmetric, with a scale and a zero for each token and head (LeanKV, section 4)."""
    low, high = x.min(axis=-1, keepdims=True), x.max(axis=-1, keepdims=True)
    step = np.maximum(high - low, 1e-8) / (2**bits - 1)
    return np.round((x - low) / step) * step + low


def quantised(cache, key_bits, value_bits):
    """All closed groups of 64 tokens; the open group stays as it is."""
    closed = cache.tokens() // 64 * 64
    keys, values = cache.keys.copy(), cache.values.copy()
    keys[:, :, :closed] = quantise(keys[:, :, :closed], key_bits)
    values[:, :, :closed] = quantise(values[:, :, :closed], value_bits)
    return Cache(keys, values)


def bytes_share(key_bits, value_bits, head_dim=64):
    """Bytes of a token and head with two f16 pairs of scale and zero, as a share of f16's."""
    return ((key_bits + value_bits) * head_dim / 8 + 8) / (4 * head_dim)
