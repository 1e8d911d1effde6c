"""Writes delta_rule.json: random inputs of a gated delta network, and what transformers computes of them in f32.

    pip install torch transformers==5.23.0
    python tests/kernels/delta_rule_golden.py
"""

import json
from pathlib import Path

import torch
from transformers.models.qwen3_next.modeling_qwen3_next import torch_recurrent_gated_delta_rule

TOKENS, KEY_HEADS, VALUE_HEADS, KEY_DIM, VALUE_DIM = 9, 2, 4, 8, 19


def numbers(tensor) -> list:
    return [float(f"{x:.9g}") for x in tensor.flatten().tolist()]


def main():
    random = torch.Generator().manual_seed(1)
    normal = lambda *shape: torch.randn(shape, generator=random)  # noqa: E731
    queries, keys = normal(TOKENS, KEY_HEADS, KEY_DIM), normal(TOKENS, KEY_HEADS, KEY_DIM)
    values, rates = normal(TOKENS, VALUE_HEADS, VALUE_DIM), normal(TOKENS, VALUE_HEADS).sigmoid()
    decays = -torch.nn.functional.softplus(normal(TOKENS, VALUE_HEADS))
    state = normal(VALUE_HEADS, KEY_DIM, VALUE_DIM)
    shared = VALUE_HEADS // KEY_HEADS  # value heads of a key head, as Qwen3-Next repeats them
    found = dict(key_heads=KEY_HEADS, value_heads=VALUE_HEADS, key_dim=KEY_DIM, value_dim=VALUE_DIM)
    for name, tensor in dict(queries=queries, keys=keys, values=values, rates=rates, decays=decays, state=state).items():
        found[name] = numbers(tensor)
    for normalise in (False, True):
        repeated = [x.repeat_interleave(shared, dim=1)[None] for x in (queries, keys)]
        out, last = torch_recurrent_gated_delta_rule(
            *repeated, values[None], g=decays[None], beta=rates[None], initial_state=state[None],
            output_final_state=True, use_qk_l2norm_in_kernel=normalise)
        found["normalised" if normalise else "plain"] = dict(out=numbers(out[0]), state=numbers(last[0]))
    path = Path(__file__).resolve().parents[1] / "golden/delta_rule.json"
    path.write_text(json.dumps(found, separators=(",", ":")) + "\n")


main()
