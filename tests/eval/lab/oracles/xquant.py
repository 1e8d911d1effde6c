"""XQuant: inputs, or their products with singular vectors of the weights, rounded; keys and values made of them."""

import numpy as np

from row_parts import case, rounded_groups, turned


def by_heads(rows, kv_heads):
    return [rows[:, head * 8:head * 8 + 8] for head in range(kv_heads)]


def latent(inputs, weights, bits, group, done, axis):
    left, strengths, right = np.linalg.svd(weights.T, full_matrices=False)
    signs = np.sign(right[np.arange(len(right)), np.abs(right).argmax(1)])
    left, right = left * signs, right * signs[:, None]
    held = inputs @ left
    held[:done] = rounded_groups(held[:done], bits, group, axis)
    return held * strengths @ right


def held(prompt, start, bits, group, shared):
    tokens, keys, values = len(prompt.ids), [], []
    done = start - start % group + (tokens - (start - start % group)) // group * group
    for own, layer in zip(prompt.layers, prompt.model.model.layers):
        inputs = own["input"].astype(np.float64)
        of_keys = layer.self_attn.k_proj.weight.detach().numpy().astype(np.float64)
        of_values = layer.self_attn.v_proj.weight.detach().numpy().astype(np.float64)
        if shared:
            made = latent(inputs, of_keys, bits, group, done, 0), latent(inputs, of_values, bits, group, tokens, 1)
        else:
            inputs[:start] = rounded_groups(inputs[:start], bits, group, 1)
            made = inputs @ of_keys.T, inputs @ of_values.T
        keys.append(by_heads(turned(made[0], np.arange(tokens)), prompt.kv_heads))
        values.append(by_heads(made[1], prompt.kv_heads))
    if shared:
        each = done * 16 * bits // 8 + done // group * 16 * 4 + (tokens - done) * 16 * 2
        each += tokens * (16 * bits // 8 + int(np.ceil(16 / group)) * 4)
    else:
        each = start * (32 * bits // 8 + int(np.ceil(32 / group)) * 4) + (tokens - start) * 32 * 2
    return keys, values, each * len(keys)


def golden(prompt):
    return [case("bits=4:group=16", 70, *held(prompt, 70, 4, 16, True)),
            case("bits=3:group=8:latent=0", 80, *held(prompt, 80, 3, 8, False))]
