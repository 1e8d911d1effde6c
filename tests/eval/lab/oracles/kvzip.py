"""KVzip by kvpress, with a tokenizer that makes each byte a token."""

from types import SimpleNamespace

import kvpress.presses.kvzip_press as kvzip_press
import torch
from kvpress import KVzipPress
from transformers import DynamicCache

from shipped_model import (KV_HEADS, LAYERS, Matrices, by_transformers, byte_tokens, later_tokens_see, masked_attention,
                           packed_logits, tokens_of)

PROMPT, TOKENS = 150, 153


def kept(budget, chunk, sinks):
    kvzip_press.AutoTokenizer = SimpleNamespace(from_pretrained=lambda _name: SimpleNamespace(
        chat_template=None, encode=lambda text, **_: torch.tensor([byte_tokens(text)], dtype=torch.long)))
    model = by_transformers("sdpa")
    press = KVzipPress(compression_ratio=1 - budget, chunk_size=chunk, n_sink=sinks)
    with torch.no_grad(), press(model):
        model.model(input_ids=torch.tensor([tokens_of(PROMPT)]), past_key_values=DynamicCache())
    heads = [[set(range(PROMPT)) for _ in range(KV_HEADS)] for _ in range(LAYERS)]
    for layer in model.model.layers:
        _, head_of, token_of = layer.self_attn.masked_key_indices
        for head, token in zip(head_of.tolist(), token_of.tolist()):
            heads[layer.self_attn.layer_idx][head].discard(token)
    return [[sorted(head) for head in layer] for layer in heads]


def golden(_prompt):
    made = {}
    for budget, chunk, sinks in [(0.3, 2048, 4), (0.4, 64, 4)]:
        heads = kept(budget, chunk, sinks)
        logits = Matrices().forward(tokens_of(TOKENS), masked_attention(later_tokens_see(heads, PROMPT, TOKENS)))
        made[f"budget={budget}:chunk={chunk}:sinks={sinks}"] = {
            "prompt": PROMPT, "kept": heads, "logits": packed_logits(logits[PROMPT - 1:])}
    return made
