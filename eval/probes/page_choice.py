"""Which pages must a query read? Compares estimates of a page's attention, in numpy: none of it is Tessera's code.

A context of a novel is computed once. Then sentences of it are quoted behind it, and each of their tokens reads a
share of the context's runs of 64 tokens for each KV head, chosen by an estimate. The first two layers read everything,
and every query reads the first run, the last one and all tokens behind it. Prints the mean KL from reading everything.

  pip install numpy gguf tokenizers
  python3 eval/probes/page_choice.py MODEL.gguf NOVEL.txt [--tokens 6000] [--share 0.25] [--only NAME,...]
"""

import argparse
import pathlib
import random
import re
import sys

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).parent / "query_agnostic"))
from llama import Cache, Llama, rms_norm, softmax  # noqa: E402

WHOLE_LAYERS, CHUNK = 2, 256


# ---- estimates: [kv_heads, sequences, group, queries, runs] of roped queries over keys [kv_heads, runs, run, head_dim]


def relative(x):  # to the best run of each query head
    return x - x.max(-1, keepdims=True)


def log_sum(x):  # over the last axis
    most = x.max(-1, keepdims=True)
    return (most + np.log(np.exp(x - most).sum(-1, keepdims=True)))[..., 0]


def product(queries, vectors):
    return np.einsum("ksgtd,knd->ksgtn", queries, vectors)


def bounds(queries, keys, _):
    """Quest: no product with a key of the run is larger. Summed over the query heads."""
    upper = product(np.maximum(queries, 0), keys.max(2)) + product(np.minimum(queries, 0), keys.min(2))
    return upper.sum(2)


def moments(queries, keys, _):
    """The logarithm of the mean exponential of normal keys with the run's mean and variance of each channel."""
    logs = product(queries, keys.mean(2)) + product(queries * queries, keys.var(2)) / 2
    return relative(logs).max(2)


