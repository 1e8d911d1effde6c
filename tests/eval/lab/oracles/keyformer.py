"""Keyformer: sums of softmax((x + Gumbel noise) / temperature) over the logits x. The noise is that of the method."""

from collections import defaultdict

import numpy as np

from oracle_parts import best_and_newest, kept_while_generating, softmax

BITS = (1 << 64) - 1


def uniform(layer, head, query, token):
    key = (((layer << 10 | head) << 20 | query) << 20) + token + 0x9E3779B97F4A7C15 & BITS
    key = (key ^ key >> 30) * 0xBF58476D1CE4E5B9 & BITS
    key = (key ^ key >> 27) * 0x94D049BB133111EB & BITS
    return ((key ^ key >> 31) >> 41) * 2.0 ** -23 + 2.0 ** -24


class Policy:
    def __init__(self, layer, kv_head, tokens, newest, growth, begin=64):
        self.sums, self.layer, self.kv_head = defaultdict(float), layer, kv_head
        self.tokens, self.newest, self.growth, self.begin = tokens, newest, growth, begin

    def see(self, query, positions, weights):
        temperature = min(2, 1 + self.growth * max(0, query + 1 - self.begin))
        for i, row in enumerate(weights):
            u = np.array([uniform(self.layer, self.kv_head * len(weights) + i, query, p) for p in positions])
            for position, part in zip(positions, softmax((np.log(row) - np.log(-np.log(u))) / temperature)):
                self.sums[position] += part

    def kept(self, _generated, positions):
        if len(positions) <= self.tokens:
            return range(len(positions))
        return best_and_newest([self.sums[p] for p in positions], self.tokens, self.newest)


def golden(prompt):
    return {"budget=0.25": kept_while_generating(prompt, lambda *at: Policy(*at, 16, 4, 0.01)),
            "budget=0.5:recent=0.25:growth=0.1": kept_while_generating(prompt, lambda *at: Policy(*at, 32, 8, 0.1))}
