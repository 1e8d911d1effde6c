"""Rows of training tokens: each belongs to one task and is packed with its samples."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from haystack import Haystack
from material import Material
from samples import Sample
from tasks import Tasks

SHORTEST = 48  # tokens; a shorter rest of a row is filled with text


def recipes(material: Material) -> dict[str, Callable[[int], Sample]]:
    """Returns every task name of a stage's mixture, as a function of a token budget."""
    tasks, haystack = Tasks(material), Haystack(material)
    return {
        "text": tasks.text,
        "story": tasks.story,
        "repeat": tasks.repeat,
        "copy": tasks.copy,
        "count": tasks.count,
        "dense": lambda budget: haystack.random(budget, asked=0.6, filler=0.0),
        "sparse": lambda budget: haystack.random(budget, asked=0.15, filler=1.0),
    }


@dataclass
class Batch:
    inputs: np.ndarray  # [rows, length]
    targets: np.ndarray
    weights: np.ndarray
    tasks: list[str]  # one per row


class Packer:
    def __init__(self, material: Material, mixture: dict[str, float]):
        self.recipes, self.mixture, self.rng = recipes(material), mixture, material.rng

    def row(self, task: str, length: int) -> Sample:
        row = Sample()
        while (left := length - len(row)) > 0:
            budget = max(SHORTEST, min(left, length // self.rng.choice((1, 1, 2, 4))))
            row.add(self.recipes[task](budget) if left > SHORTEST else self.recipes["text"](left))
        return row

    def batch(self, rows: int, length: int) -> Batch:
        names = self.rng.choices(list(self.mixture), list(self.mixture.values()), k=rows)
        samples = [self.row(name, length + 1) for name in names]
        ids = np.array([sample.ids[: length + 1] for sample in samples], dtype=np.int64)
        weights = np.array([sample.weights[1 : length + 1] for sample in samples], dtype=np.float32)
        return Batch(ids[:, :-1], ids[:, 1:], weights, names)
