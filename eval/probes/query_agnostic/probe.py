"""Drops cached tokens by scores that no question has influenced, and asks afterwards.

    python probe.py --model SmolLM2-135M-Instruct.gguf --novels DIR --out results.jsonl

Needs numpy, gguf and tokenizers. Prints nothing but progress; report.py reads the results. A line
of the results is one question under one method: whether the whole answer is the likeliest, and the
KL divergence from the full cache in nats, as a mean over the positions of question and answer.
"""

import argparse
import json
import pathlib
import time

import numpy as np

from documents import make_document
from llama import Llama
from scores import SCORERS, WHOLE, Attention, all_scores
from selection import keep, quantised


def log_softmax(x):
    x = x - x.max(axis=-1, keepdims=True)
    return x - np.log(np.exp(x).sum(axis=-1, keepdims=True))


class Asker:
    """Asks all questions of one document at once, each behind the same cache."""

    def __init__(self, model, questions):
        self.model = model
        self.questions = questions
        width = max(len(q) + len(a) for _, q, a in questions)
        # Padding behind a sequence changes nothing before it.
        self.ids = np.array([q + a + [0] * (width - len(q) - len(a)) for _, q, a in questions])
        self.full = None

    def ask(self, cache, kept=None):
        """Returns: for each question whether its answer is right, and its KL from the first call."""
        hidden, _, _ = self.model.forward(self.ids, cache, kept)
        log = log_softmax(self.model.logits(hidden))
        self.full = log if self.full is None else self.full
        kl = (np.exp(self.full) * (self.full - log)).sum(axis=-1)
        out = []
        for i, (kind, question, answer) in enumerate(self.questions):
            first, end = len(question) - 1, len(question) + len(answer) - 1
            right = (log[i, first:end].argmax(axis=-1) == answer).all()
            out.append({"kind": kind, "right": bool(right), "kl": float(kl[i, :end].mean())})
        return out


def probe(model, ids, questions, args, write):
    chunk = args.chunk
    attention = Attention(model, ids, [*range(chunk, len(ids), chunk), len(ids)])
    asker = Asker(model, questions)
    write("f16", "-", "-", 1, asker.ask(attention.cache))
    formats = {"f16": attention.cache}
    for bits in ((8, 8), (8, 4), (4, 4), (4, 2)):
        name = f"k{bits[0]}v{bits[1]}"
        formats[name] = quantised(attention.cache, *bits)
        write(name, "-", "-", 1, asker.ask(formats[name]))
    for scorer, basis, scores in all_scores(model, ids, attention, chunk, args.scores.split(",")):
        by_chunk = chunk if basis == "chunk" else None
        for heads in args.heads.split(","):
            for share in args.shares:
                kept = keep(scores, share, heads == "compete", by_chunk)
                both = scorer == "kvzip" and basis == "chunk" and heads == "compete"
                for name in ("f16", "k8v4") if both else ("f16",):
                    write(
                        name,
                        f"{scorer}, {basis}, {heads}",
                        share,
                        kept.mean(),
                        asker.ask(formats[name], kept),
                    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True, help="GGUF file of a Llama")
    parser.add_argument("--novels", required=True, type=pathlib.Path, help="folder of plain texts")
    parser.add_argument("--out", required=True, type=pathlib.Path)
    parser.add_argument("--tokens", type=int, default=1024)
    parser.add_argument("--chunk", type=int, default=256)
    parser.add_argument("--contexts", type=int, default=8)
    parser.add_argument("--scores", default=",".join([*SCORERS, *WHOLE]))
    parser.add_argument(
        "--heads", default="equal,compete", help="budgets of each head, or of all together"
    )
    parser.add_argument(
        "--shares", type=float, nargs="+", default=[0.5, 0.25, 0.1], help="of the tokens"
    )
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    model = Llama(args.model)
    novels = sorted(args.novels.glob("*.txt"))
    for number in range(args.contexts):
        seed = args.seed + number
        novel = novels[(7 * seed) % len(novels)]
        ids, questions = make_document(novel.read_text(), model.tokenizer, args.tokens, seed)
        began = time.process_time()
        with args.out.open("a") as out:

            def write(stored, method, share, kept, answers):
                line = {
                    "context": f"{novel.stem}/{seed}",
                    "tokens": len(ids),
                    "stored": stored,
                    "method": method,
                    "share": share,
                    "kept": float(kept),
                    "answers": answers,
                }
                out.write(json.dumps(line) + "\n")
                out.flush()

            probe(model, ids, questions, args, write)
        print(
            f"{novel.stem}: {len(ids)} tokens, {time.process_time() - began:.0f} CPU seconds",
            flush=True,
        )


if __name__ == "__main__":
    main()
