"""Compares scores of a replayed section by the error that its dropped tokens leave.

    python output_scores.py --model SmolLM2-135M-Instruct.gguf --novels DIR

Sections of 512 tokens are computed, quantised to k8v4, replayed and cut one after the other, as by
sections.py. Single tokens of all heads and layers compete. Prints the KL divergence from the full
cache for each score, of each document and as a mean. In the names of scores, a is attention, v the
value, W v its projection to the output, and x the residual stream at the query.
"""

import argparse
import pathlib

import numpy as np

from documents import make_document
from llama import Cache, Llama
from probe import Asker
from sections import kept_tokens
from selection import SINKS, quantise

SECTION = 512


def root_of_squares(a):
    return np.sqrt((a * a).mean(axis=(1, 2)))


def projected_norms(model, layer, values):
    """|W v| of each query head, [kv_heads, group, tokens]."""
    out = model.weights[f"blk.{layer}.attn_output.weight"]
    w = out.reshape(out.shape[0], model.kv_heads, model.group, model.head_dim)
    gram = np.einsum("dkga,dkgb->kgab", w, w)
    return np.sqrt(np.maximum(np.einsum("kna,kgab,knb->kgn", values, gram, values, optimize=True), 0))


def scores_of(model, name, seen, attention, values):
    """attention: [kv_heads, group, queries, tokens]; values: [kv_heads, tokens, head_dim]."""
    norms = np.linalg.norm(values, axis=-1)
    stream = np.linalg.norm(seen.residual[0], axis=-1)[None, None, :, None]
    projected = lambda: projected_norms(model, seen.layer, values)[:, :, None] / stream
    return {
        "max a (KVzip)": lambda: attention.max(axis=(1, 2)),
        "max a |v|": lambda: attention.max(axis=(1, 2)) * norms,
        "max a |W v| / |x|": lambda: (attention * projected()).max(axis=(1, 2)),
        "squares of a": lambda: root_of_squares(attention),
        "squares of a |v|": lambda: root_of_squares(attention) * norms,
        "squares of a / |x|": lambda: root_of_squares(attention / stream),
        "squares of a |v| / |x|": lambda: root_of_squares(attention / stream) * norms,
        "squares of a |W v| / |x|": lambda: root_of_squares(attention * projected()),
    }[name]()


NAMES = ("max a (KVzip)", "max a |v|", "max a |W v| / |x|", "squares of a", "squares of a |v|",
         "squares of a / |x|", "squares of a |v| / |x|", "squares of a |W v| / |x|")


def compress(model, ids, share, name):
    """Returns: the cache of all tokens, and those that are kept [layers, kv_heads, tokens]."""
    shape = (model.layers, model.kv_heads)
    nothing = np.zeros((*shape, 0, model.head_dim), np.float32)
    cache, kept = Cache(nothing, nothing), np.zeros((*shape, 0), bool)
    for begin in range(0, len(ids), SECTION):
        part = list(ids[begin : begin + SECTION])
        _, keys, values = model.forward([part], cache if begin else None, kept if begin else None)
        keys, values = keys[:, 0], values[:, 0]
        whole = len(part) == SECTION
        if whole:
            keys, values = quantise(keys, 8), quantise(values, 4)
        cache = Cache(np.concatenate([cache.keys, keys], 2), np.concatenate([cache.values, values], 2))
        now = np.concatenate([kept, np.ones((*shape, len(part)), bool)], 2)
        if whole:
            scores = np.zeros((*shape, SECTION), np.float32)

            def see(seen):
                attention = seen.probabilities[:, 0, :, :, begin : begin + SECTION]
                scores[seen.layer] = scores_of(model, name, seen, attention, values[seen.layer])

            model.forward([part], cache, now, see)
            if begin == 0:
                scores[:, :, :SINKS] = np.inf
            now = np.concatenate([kept, kept_tokens(scores, share)], 2)
        kept = now
    return cache, kept


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True, help="GGUF file of a Llama")
    parser.add_argument("--novels", required=True, type=pathlib.Path, help="folder of plain texts")
    parser.add_argument("--tokens", type=int, default=1540)
    parser.add_argument("--contexts", type=int, default=2)
    parser.add_argument("--share", type=float, default=0.25, help="of the tokens of a section")
    parser.add_argument("--seed", type=int, default=100)
    args = parser.parse_args()
    model = Llama(args.model)
    novels = sorted(args.novels.glob("*.txt"))
    divergences = {name: [] for name in NAMES}
    for seed in range(args.seed, args.seed + args.contexts):
        novel = novels[(7 * seed) % len(novels)]
        ids, questions = make_document(novel.read_text(), model.tokenizer, args.tokens, seed)
        asker = Asker(model, questions)
        _, keys, values = model.forward([ids])
        asker.ask(Cache(keys[:, 0], values[:, 0]))
        for name in NAMES:
            answers = asker.ask(*compress(model, ids, args.share, name))
            divergences[name].append(float(np.mean([answer["kl"] for answer in answers])))
            print(f"{novel.stem}/{seed}: {name}: {divergences[name][-1]:.4f}", flush=True)
    for name, values in divergences.items():
        print(f"{name}: {np.mean(values):.4f}")


if __name__ == "__main__":
    main()
