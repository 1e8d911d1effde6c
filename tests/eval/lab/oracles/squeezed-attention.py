"""SqueezedAttention, section 3, from the paper."""

import numpy as np

from k_means_oracle import k_means, unit
from oracle_parts import head_of
from replay_parts import LAYERS, replay_reads

FILLED, WINDOW, SHARE, BUDGET = 88, 20, 0.1, 0.3


def golden(prompt):
    clustered, group = FILLED - WINDOW, prompt.heads // prompt.kv_heads
    clusters = int(SHARE * FILLED)
    made = {}
    for layer in range(LAYERS):
        for head in range(prompt.kv_heads):
            keys = head_of(prompt, layer, "keys", head)[:clustered].astype(np.float64)
            labels, _ = k_means(unit(keys), clusters, 20, cosine=False)
            members = labels[:, None] == np.arange(clusters)[None]
            means = members.T @ keys / np.maximum(members.sum(axis=0), 1)[:, None]
            made[layer, head] = labels, means, members.sum(axis=0)

    def scores(layer, head, queries):
        """Returns: equation 1 of each query and clustered token, [queries, tokens]."""
        labels, means, sizes = made[layer, head // group]
        weights = np.exp(queries @ means.T * prompt.scale)
        return (weights / (weights * sizes).sum(axis=-1, keepdims=True))[:, labels]

    judged = [scores(layer, head, head_of(prompt, layer, "queries", head)[clustered:FILLED]).mean(axis=0)
              for layer in range(LAYERS) for head in range(prompt.heads)]
    threshold = np.quantile(np.concatenate(judged), 1 - BUDGET)

    def choose(layer, head, token):
        near = scores(layer, head, head_of(prompt, layer, "queries", head)[token:token + 1])[0]
        return [i for i in range(clustered) if near[i] > threshold] + list(range(clustered, token + 1))

    held = 6 * (len(prompt.ids) * 2 * prompt.head_dim * 2 + clusters * prompt.head_dim * 2 + clustered * 4)
    return {f"budget={BUDGET}:clusters={SHARE}:window={WINDOW}": {
        "filled": FILLED, "read": replay_reads(prompt, FILLED, choose), "bytes": held}}
