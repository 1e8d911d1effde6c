"""KIVI: keys by channel in groups of tokens, values by token in groups of channels, and a residual."""

import numpy as np

from row_parts import case, heads_of, rounded_groups


def held(prompt, start, bits, group, residual):
    tokens = len(prompt.ids)
    keys_done = start - start % residual
    keys_done += (tokens - keys_done) // residual * residual
    values_done = max(0, tokens - residual)
    keys, values = heads_of(prompt, "keys"), heads_of(prompt, "values")
    size = 0
    for of_keys, of_values in zip(sum(keys, []), sum(values, [])):
        of_keys[:keys_done] = rounded_groups(of_keys[:keys_done], bits, group, 0)
        of_values[:values_done] = rounded_groups(of_values[:values_done], bits, group, 1)
        size += keys_done * 8 * bits // 8 + keys_done // group * 8 * 4 + (tokens - keys_done) * 8 * 2
        size += values_done * 8 * bits // 8 + values_done * int(np.ceil(8 / group)) * 4 + (tokens - values_done) * 8 * 2
    return keys, values, size


def golden(prompt):
    return [case("bits=2:group=4:residual=16", 70, *held(prompt, 70, 2, 4, 16)),
            case("bits=4:group=8:residual=8", 40, *held(prompt, 40, 4, 8, 8))]
