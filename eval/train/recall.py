"""Held-out recall: the questions that are scored, during training and at its end.

Greedy decoding reproduces an answer exactly if and only if every token of it is the most likely one
after the tokens before it. So one forward pass over prompt and answer gives the result of decoding.
"""

from collections.abc import Callable

import torch

from haystack import FORMS, PASS_KEY, Haystack, Recall
from samples import Sample

SCORED = {
    "pass-key": Recall(PASS_KEY, "plain", "word", "number", filler=1.0),
    "key-value": Recall(FORMS["key"], "plain", "word", "number", filler=0.0),
    "json": Recall(FORMS["json"], "plain", "hex", "hex", filler=0.0),
    "chat": Recall(FORMS["key"], "chat", "name", "number", filler=0.7),
}
QUICK = 32  # questions per kind


def question(haystack: Haystack, recall: Recall, length: int) -> Sample:
    """Returns one query; context, query and answer have about, at most, `length` tokens."""
    while True:
        sample = haystack.sample(length - 1, recall)
        if len(sample) <= length:
            return sample


def exact(predicted: torch.Tensor, sample: Sample) -> bool:
    """True if greedy decoding writes every answer of the sample; predicted[i] follows token i."""
    ids = torch.tensor(sample.ids)
    return all(bool((predicted[a - 1 : b - 1] == ids[a:b]).all()) for a, b in sample.answers)


def quick_recall(logits: Callable, haystack: Haystack, rows: int, length: int) -> dict[str, float]:
    """Returns the share of exact answers per kind, in batches of the training's own shape."""
    scores, batches = {}, max(1, QUICK // rows)
    for name, recall in SCORED.items():
        right = 0
        for _ in range(batches):
            samples = [question(haystack, recall, length) for _ in range(rows)]
            ids = torch.tensor([sample.ids + [0] * (length - len(sample)) for sample in samples])
            predicted = logits(ids).argmax(-1)
            right += sum(exact(row, sample) for row, sample in zip(predicted, samples))
        scores[name] = right / (batches * rows)
    return scores
