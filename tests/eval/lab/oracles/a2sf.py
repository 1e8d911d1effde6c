"""A2SF: A(n) = factor * A(n - 1) + S(n)."""

from collections import defaultdict

from oracle_parts import best_and_newest, kept_while_generating


class Policy:
    def __init__(self, tokens, factor, newest):
        self.sums, self.tokens, self.factor, self.newest = defaultdict(float), tokens, factor, newest

    def see(self, _query, positions, weights):
        for position, weight in zip(positions, weights.sum(axis=0)):
            self.sums[position] = self.factor * self.sums[position] + weight

    def kept(self, _generated, positions):
        if len(positions) <= self.tokens:
            return range(len(positions))
        return best_and_newest([self.sums[p] for p in positions], self.tokens, self.newest)


def golden(prompt):
    return {"budget=0.5:factor=0.95:recent=16": kept_while_generating(prompt, lambda *_: Policy(32, 0.95, 16)),
            "budget=0.25:factor=0.5:recent=0": kept_while_generating(prompt, lambda *_: Policy(16, 0.5, 0))}
