"""The shipped checkpoint, computed by transformers, or by plain matrices with any attention."""

import json
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from golden_prompt import packed

CHECKPOINT = Path(__file__).resolve().parents[3] / "models" / "checkpoints" / "tessera-tiny"
LAYERS, HEADS, KV_HEADS, DIM, VOCAB = 6, 4, 2, 128, 4096
GROUP, SCALE = HEADS // KV_HEADS, DIM ** -0.5


def tokens_of(count):
    return [(i * i * 31 + i * 7 + 11) % VOCAB for i in range(count)]


def byte_tokens(text):
    return [byte * 17 % VOCAB for byte in text.encode()]


def by_transformers(attention="eager"):
    return AutoModelForCausalLM.from_pretrained(CHECKPOINT, dtype=torch.float32, attn_implementation=attention).eval()


def packed_logits(rows):
    return packed(np.stack([row[:64] for row in rows]))


def softmax(logits):
    weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)


def rotate(heads, positions):
    """heads: [heads, tokens, dim]; positions: [tokens]"""
    angles = np.asarray(positions)[:, None] * 1e4 ** (-np.arange(DIM // 2) * 2 / DIM)[None]
    first, second = heads[..., :DIM // 2], heads[..., DIM // 2:]
    cos, sin = np.cos(angles), np.sin(angles)
    return np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)


class Matrices:
    def __init__(self):
        self.weights = {name: weight.double().numpy() for name, weight in load_file(CHECKPOINT / "model.safetensors").items()}
        self.epsilon = json.loads((CHECKPOINT / "config.json").read_text())["rms_norm_eps"]

    def norm(self, x, name):
        return x / np.sqrt((x ** 2).mean(axis=-1, keepdims=True) + self.epsilon) * self.weights[name]

    def product(self, layer, part, x):
        """Returns: [heads, tokens, dim]"""
        made = x @ self.weights[f"model.layers.{layer}.self_attn.{part}_proj.weight"].T
        return made.reshape(len(x), -1, DIM).transpose(1, 0, 2)

    def forward(self, ids, attend):
        """attend(layer, input, q, k, v), before RoPE, gives attention's result, [heads, tokens, dim].
        Returns: the logits of all tokens."""
        x = self.weights["model.embed_tokens.weight"][ids]
        for layer in range(LAYERS):
            prefix = f"model.layers.{layer}."
            h = self.norm(x, prefix + "input_layernorm.weight")
            out = attend(layer, h, *(self.product(layer, part, h) for part in "qkv"))
            out = out.transpose(1, 0, 2).reshape(len(ids), -1)
            x = x + out @ self.weights[prefix + "self_attn.o_proj.weight"].T
            h = self.norm(x, prefix + "post_attention_layernorm.weight")
            gate = h @ self.weights[prefix + "mlp.gate_proj.weight"].T
            up = h @ self.weights[prefix + "mlp.up_proj.weight"].T
            x = x + (gate / (1 + np.exp(-gate)) * up) @ self.weights[prefix + "mlp.down_proj.weight"].T
        return self.norm(x, "model.norm.weight") @ self.weights["model.embed_tokens.weight"].T


def masked_attention(mask_of):
    """Returns: attend() for one pass over a whole sequence. mask_of(layer): [heads or 1, tokens, tokens], what is seen."""
    def attend(layer, _input, q, k, v):
        positions = np.arange(q.shape[1])
        q, k = rotate(q, positions), rotate(k, positions)
        k, v = k.repeat(GROUP, axis=0), v.repeat(GROUP, axis=0)
        logits = np.where(mask_of(layer), np.einsum("hqd,hkd->hqk", q, k) * SCALE, -np.inf)
        return softmax(logits) @ v
    return attend


def causal(tokens):
    return np.tril(np.ones((1, tokens, tokens), bool))


def later_tokens_see(kept, prompt, tokens):
    """kept: [layers][kv_heads][positions] of a prompt. Returns: mask_of(layer): a prompt sees all, later tokens those."""
    def mask_of(layer):
        mask = np.repeat(causal(tokens), HEADS, axis=0)
        for head in range(HEADS):
            dropped = sorted(set(range(prompt)) - set(kept[layer][head // GROUP]))
            mask[head, prompt:, dropped] = False
        return mask
    return mask_of
