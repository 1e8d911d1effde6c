"""Ada-KV over SnapKV by kvpress, which masks the dropped tokens instead of dropping them."""

import torch
from kvpress import AdaKVPress, SnapKVPress


def kept(prompt, press):
    model, tokens = prompt.model, len(prompt.ids)
    model.set_attn_implementation("sdpa")
    with torch.no_grad(), press(model):
        model.model(torch.tensor([prompt.ids]))
    model.set_attn_implementation("eager")
    result = []
    for layer in model.model.layers:
        _, heads, dropped = (indices.tolist() for indices in layer.self_attn.masked_key_indices)
        layer.self_attn.masked_key_indices = None
        gone = set(zip(heads, dropped))
        result.append([[i for i in range(tokens) if (head, i) not in gone] for head in range(prompt.kv_heads)])
    return result


def golden(prompt):
    snap = {"window_size": 8, "kernel_size": 5}
    return {"budget=0.25:window=8": kept(prompt, AdaKVPress(SnapKVPress(compression_ratio=0.75, **snap))),
            "budget=0.5:window=8:safeguard=0.7": kept(
                prompt, AdaKVPress(SnapKVPress(compression_ratio=0.5, **snap), alpha_safeguard=0.7))}
