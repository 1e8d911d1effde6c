"""KVarN: rotated tiles whose tokens and channels get equal variances before they are rounded."""

import numpy as np

from row_parts import case, hadamard_matrix, heads_of, rounded


def balanced_scales(tile, iterations):
    """Returns: scales of tokens and of channels of a tile [tokens, channels]."""
    log_token, log_channel = np.zeros((len(tile), 1)), np.zeros((1, tile.shape[1]))

    def now():
        return tile / np.exp(log_token) / np.exp(log_channel)

    def imbalance():
        spread = [now().std(axis, ddof=1) for axis in (0, 1)]
        return sum(own.max() / max(own.min(), 1e-8) for own in spread)

    best, scales = imbalance(), (np.exp(log_token), np.exp(log_channel))
    for _ in range(iterations):
        log_token = np.clip(log_token + np.log(np.clip(now().std(1, ddof=1, keepdims=True), 1e-3, 1e3)), -0.3, 10)
        log_channel = np.clip(log_channel + np.log(np.clip(now().std(0, ddof=1, keepdims=True), 1e-3, 1e3)), -0.3, 10)
        if imbalance() <= best:
            best, scales = imbalance(), (np.exp(log_token), np.exp(log_channel))
    return scales


def tile_of(tile, bits, axis, iterations):
    rotation = hadamard_matrix(tile.shape[1])
    of_tokens, of_channels = balanced_scales(tile @ rotation, iterations)
    return rounded(tile @ rotation / of_tokens / of_channels, bits, axis) * of_tokens * of_channels @ rotation


def held(prompt, key_bits, value_bits, tile, iterations):
    tokens = len(prompt.ids)
    tiles = tokens // tile
    keys, values = heads_of(prompt, "keys"), heads_of(prompt, "values")
    size = 0
    for of_keys, of_values in zip(sum(keys, []), sum(values, [])):
        for begin in range(0, tiles * tile, tile):
            of_keys[begin:begin + tile] = tile_of(of_keys[begin:begin + tile], key_bits, 0, iterations)
            of_values[begin:begin + tile] = tile_of(of_values[begin:begin + tile], value_bits, 1, iterations)
        # scales of tokens and channels of both, and one least number a channel (keys) and a token (values)
        size += tiles * (tile * 8 * (key_bits + value_bits) // 8 + (2 * (tile + 8) + 8 + tile) * 2)
        size += (tokens - tiles * tile) * 2 * 8 * 2
    return keys, values, size


def golden(prompt):
    return [case("key_bits=2:value_bits=2:tile=16:iterations=16", 70, *held(prompt, 2, 2, 16, 16)),
            case("key_bits=4:value_bits=2:tile=40:iterations=3", 20, *held(prompt, 4, 2, 40, 3))]
