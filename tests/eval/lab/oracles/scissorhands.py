"""Scissorhands: counts of queries in a history window for which a token was unimportant."""

from oracle_parts import best_and_newest, kept_while_generating


class Policy:
    def __init__(self, tokens, window, newest, drop):
        self.rows, self.tokens, self.window, self.newest, self.drop = [], tokens, window, newest, drop
        self.first = True

    def see(self, _query, positions, weights):
        unimportant = weights.mean(axis=0) < 1 / len(positions)
        self.rows.append({p for p, bad in zip(positions, unimportant) if bad})

    def kept(self, _generated, positions):
        count = self.tokens if self.first else self.tokens - self.drop
        self.first = False
        if len(positions) <= self.tokens:
            return range(len(positions))
        counts = [-sum(p in row for row in self.rows[-self.window:]) for p in positions]
        return best_and_newest(counts, count, self.newest)


def golden(prompt):
    return {"budget=0.5:window=40:recent=4": kept_while_generating(prompt, lambda *_: Policy(32, 40, 4, 16)),
            "budget=0.25:window=400:recent=2:drop=0.25":
                kept_while_generating(prompt, lambda *_: Policy(16, 400, 2, 4))}
