"""Divergence of KV formats below four bits, by fake quantisation in numpy: none of it is Tessera's code.

Keys and values of closed groups of 64 tokens are quantised and decoded again, those of a query's own
group are not, as in the engine. Prints the mean KL from f16 over the last 128 tokens of each window.

  pip install numpy gguf tokenizers
  python3 eval/probes/low_bits.py MODEL.gguf TEXT.txt [--windows 3] [--only NAME,...]
"""

import argparse
import functools

import gguf
import numpy as np
import tokenizers

GROUP, WINDOW, PROMPT = 64, 512, 384


def f16(x):
    return x.astype(np.float16).astype(np.float32)


# ---- quantisers: [..., channels] of a token and head to the values read back


def uniform(bits):
    last = 2**bits - 1

    def quantise(x):
        zero = f16(x.min(-1, keepdims=True))
        step = f16((x.max(-1, keepdims=True) - zero) / last)
        return zero + step * np.clip(np.rint((x - zero) / np.where(step > 0, step, 1)), 0, last)

    return quantise


def hadamard(size):
    matrix = np.ones((1, 1))
    while len(matrix) < size:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    return (matrix / np.sqrt(size)).astype(np.float32)


def rotated(quantise):
    def of_rotated(x):
        matrix = hadamard(x.shape[-1])
        return quantise(x @ matrix) @ matrix

    return of_rotated


@functools.cache
def lloyd_max(bits, unbiased=False):
    """Levels of a unit normal, times a step of each token, without a zero. Unbiased: a token's product with what is
    read is its square, as TurboQuant has it; else the squared error is least."""
    normal = np.sort(np.random.default_rng(1).standard_normal(400_000))
    levels = np.quantile(normal, (np.arange(2**bits) + 0.5) / 2**bits)
    for _ in range(300):
        nearest = np.searchsorted((levels[1:] + levels[:-1]) / 2, normal)
        levels = np.bincount(nearest, normal) / np.bincount(nearest)
        levels = (levels - levels[::-1]) / 2
    levels = levels.astype(np.float32)
    limits = (levels[1:] + levels[:-1]) / 2

    def coded(x, step):
        return levels[np.searchsorted(limits, (x / step).ravel()).reshape(x.shape)]

    def quantise(x):
        step = np.sqrt((x * x).mean(-1, keepdims=True)) + 1e-12
        for _ in range(2):  # the step of the least squared error for the codes
            codes = coded(x, step)
            step = np.maximum((x * codes).sum(-1, keepdims=True) / (codes**2).sum(-1, keepdims=True), 1e-9)
        if unbiased:
            codes = coded(x, step)
            return f16((x * x).sum(-1, keepdims=True) / np.maximum((x * codes).sum(-1, keepdims=True), 1e-9)) * codes
        step = f16(step)
        return step * coded(x, np.where(step > 0, step, 1))

    return quantise


def exact_first(quantise, count):
    """The first tokens of a window, to which others attend most, stay in f16."""

    def of_others(x):
        read = quantise(x).copy()
        read[:, :count] = x[:, :count]
        return read

    return of_others


def centred(quantise):
    """Keys without the mean of the first group, which changes no softmax."""

    def of_centred(x):
        mean = f16(x[:, :GROUP].mean(1, keepdims=True))
        return quantise(x - mean) + mean

    return of_centred


