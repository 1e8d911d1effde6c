"""LazyEviction: the time since the last attention over the longest pause, in windows."""

from oracle_parts import best_and_newest, kept_while_generating


class Policy:
    def __init__(self, tokens, window, threshold):
        self.last, self.pause, self.tokens, self.window, self.threshold = {}, {}, tokens, window, threshold

    def see(self, query, positions, weights):
        self.last.setdefault(query, query)
        self.pause.setdefault(query, 0)
        for position, weight in zip(positions, weights.max(axis=0)):
            if weight >= self.threshold:
                self.pause[position] = max(self.pause[position], query - self.last[position])
                self.last[position] = query

    def kept(self, generated, positions):
        if generated % self.window != 0 or len(positions) <= self.tokens:
            return range(len(positions))
        now = positions[-1]
        scores = [-(now - self.last[p]) / (self.pause[p] + 1) for p in positions]
        return best_and_newest(scores, self.tokens, self.window)


def golden(prompt):
    return {"budget=0.5:window=8:threshold=0.05": kept_while_generating(prompt, lambda *_: Policy(32, 8, 0.05)),
            "budget=0.25:window=12:threshold=0.1": kept_while_generating(prompt, lambda *_: Policy(16, 12, 0.1))}
