"""LeanKV, section 4 and Algorithm 1, from the paper. Score is cumulative in both phases."""

import numpy as np

from oracle_parts import head_of
from replay_parts import by_layer, each_head, packed_rows, queries_of, softmax

FILLED = 64


def quantized(row, bits):
    row = row.astype(np.float64)
    scale, zero = (row.max() - row.min()) / (2 ** bits - 1), -row.min()
    return (scale * np.round((row + zero) / scale) - zero).astype(np.float32)


class Head:
    def __init__(self, prompt, layer, head, high, low, window):
        self.high, self.low, self.window = high, low, window
        self.k, self.v = head_of(prompt, layer, "keys", head), head_of(prompt, layer, "values", head)
        self.q, self.scale = queries_of(prompt, layer, head), prompt.scale
        self.tokens = []  # position, key, value, attention's sum, number of queries, high

    def significance(self):
        return np.array([t["sum"] / t["n"] if t["n"] else 0 for t in self.tokens])

    def score(self):
        of = self.significance()
        of = of / of.sum()
        judged = of[:max(0, len(of) - self.window)]
        return [judged[(judged < x) | ((judged == x) & (np.arange(len(judged)) <= i))].sum()
                for i, x in enumerate(judged)]

    def store(self, token, high):
        token["high"] = high
        token["k"] = quantized(token["k"], 8 if high else 4)
        token["v"] = quantized(token["v"], 4 if high else 2)

    def prefill(self, n):
        logits = np.einsum("gqd,kd->gqk", self.q[:, :n].astype(np.float64), self.k[:n].astype(np.float64)) * self.scale
        logits[:, np.triu(np.ones((n, n), bool), 1)] = -np.inf
        later = np.tril(softmax(logits).mean(axis=0), -1).sum(axis=0)
        self.tokens = [{"p": i, "k": self.k[i], "v": self.v[i], "sum": later[i], "n": n - 1 - i, "high": True}
                       for i in range(n)]
        kept = []
        scores = self.score() + [1] * min(n, self.window)
        for token, score in zip(self.tokens, scores):
            if score >= self.low:
                self.store(token, score >= self.high)
                kept.append(token)
        self.tokens = kept

    def step(self, position):
        token = {"p": position, "k": self.k[position], "v": self.v[position], "sum": 0.0, "n": 0, "high": True}
        keys = np.stack([t["k"] for t in self.tokens] + [token["k"]])
        weights = softmax(self.q[:, position] @ keys.T * self.scale).mean(axis=0)
        for t, weight in zip(self.tokens, weights):
            t["sum"] += float(weight)
            t["n"] += 1
        self.store(token, True)
        self.tokens.append(token)
        if len(self.tokens) > self.window:
            self.compress()

    def compress(self):
        """Algorithm 1."""
        c = len(self.tokens) - self.window - 1
        score = self.score()
        kv_h = [i for i in range(c) if self.tokens[i]["high"]]
        kv_l = [i for i in range(c) if not self.tokens[i]["high"]]
        if score[c] >= self.high:
            v = min(kv_h + [c], key=lambda i: score[i])
            if self.low <= score[v] < self.high:
                self.store(self.tokens[v], False)
            elif score[v] < self.low:
                del self.tokens[v]
        elif score[c] >= self.low:
            self.store(self.tokens[c], False)
            v = min(kv_l + [c], key=lambda i: score[i])
            if score[v] < self.low:
                del self.tokens[v]
        else:
            del self.tokens[c]


def golden(prompt):
    made = {}
    for high, low, window in [(0.2, 0.05, 16), (0.3, 0.1, 8)]:
        heads = [Head(prompt, layer, head, high, low, window) for layer, head in each_head(prompt)]
        for head in heads:
            head.prefill(FILLED)
            for position in range(FILLED, len(prompt.ids)):
                head.step(position)
        tokens = [t for head in heads for t in head.tokens]
        assert not all(t["high"] for t in tokens) and len(tokens) < 6 * 96
        made[f"high={high}:low={low}:window={window}"] = {
            "filled": FILLED,
            "kept": by_layer(prompt, [[t["p"] for t in head.tokens] for head in heads]),
            "keys": packed_rows([[t["k"] for t in head.tokens] for head in heads]),
            "values": packed_rows([[t["v"] for t in head.tokens] for head in heads]),
            "bytes": sum((12 if t["high"] else 6) * prompt.head_dim // 8 + 4 * 2 + 8 for t in tokens)}
    return made
