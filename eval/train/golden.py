"""Golden values of an exported model that any other implementation must reproduce.

    python golden.py MODEL OUT.json

Runs transformers in f32 with eager attention. Per prompt: token ids, the logits at four positions
(the 16 largest, and 64 at a fixed stride), and 64 greedy ids. The smallest lead of a first over a
second choice is stored with the greedy ids. Embeddings are the last token's hidden state after the
final norm, and the mean over all tokens: the length of each, and 64 of its values at a fixed stride.
"""

import argparse
import json
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

from tokenizer import BOS, Tokenizer

GREEDY, TOP, STRIDED, POSITIONS = 64, 16, 64, 4

KEYS = "apple river candle window garden silver horse letter bridge winter castle needle".split()
PAIRS = "".join(f" The key of {key} is {(i * 7919 + 31337) % 90000 + 10000}." for i, key in enumerate(KEYS)).strip()
STORY = (
    "Once upon a time there was a small bird who lived in a tall tree by the sea. Every morning she sang to the "
    "boats, and every evening the boats rang their bells for her. One day a storm came, and the boats could not "
    "find the way home. The bird sang as loud as she could, all through the night, until every boat was safe. "
)
PROMPTS = {
    "story": "Once upon a time",
    "novel": "It was a dark evening in November, and the old man sat alone before the fire.",
    "whitespace": "  two  spaces,\n\n\ttab, caf\u00e9, \u4f60\u597d, 12345\n",
    "copy": "Input: red green blue\nOutput: red green blue\n\n"
    "Input: one two three\nOutput: one two three\n\nInput: dog cat cow\nOutput:",
    "pairs": PAIRS + " The key of bridge is",
    "long": STORY * 5 + "The pass key is 48213. Remember it. " + STORY + "The pass key is",
    "chat-story": "<|user|>\nTell me a story about a dog.<|end|>\n<|assistant|>\n",
    "chat-recall": f"<|user|>\n{PAIRS}\nWhat is the key of winter?<|end|>\n<|assistant|>\n",
    "chat-turns": "<|system|>\nYou are a helpful assistant.<|end|>\n"
    "<|user|>\nCount from 3 to 7.<|end|>\n<|assistant|>\n3, 4, 5, 6, 7.<|end|>\n"
    "<|user|>\nCount from 11 to 15.<|end|>\n<|assistant|>\n",
}


def rounded(values: torch.Tensor) -> list[float]:
    return [float(f"{value:.9g}") for value in values.tolist()]


def logits_at(logits: torch.Tensor, position: int) -> dict:
    top = logits.topk(TOP)
    strided = logits[:: len(logits) // STRIDED][:STRIDED]
    return dict(position=position, top_ids=top.indices.tolist(), top=rounded(top.values), strided=rounded(strided))


def embedding(vector: torch.Tensor) -> dict:
    return dict(norm=rounded(vector.norm()[None])[0], strided=rounded(vector[:: len(vector) // STRIDED][:STRIDED]))


def greedy(model, ids: list[int]) -> tuple[list[int], float]:
    path, lead, cache = torch.tensor([ids]), float("inf"), None
    written = []
    for _ in range(GREEDY):
        out = model(path, past_key_values=cache, use_cache=True)
        first, second = out.logits[0, -1].topk(2).values.tolist()
        lead, cache = min(lead, first - second), out.past_key_values
        written.append(int(out.logits[0, -1].argmax()))
        path = torch.tensor([written[-1:]])
    return written, lead


def case(model, tokenizer: Tokenizer, name: str, prompt: str) -> dict:
    ids = [BOS] + tokenizer.encode(prompt)
    logits = model(torch.tensor([ids])).logits[0]
    positions = sorted({len(ids) * i // POSITIONS - 1 for i in range(1, POSITIONS + 1)})
    hidden = model.model(torch.tensor([ids])).last_hidden_state[0]
    written, lead = greedy(model, ids)
    print(f"{name} ({len(ids)} tokens): {tokenizer.decode(written)!r}")
    return dict(
        name=name,
        prompt=prompt,
        ids=ids,
        logits=[logits_at(logits[p], p) for p in positions if p >= 0],
        embeddings=dict(last=embedding(hidden[-1]), mean=embedding(hidden.mean(0))),
        greedy_ids=written,
        greedy_smallest_lead=float(f"{lead:.3g}"),
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("out", type=Path)
    args = parser.parse_args()
    tokenizer = Tokenizer(args.model / "tokenizer.model")
    model = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32, attn_implementation="eager").eval()
    with torch.no_grad():
        cases = [case(model, tokenizer, name, prompt) for name, prompt in PROMPTS.items()]
    args.out.parent.mkdir(parents=True, exist_ok=True)
    golden = dict(model=args.model.name, stride=model.config.vocab_size // STRIDED, cases=cases)
    args.out.write_text(json.dumps(golden, separators=(",", ":"), ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
