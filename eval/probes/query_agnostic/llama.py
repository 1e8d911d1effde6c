"""A Llama of a GGUF file in numpy, in float32: an implementation that shares no code with Tessera.

Each forward pass reads a cache of keys and values that it does not change, so that many
continuations start from one context. A mask names the cached tokens that each head may read.
"""

from dataclasses import dataclass

import numpy as np

Array = np.ndarray


@dataclass
class Cache:
    """Keys after RoPE and values of one context; each [layers, kv_heads, tokens, head_dim]."""

    keys: Array
    values: Array

    def tokens(self):
        return self.keys.shape[2]

    def first(self, count):
        return Cache(self.keys[:, :, :count], self.values[:, :, :count])


@dataclass
class Seen:
    """The probabilities of one layer, [kv_heads, sequences, group, queries, cached + own], the queries
    before RoPE in the same layout with head_dim, the residual stream that enters the layer,
    [sequences, queries, dim], and the number of the layer."""

    layer: int
    probabilities: Array
    queries: Array
    residual: Array


def rms_norm(x, weight, epsilon):
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + epsilon) * weight


def softmax(x):
    x = np.exp(x - x.max(axis=-1, keepdims=True))
    return x / x.sum(axis=-1, keepdims=True)


class Llama:
    def __init__(self, path):
        import gguf

        reader = gguf.GGUFReader(path)
        field = lambda name: reader.fields[f"llama.{name}"].contents()
        self.layers = field("block_count")
        self.heads = field("attention.head_count")
        self.kv_heads = field("attention.head_count_kv")
        self.group = self.heads // self.kv_heads
        self.head_dim = field("rope.dimension_count")
        self.epsilon = field("attention.layer_norm_rms_epsilon")
        pairs = np.arange(0, self.head_dim, 2) / self.head_dim
        self.frequencies = field("rope.freq_base") ** -pairs
        self.weights = {
            t.name: np.ascontiguousarray(gguf.dequantize(t.data, t.tensor_type), dtype=np.float32)
            for t in reader.tensors
        }
        self.tokenizer = read_tokenizer(reader)

    def rotate(self, x, positions):
        """x: [..., tokens, head_dim]; a GGUF file holds the two parts of a rotation side by side."""
        angles = np.asarray(positions)[..., None] * self.frequencies
        cos, sin = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
        even, odd = x[..., 0::2], x[..., 1::2]
        out = np.empty_like(x)
        out[..., 0::2] = even * cos - odd * sin
        out[..., 1::2] = even * sin + odd * cos
        return out

    def forward(self, ids, cache=None, kept=None, see=None):
        """ids: [sequences, tokens] that continue the cached context, each sequence by itself.

        kept: bool [layers, kv_heads, cached], or None for all. see: called with a Seen per layer.
        Returns the hidden states [sequences, tokens, dim], and the own keys and values
        [layers, sequences, kv_heads, tokens, head_dim].
        """
        ids = np.asarray(ids)
        sequences, tokens = ids.shape
        cached = cache.tokens() if cache else 0
        positions = cached + np.arange(tokens)
        causal = np.where(np.tri(tokens, dtype=bool), 0, -np.inf).astype(np.float32)
        x = self.weights["token_embd.weight"][ids]
        keys, values = [], []
        for layer in range(self.layers):
            w = lambda name: self.weights[f"blk.{layer}.{name}.weight"]
            h = rms_norm(x, w("attn_norm"), self.epsilon)
            split = lambda y, heads: y.reshape(sequences, tokens, heads, self.head_dim)
            q = split(h @ w("attn_q").T, self.heads)
            # [kv_heads, sequences, group, tokens, head_dim]
            q = q.reshape(sequences, tokens, self.kv_heads, self.group, -1).transpose(2, 0, 3, 1, 4)
            k = self.rotate(
                split(h @ w("attn_k").T, self.kv_heads).transpose(0, 2, 1, 3), positions
            )
            v = split(h @ w("attn_v").T, self.kv_heads).transpose(0, 2, 1, 3)
            keys.append(k)
            values.append(v)
            roped = self.rotate(q, positions) / np.float32(np.sqrt(self.head_dim))
            logits = roped @ k.transpose(1, 0, 3, 2)[:, :, None] + causal
            if cached:
                flat = roped.reshape(self.kv_heads, -1, self.head_dim)
                past = flat @ cache.keys[layer].transpose(0, 2, 1)
                if kept is not None:
                    past += np.where(kept[layer], 0, -np.inf).astype(np.float32)[:, None]
                past = past.reshape(*logits.shape[:-1], cached)
                logits = np.concatenate([past, logits], axis=-1)
            probabilities = softmax(logits)
            out = probabilities[..., cached:] @ v.transpose(1, 0, 2, 3)[:, :, None]
            if cached:
                flat = probabilities[..., :cached].reshape(self.kv_heads, -1, cached)
                out += (flat @ cache.values[layer]).reshape(out.shape)
            if see:
                see(Seen(layer, probabilities, q, x))
            out = out.transpose(1, 3, 0, 2, 4).reshape(sequences, tokens, -1)
            x = x + out @ w("attn_output").T
            h = rms_norm(x, w("ffn_norm"), self.epsilon)
            gate = h @ w("ffn_gate").T
            x = x + (gate / (1 + np.exp(-gate)) * (h @ w("ffn_up").T)) @ w("ffn_down").T
        return (
            rms_norm(x, self.weights["output_norm.weight"], self.epsilon),
            np.stack(keys),
            np.stack(values),
        )

    def logits(self, hidden):
        return hidden @ self.weights["token_embd.weight"].T


def read_tokenizer(reader):
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    tokens = reader.fields["tokenizer.ggml.tokens"].contents()
    merges = [tuple(m.split(" ")) for m in reader.fields["tokenizer.ggml.merges"].contents()]
    tokenizer = Tokenizer(models.BPE(vocab={t: i for i, t in enumerate(tokens)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer
