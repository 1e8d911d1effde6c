"""RotateKV: heads rotated together before RoPE, channels in the order of their sums, massive tokens kept."""

import numpy as np

from row_parts import case, hadamard_matrix, heads_of, turned


def to_levels(rows, bits, group):
    """Rounds groups of channels to levels that include zero."""
    made = rows.copy()
    for at in range(0, rows.shape[1], group):
        part = rows[:, at:at + group]
        least, most = part.min(1, keepdims=True), part.max(1, keepdims=True)
        step = (most - least) / (2 ** bits - 1)
        zero = np.round(-least / step)
        made[:, at:at + group] = (np.clip(np.round(part / step) + zero, 0, 2 ** bits - 1) - zero) * step
    return made


def held(prompt, start, bits, group, massive, together):
    tokens, kept_tokens, size = len(prompt.ids), 0, 0
    keys, values = heads_of(prompt, "keys"), heads_of(prompt, "values")
    rotation = np.kron(np.eye(prompt.kv_heads // together), hadamard_matrix(8 * together))
    for layer, own in enumerate(prompt.layers):
        sizes = np.abs(own["input"][:start]).ravel()
        kept = np.zeros(tokens, dtype=bool)
        kept[np.argsort(-sizes, kind="stable")[:massive] // own["input"].shape[1]] = True
        kept_tokens += kept.sum()
        rotated = own["keys_before"].astype(np.float64) @ rotation
        order = np.argsort(rotated[:start].sum(0), kind="stable")
        ordered = rotated[:, order]
        for at in range(0, ordered.shape[1], 8):
            ordered[:, at:at + 8] = to_levels(ordered[:, at:at + 8], bits, group)
        rotated[:, order] = ordered
        made = turned(rotated @ rotation, np.arange(tokens))
        for head in range(prompt.kv_heads):
            small = hadamard_matrix(8)
            value = to_levels(values[layer][head] @ small, bits, group) @ small
            values[layer][head] = np.where(kept[:, None], values[layer][head], value)
            keys[layer][head] = np.where(kept[:, None], keys[layer][head], made[:, head * 8:head * 8 + 8])
    of_token = 8 * bits // 8 + int(np.ceil(8 / group)) * 4
    size = prompt.kv_heads * 2 * ((tokens * len(keys) - kept_tokens) * of_token + kept_tokens * 16)
    return keys, values, size + kept_tokens * 4


def golden(prompt):
    return [case("bits=2:group=128:massive=20:heads=4", 70, *held(prompt, 70, 2, 128, 20, 2)),
            case("bits=4:group=4:massive=3:heads=1", 30, *held(prompt, 30, 4, 4, 3, 1))]