def clusters(queries, keys, _):
    """Means of 8 clusters of the run's keys, 4 steps of k-means."""
    runs, size, width = keys.shape[0] * keys.shape[1], keys.shape[2], keys.shape[3]
    all_keys = keys.reshape(runs, size, width)
    centers = all_keys[:, :: size // 8]
    for _ in range(4):
        distances = (centers**2).sum(-1)[:, None] - 2 * all_keys @ centers.transpose(0, 2, 1)
        own = np.eye(8, dtype=np.float32)[distances.argmin(-1)]
        counts = own.sum(1)
        sums = own.transpose(0, 2, 1) @ all_keys
        centers = np.where(counts[..., None] > 0, sums / np.maximum(counts, 1)[..., None], centers)
    logs = product(queries, centers.reshape(keys.shape[0], -1, width))
    logs += np.log(np.maximum(counts, 1e-6)).reshape(keys.shape[0], 1, 1, 1, -1)
    return relative(log_sum(logs.reshape(*logs.shape[:-1], -1, 8))).max(2)


def hadamard(size):
    matrix = np.ones((1, 1), np.float32)
    while len(matrix) < size:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    return matrix / np.float32(np.sqrt(size))


def coded(levels, rotated):
    """The run's mean key, and the differences from it in levels times a scale of each key."""
    levels = np.array(levels, np.float32)
    limits = (levels[1:] + levels[:-1]) / 2

    def estimate(queries, keys, _):
        turn = hadamard(keys.shape[-1]) if rotated else np.eye(keys.shape[-1], dtype=np.float32)
        turned = keys @ turn
        mean = turned.mean(2, keepdims=True)
        rest = turned - mean
        codes = levels[np.searchsorted(limits, rest / rest.std(-1, keepdims=True))]
        scale = (rest * rest).sum(-1, keepdims=True) / (rest * codes).sum(-1, keepdims=True)
        read = (mean + scale * codes).reshape(keys.shape[0], -1, keys.shape[-1])
        logs = product(queries @ turn, read)
        return relative(log_sum(logs.reshape(*logs.shape[:-1], *keys.shape[1:3]))).max(2)

    return estimate


def attention(_, keys, logits):
    """The attention that the run will get: the best that an estimate can reach."""
    shares = softmax(logits)[..., : keys.shape[1] * keys.shape[2]]
    return shares.reshape(*shares.shape[:-1], *keys.shape[1:3]).sum(-1).sum(2)


TWO_BITS = (-1.510, -0.4528, 0.4528, 1.510)
ESTIMATES = {
    "bounds": bounds,
    "moments": moments,
    "clusters": clusters,
    "signs": coded((-0.798, 0.798), True),
    "unrotated": coded(TWO_BITS, False),
    "sketch": coded(TWO_BITS, True),
    "attention": attention,
}


class Chooser:
    """The runs that each KV head reads."""

    def __init__(self, cache, run, share, estimate):
        self.cache, self.run, self.estimate = cache, run, estimate
        self.runs = cache.tokens() // run
        self.read = int(np.ceil(share * self.runs))

    def mask(self, layer, queries, past, own):  # bool [kv_heads, sequences, queries, cached]
        keys = self.cache.keys[layer][:, : self.runs * self.run]
        keys = keys.reshape(len(keys), self.runs, self.run, -1)
        scores = self.estimate(queries, keys, np.concatenate([past, own], -1)).copy()
        scores[..., [0, -1]] = np.inf
        chosen = np.zeros(scores.shape, bool)
        best = np.argpartition(-scores, self.read - 1, -1)[..., : self.read]
        np.put_along_axis(chosen, best, True, -1)
        mask = np.ones((*scores.shape[:-1], self.cache.tokens()), bool)
        mask[..., : self.runs * self.run] = np.repeat(chosen, self.run, -1)
        return mask


def log_probabilities(model, cache, ids, chooser):
    """Of sequences that continue the cached context, [sequences, tokens, vocabulary]."""
    sequences, tokens = ids.shape
    positions = cache.tokens() + np.arange(tokens)
    causal = np.where(np.tri(tokens, dtype=bool), 0, -np.inf).astype(np.float32)
    x = model.weights["token_embd.weight"][ids]
    for layer in range(model.layers):
        w = lambda name: model.weights[f"blk.{layer}.{name}.weight"]
        h = rms_norm(x, w("attn_norm"), model.epsilon)
        split = lambda y, heads: y.reshape(sequences, tokens, heads, model.head_dim)
        q = split(h @ w("attn_q").T, model.heads).reshape(sequences, tokens, model.kv_heads, model.group, -1)
        k = model.rotate(split(h @ w("attn_k").T, model.kv_heads).transpose(0, 2, 1, 3), positions)
        v = split(h @ w("attn_v").T, model.kv_heads).transpose(0, 2, 1, 3)
        queries = model.rotate(q.transpose(2, 0, 3, 1, 4), positions) / np.float32(np.sqrt(model.head_dim))
        own = queries @ k.transpose(1, 0, 3, 2)[:, :, None] + causal
        flat = queries.reshape(model.kv_heads, -1, model.head_dim)
        past = (flat @ cache.keys[layer].transpose(0, 2, 1)).reshape(*own.shape[:-1], -1)
        if chooser and layer >= WHOLE_LAYERS:
            past = np.where(chooser.mask(layer, queries, past, own)[:, :, None], past, -np.inf)
        shares = softmax(np.concatenate([past, own], -1))
        out = shares[..., cache.tokens() :] @ v.transpose(1, 0, 2, 3)[:, :, None]
        flat = shares[..., : cache.tokens()].reshape(model.kv_heads, -1, cache.tokens())
        out += (flat @ cache.values[layer]).reshape(out.shape)
        x = x + out.transpose(1, 3, 0, 2, 4).reshape(sequences, tokens, -1) @ w("attn_output").T
        h = rms_norm(x, w("ffn_norm"), model.epsilon)
        gate = h @ w("ffn_gate").T
        x = x + (gate / (1 + np.exp(-gate)) * (h @ w("ffn_up").T)) @ w("ffn_down").T
    logits = model.logits(rms_norm(x, model.weights["output_norm.weight"], model.epsilon))
    logits -= logits.max(-1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


def compute(model, ids):
    shape = (model.layers, model.kv_heads, len(ids), model.head_dim)
    keys, values = np.zeros(shape, np.float32), np.zeros(shape, np.float32)
    for first in range(0, len(ids), CHUNK):
        part = ids[first : first + CHUNK]
        before = Cache(keys[:, :, :first], values[:, :, :first]) if first else None
        _, k, v = model.forward([part], before)
        keys[:, :, first : first + len(part)] = k[:, 0]
        values[:, :, first : first + len(part)] = v[:, 0]
    return Cache(keys, values)


def context_and_quotes(model, novel, tokens, seed, quotes, width=22):
    draw = random.Random(seed)
    text = re.sub(r"\s+", " ", novel)
    start = draw.randrange(len(text) // 10, len(text) // 2)
    ids = model.tokenizer.encode(text[start : start + 8 * tokens]).ids[:tokens]
    encoded = [
        model.tokenizer.encode("\n\n" + sentence).ids
        for sentence in re.findall(r"[A-Z][^.!?]*[.!?]+", model.tokenizer.decode(ids))
    ]
    long = [one[:width] for one in encoded if len(one) >= width]
    return ids, np.array(draw.sample(long, quotes))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", help="GGUF file of a Llama")
    parser.add_argument("novel", type=pathlib.Path)
    parser.add_argument("--tokens", type=int, default=6000)
    parser.add_argument("--run", type=int, default=64, help="tokens that are read or left together")
    parser.add_argument("--share", type=float, default=0.25)
    parser.add_argument("--quotes", type=int, default=6)
    parser.add_argument("--contexts", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default=",".join(ESTIMATES))
    args = parser.parse_args()
    model = Llama(args.model)
    for seed in range(args.seed, args.seed + args.contexts):
        ids, quotes = context_and_quotes(model, args.novel.read_text(), args.tokens, seed, args.quotes)
        cache = compute(model, ids)
        whole = log_probabilities(model, cache, quotes, None)
        for name in args.only.split(","):
            own = log_probabilities(model, cache, quotes, Chooser(cache, args.run, args.share, ESTIMATES[name]))
            kl = (np.exp(whole) * (whole - own)).sum(-1)[:, 1:]
            print(f"context {seed}  {name:<14}  {kl.mean():.4f} nats", flush=True)


if __name__ == "__main__":
    main()
