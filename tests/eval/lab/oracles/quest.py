"""Quest, algorithm 1, from the paper; and the bound of each page is above each product in it."""

import numpy as np

from oracle_parts import head_of
from replay_parts import replay_reads

FILLED = 88


def golden(prompt):
    def made(page, budget, full_layers):
        pages_read = max(3, int(budget * FILLED) // page)

        def choose(layer, head, token):
            query = head_of(prompt, layer, "queries", head)[token]
            keys = head_of(prompt, layer, "keys", head * prompt.kv_heads // prompt.heads)[:token + 1]
            bounds = []
            for first in range(0, token + 1, page):
                own = keys[first:first + page]
                bounds.append(np.maximum(query * own.min(axis=0), query * own.max(axis=0)).sum())
                assert bounds[-1] >= (own @ query).max() - 1e-5
            last = len(bounds) - 1
            best = sorted(range(last), key=lambda i: -bounds[i])[:pages_read - 1] + [last]
            return [i for i in range(token + 1) if i // page in best]

        pages = -(-len(prompt.ids) // page)
        bytes_ = 6 * (len(prompt.ids) + pages) * 2 * prompt.head_dim * 2
        return {"filled": FILLED, "read": replay_reads(prompt, FILLED, choose, full_layers), "bytes": bytes_}

    return {"page=8:budget=0.3:full_layers=1": made(8, 0.3, 1), "page=16:budget=0.6:full_layers=0": made(16, 0.6, 0)}
