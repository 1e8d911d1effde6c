"""Compresses section after section, as the engine does, and asks afterwards.

    python sections.py --model SmolLM2-135M-Instruct.gguf --novels DIR --out results.jsonl

Each section is computed behind the compressed earlier ones, quantised to k8v4, scored by its replay
and cut to its budget, before the next one begins. A line of the results is one document under one
choice: the section's tokens, the text before the replay, and the tokens of a page. With a page of 1,
single tokens compete; else whole pages of a head, by the score of their best, middle or mean token.
"""

import argparse
import json
import pathlib

import numpy as np

from documents import make_document
from llama import Cache, Llama
from probe import Asker
from scores import REPEAT
from selection import SINKS, quantise

# Tokens of a section, kept share, text before the replay, tokens of a page, score of a page.
CHOICES = [
    (256, 1, "", 1, "-"),
    (256, 0.5, REPEAT, 1, "-"),
    (256, 0.5, "", 1, "-"),
    (256, 0.5, "\n\n", 1, "-"),
    (256, 0.5, "", 64, "best"),
    (256, 0.5, "", 64, "middle"),
    (256, 0.5, "", 64, "mean"),
    (512, 0.5, "", 1, "-"),
    (512, 0.5, "", 64, "best"),
    (512, 0.5, "", 64, "middle"),
]


def kept_tokens(scores, share):
    flat = scores.reshape(-1)
    return scores >= np.sort(flat)[::-1][int(share * flat.size) - 1]


def kept_pages(scores, share, page, value):
    """scores: [layers, kv_heads, tokens]. A head keeps its best tokens, as many as its pages hold."""
    layers, heads, tokens = scores.shape
    rows = scores.reshape(layers * heads, tokens)
    order = np.argsort(-rows, axis=-1, kind="stable")
    ranked = np.take_along_axis(rows, order, -1).reshape(len(rows), tokens // page, page)
    finite = np.minimum(ranked, 1)
    values = {"best": finite[:, :, 0], "middle": finite[:, :, page // 2], "mean": finite.mean(-1)}
    values = np.minimum.accumulate(values[value], axis=1)
    if np.isinf(scores).any():
        values[:, 0] = np.inf  # the page of the sinks
    kept = np.zeros(rows.shape, bool)
    best = np.argsort(-values.reshape(-1), kind="stable")[: round(share * values.size)]
    for row, place in zip(*np.unravel_index(best, values.shape)):
        kept[row, order[row, place * page : (place + 1) * page]] = True
    return kept.reshape(scores.shape)


def compress(model, ids, section, share, text, page, value):
    """Returns: the cache of all tokens, and those that are kept [layers, kv_heads, tokens]."""
    shape = (model.layers, model.kv_heads)
    cache = Cache(np.zeros((*shape, 0, model.head_dim), np.float32), None)
    cache.values = cache.keys
    kept = np.zeros((*shape, 0), bool)
    before = model.tokenizer.encode(text).ids
    for begin in range(0, len(ids), section):
        part = list(ids[begin : begin + section])
        _, keys, values = model.forward([part], cache if begin else None, kept if begin else None)
        keys, values = keys[:, 0], values[:, 0]
        whole = len(part) == section
        if whole:
            keys, values = quantise(keys, 8), quantise(values, 4)
        cache = Cache(
            np.concatenate([cache.keys, keys], 2), np.concatenate([cache.values, values], 2)
        )
        now = np.concatenate([kept, np.ones((*shape, len(part)), bool)], 2)
        if whole and share < 1:
            scores = np.zeros((*shape, section), np.float32)

            def see(seen):
                scores[seen.layer] = seen.probabilities[:, 0, :, :, begin : begin + section].max(
                    axis=(1, 2)
                )

            model.forward([before + part], cache, now, see)
            if begin == 0:
                scores[:, :, :SINKS] = np.inf
            stays = (
                kept_tokens(scores, share) if page == 1 else kept_pages(scores, share, page, value)
            )
            now = np.concatenate([kept, stays], 2)
        kept = now
    return cache, kept


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True, help="GGUF file of a Llama")
    parser.add_argument("--novels", required=True, type=pathlib.Path, help="folder of plain texts")
    parser.add_argument("--out", required=True, type=pathlib.Path)
    parser.add_argument("--tokens", type=int, default=1060)
    parser.add_argument("--contexts", type=int, default=2)
    args = parser.parse_args()
    model = Llama(args.model)
    novels = sorted(args.novels.rglob("*.txt"))
    for seed in range(args.contexts):
        novel = novels[(7 * seed) % len(novels)]
        ids, questions = make_document(novel.read_text(), model.tokenizer, args.tokens, seed)
        asker = Asker(model, questions)
        _, keys, values = model.forward([ids])
        right = [answer["right"] for answer in asker.ask(Cache(keys[:, 0], values[:, 0]))]
        for choice in CHOICES:
            answers = asker.ask(*compress(model, ids, *choice))
            line = dict(zip(("section", "share", "text", "page", "value"), choice))
            line["context"] = f"{novel.stem}/{seed}"
            line["kl"] = float(np.mean([answer["kl"] for answer in answers]))
            line["right"] = sum(right)
            line["kept"] = sum(a["right"] for a, was in zip(answers, right) if was)
            with args.out.open("a") as out:
                out.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