def groups(x):  # [windows, tokens, heads, channels] to [windows, groups, heads, tokens, channels]
    windows, tokens, heads, channels = x.shape
    return x.reshape(windows, tokens // GROUP, GROUP, heads, channels).swapaxes(2, 3)


def by_channel(quantise):
    """KIVI: a range for each channel of a group of tokens."""

    def of_channels(x):
        read = quantise(groups(x).swapaxes(3, 4)).swapaxes(3, 4)
        return read.swapaxes(2, 3).reshape(x.shape)

    return of_channels


def normalised(quantise):
    """KVarN: root mean square of tokens, then of a group's channels, are divided out."""

    def of_normalised(x):
        of_token = f16(np.sqrt((x * x).mean(-1, keepdims=True)) + 1e-9)
        parts = groups(x / of_token)
        of_channel = f16(np.sqrt((parts * parts).mean(3, keepdims=True)) + 1e-6)
        read = (quantise(parts / of_channel) * of_channel).swapaxes(2, 3).reshape(x.shape)
        return read * of_token

    return of_normalised


def e4m3(x):
    step = 2.0 ** (np.floor(np.log2(np.maximum(np.abs(x), 2.0**-6))) - 3)
    return np.clip(np.rint(x / step) * step, -448, 448).astype(np.float32)


def formats():
    """Name: (bytes of a token and head at 64 channels, keys, values)."""
    rows = {"fp8": (128, e4m3, e4m3)}
    for keys, values in [(8, 4), (4, 4), (4, 3), (4, 2), (3, 3), (3, 2), (2, 2)]:
        size = 8 * (keys + values) + 8
        name = f"k{keys}v{values}"
        rows[name] = (size, uniform(keys), uniform(values))
        rows[name + "r"] = (size, rotated(uniform(keys)), rotated(uniform(values)))
        if keys <= 4:
            lm_keys, lm_values = rotated(lloyd_max(keys)), rotated(lloyd_max(values))
            rows[name + "r-lm"] = (size - 4, lm_keys, lm_values)
            kvarn_keys, kvarn_values = rotated(normalised(uniform(keys))), rotated(normalised(uniform(values)))
            rows[name + "-kvarn"] = (size + 4, kvarn_keys, kvarn_values)
            rows[name + "-kivi"] = (size, by_channel(uniform(keys)), uniform(values))
            rows[name + "r-kivi"] = (size, by_channel(uniform(keys)), rotated(uniform(values)))
    for keys in (4, 3):  # as the engine has it: a codebook at 3 bits alone
        coded = uniform(4) if keys == 4 else lloyd_max(3)
        rows[f"k{keys}v3r-engine"] = (8 * (keys + 3) + (6 if keys == 4 else 4), rotated(coded), rotated(lloyd_max(3)))
    book = rotated(lloyd_max(3))
    rows["k3v3r-unbiased"] = (52, rotated(lloyd_max(3, True)), rotated(lloyd_max(3, True)))
    rows["k3v3r-first16"] = (52, exact_first(book, 16), exact_first(book, 16))
    rows["k3v3r-centred"] = (52, centred(book), book)
    rows["k3v16r"] = (154, book, lambda x: x)
    return rows


# ---- the model


class Llama:
    def __init__(self, path):
        reader = gguf.GGUFReader(path)
        self.weights = {
            t.name: gguf.quants.dequantize(t.data, t.tensor_type).astype(np.float32) for t in reader.tensors
        }

        def field(name):
            entry = reader.fields[name]
            return [entry.parts[i] for i in entry.data]

        self.layers = int(field("llama.block_count")[0][0])
        self.heads = int(field("llama.attention.head_count")[0][0])
        self.kv_heads = int(field("llama.attention.head_count_kv")[0][0])
        self.base = float(field("llama.rope.freq_base")[0][0])
        texts = [bytes(part).decode() for part in field("tokenizer.ggml.tokens")]
        merges = [tuple(bytes(part).decode().split(" ")) for part in field("tokenizer.ggml.merges")]
        vocabulary = {text: i for i, text in enumerate(texts)}
        self.tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, merges))
        self.tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Sequence(
            [
                tokenizers.pre_tokenizers.Digits(individual_digits=True),
                tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False),
            ]
        )

    def multiply(self, x, name):
        return x @ self.weights[name + ".weight"].T

    def norm(self, x, name):
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5) * self.weights[name + ".weight"]

    def rope(self, x):  # GGUF has the two channels of a pair beside each other
        channels = x.shape[-1]
        angle = np.arange(x.shape[1])[:, None] * self.base ** (-np.arange(0, channels, 2) / channels)
        cos, sin = (part.astype(np.float32)[None, :, None] for part in (np.cos(angle), np.sin(angle)))
        out = np.empty_like(x)
        out[..., 0::2] = x[..., 0::2] * cos - x[..., 1::2] * sin
        out[..., 1::2] = x[..., 0::2] * sin + x[..., 1::2] * cos
        return out

    def attend(self, query, keys, values, read_keys, read_values):  # of one KV head of one window
        mask = np.where(np.tril(np.ones((WINDOW, WINDOW), bool)), 0, -np.inf).astype(np.float32)
        scores = query @ read_keys.T
        own = [slice(i, i + GROUP) for i in range(0, WINDOW, GROUP)]
        for group in own:
            scores[:, group, group] = query[:, group] @ keys[group].T
        scores = scores / np.sqrt(query.shape[-1]) + mask
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        out = weights @ read_values
        for group in own:
            out[:, group] += weights[:, group, group] @ (values[group] - read_values[group])
        return out

    def log_probabilities(self, ids, quantise_keys, quantise_values):
        x = self.weights["token_embd.weight"][ids]
        windows, tokens, width = x.shape
        for layer in range(self.layers):
            name = f"blk.{layer}."
            h = self.norm(x, name + "attn_norm")
            query = self.rope(self.multiply(h, name + "attn_q").reshape(windows, tokens, self.heads, -1))
            keys, values = (
                self.multiply(h, name + part).reshape(windows, tokens, self.kv_heads, -1)
                for part in ("attn_k", "attn_v")
            )
            keys, values = f16(self.rope(keys)), f16(values)
            read_keys, read_values = quantise_keys(keys), quantise_values(values)
            out = np.empty_like(query)
            group = self.heads // self.kv_heads
            for w in range(windows):
                for head in range(self.kv_heads):
                    at = slice(head * group, (head + 1) * group)
                    parts = (part[w, :, head] for part in (keys, values, read_keys, read_values))
                    out[w, :, at] = self.attend(query[w, :, at].swapaxes(0, 1), *parts).swapaxes(0, 1)
            x = x + self.multiply(out.reshape(windows, tokens, width), name + "attn_output")
            h = self.norm(x, name + "ffn_norm")
            gate = self.multiply(h, name + "ffn_gate")
            x = x + self.multiply(gate / (1 + np.exp(-gate)) * self.multiply(h, name + "ffn_up"), name + "ffn_down")
        logits = self.multiply(self.norm(x[:, PROMPT:], "output_norm"), "token_embd")
        logits -= logits.max(-1, keepdims=True)
        return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model")
    parser.add_argument("text")
    parser.add_argument("--windows", type=int, default=3)
    parser.add_argument("--only", help="names of formats, separated by commas [all]")
    arguments = parser.parse_args()
    model = Llama(arguments.model)
    with open(arguments.text, encoding="utf-8") as file:
        tokens = np.array(model.tokenizer.encode(file.read()).ids)
    count = arguments.windows
    ids = tokens[: len(tokens) // WINDOW * WINDOW].reshape(-1, WINDOW)
    ids = ids[:: max(1, len(ids) // count)][:count]
    reference = model.log_probabilities(ids, lambda x: x, lambda x: x)
    rows = formats()
    for name in arguments.only.split(",") if arguments.only else rows:
        size, keys, values = rows[name]
        found = model.log_probabilities(ids, keys, values)
        divergence = (np.exp(reference) * (reference - found)).sum(-1).mean(1)
        windows = " ".join(f"{x:.1e}" for x in divergence)
        print(f"{name:12s} {size:4d} B {size / 2.56:5.1f} %  KL {divergence.mean():.2e}  windows {windows}", flush=True)


if __name__ == "__main__":
    main()
