"""H2O: sums of attention, by algorithm 1 of the paper. kvpress divides them, which H2O does not."""

from collections import defaultdict

from oracle_parts import best_and_newest, kept_while_generating


class Policy:
    def __init__(self, tokens, newest):
        self.sums, self.tokens, self.newest = defaultdict(float), tokens, newest

    def see(self, _query, positions, weights):
        for position, weight in zip(positions, weights.sum(axis=0)):
            self.sums[position] += weight

    def kept(self, _generated, positions):
        if len(positions) <= self.tokens:
            return range(len(positions))
        return best_and_newest([self.sums[p] for p in positions], self.tokens, self.newest)


def golden(prompt):
    return {"budget=0.25": kept_while_generating(prompt, lambda *_: Policy(16, 8)),
            "budget=0.5:recent=0.25": kept_while_generating(prompt, lambda *_: Policy(32, 8))}
