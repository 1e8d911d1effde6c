"""ClusterKV, sections III and IV, from the paper."""

import numpy as np

from k_means_oracle import k_means
from oracle_parts import head_of
from replay_parts import replay_reads

FILLED, SINKS, SIZE, GENERATED, BUDGET = 84, 4, 10, 8, 0.4


def golden(prompt):
    clusters = {}

    def clusters_of(layer, head, token):
        """Returns: (centroid, members) of the prompt's clusters and of those of generated tokens, and what is new."""
        keys = head_of(prompt, layer, "keys", head).astype(np.float64)
        made, done, end = [], SINKS, FILLED
        while done < end:
            at = (layer, head, done)
            if at not in clusters:
                count = max(1, (end - done) // SIZE)
                labels, centroids = k_means(keys[done:end], count, 10, cosine=True)
                clusters[at] = [(centroids[i], (done + np.flatnonzero(labels == i)).tolist()) for i in range(count)]
            made += clusters[at]
            done = end
            end = done + GENERATED if done + GENERATED <= token else done
        return made, done

    def choose(layer, head, token):
        query = head_of(prompt, layer, "queries", head)[token]
        made, done = clusters_of(layer, head * prompt.kv_heads // prompt.heads, token)
        read = list(range(SINKS))
        for _, members in sorted(made, key=lambda cluster: -(cluster[0] @ query)):
            read += members[:int(BUDGET * FILLED) - len(read)]
        return read + list(range(done, token + 1))

    return {f"budget={BUDGET}:sinks={SINKS}:cluster={SIZE}:generated={GENERATED}:full_layers=1": {
        "filled": FILLED, "read": replay_reads(prompt, FILLED, choose, full_layers=1)}}
