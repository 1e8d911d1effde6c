"""Writes a prompt of a tiny random Llama for the tests of the laboratory, and what other programs make of it.

    python golden_prompt.py [NAME ...]     the goldens of these oracles (oracles/NAME.py), or of all, and the prompt

An oracle is a module with a function `golden(prompt)` that returns what its JSON file holds. Oracles that are not
ours (kvpress, transformers) are called where they exist. Elsewhere the paper's formulas stand in plain numpy.
"""

import base64
import importlib
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM
from transformers.models.llama import modeling_llama

HERE = Path(__file__).resolve().parent
OUT = HERE.parents[1] / "golden" / "lab"
TOKENS = 96


def tiny_model():
    torch.manual_seed(1)
    config = LlamaConfig(hidden_size=32, intermediate_size=48, num_hidden_layers=3, num_attention_heads=4,
                         num_key_value_heads=2, head_dim=8, vocab_size=64, max_position_embeddings=512,
                         attn_implementation="eager")
    model = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "norm" not in name:
                weight.normal_(0, 0.25)  # so that attention is far from uniform
    return model


def capture(model, ids):
    """Returns: by layer, input, queries, keys before and after RoPE, and values, [tokens, width] each."""
    layers, rotate = [], modeling_llama.apply_rotary_pos_emb

    def flat(heads):
        return heads[0].transpose(0, 1).reshape(heads.shape[2], -1).detach().numpy().astype(np.float32)

    def noting(q, k, cos, sin, *rest, **more):
        q_after, k_after = rotate(q, k, cos, sin, *rest, **more)
        layers.append({"queries": flat(q_after), "keys_before": flat(k), "keys": flat(k_after)})
        return q_after, k_after

    inputs = []
    hooks = [layer.self_attn.register_forward_pre_hook(
        lambda _m, _a, kw: inputs.append(kw["hidden_states"][0].detach().numpy()), with_kwargs=True)
        for layer in model.model.layers]
    modeling_llama.apply_rotary_pos_emb = noting
    cache = DynamicCache()
    with torch.no_grad():
        logits = model(torch.tensor([ids]), past_key_values=cache).logits[0, -1]
    modeling_llama.apply_rotary_pos_emb = rotate
    for hook in hooks:
        hook.remove()
    for i, layer in enumerate(layers):
        layer["input"] = inputs[i]
        layer["values"] = flat(cache.layers[i].values)
    return layers, logits.numpy()


def packed(array):
    return base64.b64encode(np.ascontiguousarray(array, dtype="<f4").tobytes()).decode()


def make_prompt():
    model = tiny_model()
    ids = np.random.default_rng(2).integers(0, 64, TOKENS).tolist()
    layers, logits = capture(model, ids)
    return SimpleNamespace(model=model, ids=ids, layers=layers, logits=logits, heads=4, kv_heads=2, head_dim=8,
                           scale=8 ** -0.5)


def main(names):
    prompt = make_prompt()
    OUT.mkdir(parents=True, exist_ok=True)
    shape = {"layers": 3, "heads": 4, "kv_heads": 2, "head_dim": 8, "hidden": 32}
    whole = {"shape": shape, "tokens": prompt.ids, "scale": prompt.scale,
             "layers": [{name: packed(rows) for name, rows in layer.items()} for layer in prompt.layers]}
    (OUT / "prompt.json").write_text(json.dumps(whole, indent=1) + "\n")
    sys.path.insert(0, str(HERE))
    for name in names or sorted(path.stem for path in (HERE / "oracles").glob("*.py")):
        golden = importlib.import_module(f"oracles.{name}").golden(prompt)
        (OUT / f"{name}.json").write_text(json.dumps(golden) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
