"""InfiniGen, section 4, by plain matrices: a prompt in one pass, then token by token."""

import numpy as np

from shipped_model import (GROUP, HEADS, LAYERS, SCALE, DIM, Matrices, causal, masked_attention, packed_logits, rotate,
                           softmax, tokens_of)

PROMPT, TOKENS, BUDGET, ALPHA, CHANNELS = 120, 130, 0.2, 3, 0.3


def golden(_prompt):
    model, ids = Matrices(), tokens_of(TOKENS)
    keys, values, parts, inputs = {}, {}, {}, {}

    def prompt_attention(layer, h, q, k, v):
        keys[layer], values[layer] = rotate(k, range(PROMPT)), v
        for head in range(HEADS):
            queries, own = rotate(q[head:head + 1], range(PROMPT))[0], keys[layer][head // GROUP]
            _, _, directions = np.linalg.svd(queries, full_matrices=False)
            sums = np.abs(queries @ directions.T).sum(axis=0) + np.abs(own @ directions.T).sum(axis=0)
            best = np.argsort(-sums)[:int(CHANNELS * DIM)]
            parts[layer, head] = directions[best].T
        return masked_attention(lambda _layer: causal(PROMPT))(layer, h, q, k, v)

    logits = [model.forward(ids[:PROMPT], prompt_attention)[-1]]
    counts = []

    def token_attention(layer, h, q, k, v):
        position = keys[layer].shape[1]
        chosen = [range(position)] * HEADS
        if layer > 0:
            rehearsed = rotate(model.product(layer, "q", inputs[layer - 1]), [position])
            speculated = np.stack([
                (rehearsed[head, 0] @ parts[layer, head]) @ (keys[layer][head // GROUP] @ parts[layer, head]).T * SCALE
                for head in range(HEADS)])
            near = (speculated >= speculated.max(axis=-1, keepdims=True) - ALPHA).sum(axis=-1).mean()
            count = max(1, min(int(near), int(BUDGET * position)))
            counts.append(count)
            chosen = np.argsort(-speculated, axis=-1, kind="stable")[:, :count]
        inputs[layer] = h
        keys[layer] = np.concatenate([keys[layer], rotate(k, [position])], axis=1)
        values[layer] = np.concatenate([values[layer], v], axis=1)
        out = np.zeros_like(q)
        for head in range(HEADS):
            read = sorted(int(i) for i in chosen[head]) + [position]
            weights = softmax(rotate(q[head:head + 1], [position])[0] @ keys[layer][head // GROUP, read].T * SCALE)
            out[head] = weights @ values[layer][head // GROUP, read]
        return out

    for token in ids[PROMPT:]:
        logits.append(model.forward([token], token_attention)[-1])
    assert min(counts) < int(BUDGET * PROMPT)  # the threshold matters, and not the limit alone
    assert LAYERS == 6
    return {f"budget={BUDGET}:alpha={ALPHA}:channels={CHANNELS}": {"prompt": PROMPT, "logits": packed_logits(logits)}}
