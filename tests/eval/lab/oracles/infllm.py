"""InfLLM, section 3, by plain matrices: a chunk of the prompt, or a token, at a time."""

import numpy as np

from shipped_model import GROUP, HEADS, LAYERS, SCALE, Matrices, packed_logits, rotate, softmax, tokens_of

PROMPT, TOKENS, BLOCK, REPRESENTATIVES, CHUNK, BUDGET = 160, 180, 8, 2, 24, 0.4


class Layer:
    def __init__(self, first, window, read):
        self.first, self.window, self.read = first, window, read
        self.k = self.v = None
        self.received = np.zeros((HEADS, TOKENS))
        self.blocks = []  # mean representative key of each query head

    def attend(self, q, k, v):
        begin = 0 if self.k is None else self.k.shape[1]
        self.k = k if begin == 0 else np.concatenate([self.k, k], axis=1)
        self.v = v if begin == 0 else np.concatenate([self.v, v], axis=1)
        mean = rotate(q, np.full(q.shape[1], self.window)).mean(axis=1)
        relevance = np.array([(mean * block).sum() for block in self.blocks])
        chosen = sorted(np.argsort(-relevance, kind="stable")[:self.read].tolist())
        old = list(range(self.first)) + [self.first + b * BLOCK + i for b in chosen for i in range(BLOCK)]
        rest = self.first + len(self.blocks) * BLOCK
        out = np.zeros_like(q)
        for row in range(q.shape[1]):
            position = begin + row
            read = [i for i in old if i <= position] + list(range(rest, position + 1))
            local = np.array([i > position - self.window for i in read])
            for head in range(HEADS):
                keys = self.k[head // GROUP, read]
                query = q[head, row:row + 1]
                near = rotate(query[None], [position])[0, 0] @ rotate(keys[None], read)[0].T
                far = rotate(query[None], [self.window])[0, 0] @ keys.T
                weights = softmax(np.where(local, near, far) * SCALE)
                out[head, row] = weights @ self.v[head // GROUP, read]
                for i, weight, is_local in zip(read, weights, local):
                    if is_local and i != position:
                        self.received[head, i] += weight
        return out

    def form_blocks(self):
        tokens = self.k.shape[1]
        while (first := self.first + len(self.blocks) * BLOCK) + BLOCK <= tokens + 1 - self.window:
            block = []
            for head in range(HEADS):
                best = np.argsort(-self.received[head, first:first + BLOCK], kind="stable")[:REPRESENTATIVES]
                block.append(self.k[head // GROUP, first + best].mean(axis=0))
            self.blocks.append(np.stack(block))


def golden(_prompt):
    read = BUDGET * PROMPT
    first, window = max(1, int(128 / 6272 * read)), int(4096 / 6272 * read)
    blocks = max(1, int(2048 / 6272 * read) // BLOCK)
    layers = [Layer(first, window, blocks) for _ in range(LAYERS)]
    model, ids, logits = Matrices(), tokens_of(TOKENS), []
    pieces = [ids[i:min(i + CHUNK, PROMPT)] for i in range(0, PROMPT, CHUNK)] + [[token] for token in ids[PROMPT:]]
    for piece in pieces:
        logits.append(model.forward(piece, lambda layer, _input, q, k, v: layers[layer].attend(q, k, v))[-1])
        for layer in layers:
            layer.form_blocks()
    assert len(layers[0].blocks) > blocks
    logits = logits[-(TOKENS - PROMPT) - 1:]
    return {f"budget={BUDGET}:block={BLOCK}:representatives={REPRESENTATIVES}:chunk={CHUNK}": {
        "prompt": PROMPT, "logits": packed_logits(logits)}}
