"""Scores an exported model on held-out material and prints the tables of the model card.

    python score.py MODEL --data DATA [--samples 200] [--lengths 128,256,512] [--processes 2]

Works on any Hugging Face Llama directory whose tokenizer has the chat symbols. f32, transformers.
"""

import argparse
import math
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

from corpus import read_corpus
from haystack import Haystack
from material import Material, Vocabulary
from recall import SCORED, exact, question
from samples import Sample
from tasks import Tasks
from tokenizer import BOS, Tokenizer

LENGTHS = "128,256,512,1024,1500,2000"
DEPTHS = (0.0, 0.25, 0.5, 0.75, 1.0)
SKILLS = {"copy": lambda tasks: tasks.copy(256), "count": lambda tasks: tasks.count(128)}
WINDOW = 512
SEED = 20


@dataclass(frozen=True)
class Job:
    """Inputs of every process."""

    model: Path
    data: Path
    samples: int
    lengths: tuple[int, ...]


class Scorer:
    def __init__(self, job: Job):
        torch.set_num_threads(1)
        self.job = job
        self.model = AutoModelForCausalLM.from_pretrained(job.model, dtype=torch.float32).eval()
        self.tokenizer = Tokenizer(job.model / "tokenizer.model")
        training, self.held_out = read_corpus(job.data)
        self.words = Vocabulary.of(training)

    def material(self) -> Material:
        """Returns newly seeded material, so that scores do not depend on their order."""
        return Material(self.tokenizer, self.held_out, self.words, True, SEED)

    @torch.no_grad()
    def predictions(self, sample: Sample) -> torch.Tensor:
        """Returns the most likely token after every token; logits only for checked answers."""
        hidden = self.model.model(torch.tensor([sample.ids])).last_hidden_state[0]
        predicted = torch.full((len(sample),), -1)
        for begin, end in sample.answers:
            predicted[begin - 1 : end - 1] = self.model.lm_head(hidden[begin - 1 : end - 1]).argmax(-1)
        return predicted

    def recall(self, kind: str, length: int) -> dict[float, list[bool]]:
        """Returns by depth: True for each exact answer. Depths share the samples evenly."""
        haystack, answers = Haystack(self.material()), {depth: [] for depth in DEPTHS}
        for i in range(self.job.samples):
            depth = DEPTHS[i % len(DEPTHS)]
            sample = question(haystack, replace(SCORED[kind], depth=depth), length)
            answers[depth].append(exact(self.predictions(sample), sample))
        return answers

    def skill(self, name: str) -> list[bool]:
        """Returns a list of bools, True for each exact answer of the samples."""
        tasks, answers = Tasks(self.material()), []
        for _ in range(self.job.samples):
            sample = SKILLS[name](tasks)
            predicted = self.predictions(sample)
            answers += [exact(predicted, replace(sample, answers=[answer])) for answer in sample.answers]
        return answers

    @torch.no_grad()
    def perplexity(self, source: str) -> tuple[float, float]:
        """Returns (per token, bits per byte), in disjoint windows; each begins with BOS."""
        loss, tokens, size = 0.0, 0, 0
        for text in getattr(self.held_out, source):
            text = text[:200_000]
            ids, size = self.tokenizer.encode(text), size + len(text.encode())
            for at in range(0, len(ids), WINDOW - 1):
                window = torch.tensor([BOS] + ids[at : at + WINDOW - 1])
                logits = self.model(window[None, :-1]).logits[0]
                loss += torch.nn.functional.cross_entropy(logits, window[1:], reduction="sum").item()
                tokens += len(window) - 1
        return math.exp(loss / tokens), loss / math.log(2) / size


scorer = lru_cache(Scorer)  # one per process


def score(job: Job, method: str, *what):
    return getattr(scorer(job), method)(*what)


def percent(answers: list[bool]) -> str:
    return f"{100 * sum(answers) / len(answers):.1f}"


def print_table(title: str, columns: Sequence, rows: dict[str, list[str]]):
    print(f"\n| {title} | " + " | ".join(map(str, columns)) + " |")
    print("|---" * (len(columns) + 1) + "|")
    for name, cells in rows.items():
        print(f"| {name} | " + " | ".join(cells) + " |", flush=True)


def print_recall(grid: dict[tuple[str, int], dict[float, list[bool]]], lengths: tuple[int, ...]):
    def cell(kinds: Iterable[str], length: int, depths: tuple[float, ...]) -> str:
        return percent([answer for k in kinds for depth in depths for answer in grid[k, length][depth]])

    print_table("exact answers, %", lengths, {k: [cell([k], n, DEPTHS) for n in lengths] for k in SCORED})
    rows = {f"{n} tokens": [cell(SCORED, n, (depth,)) for depth in DEPTHS] for n in lengths}
    print_table("all kinds, by depth", [f"{d:.0%}" for d in DEPTHS], rows)


def print_scores(job: Job, submit: Callable):
    longest_first = [(kind, length) for length in sorted(job.lengths, reverse=True) for kind in SCORED]
    grid = {(kind, length): submit(score, job, "recall", kind, length) for kind, length in longest_first}
    skills = {name: submit(score, job, "skill", name) for name in SKILLS}
    texts = {name: submit(score, job, "perplexity", name) for name in ("novels", "stories")}
    print_recall({cell: answers.result() for cell, answers in grid.items()}, job.lengths)
    print_table("other skills", ["exact answers, %"], {n: [percent(s.result())] for n, s in skills.items()})
    rows = {name: [f"{value:.3f}" for value in text.result()] for name, text in texts.items()}
    print_table("held-out text", ["perplexity per token", "bits per byte"], rows)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--samples", type=int, default=200)
    parser.add_argument("--lengths", default=LENGTHS)
    parser.add_argument("--processes", type=int, default=2)
    args = parser.parse_args()
    job = Job(args.model, args.data, args.samples, tuple(int(n) for n in args.lengths.split(",")))
    with ProcessPoolExecutor(args.processes) as pool:
        print_scores(job, pool.submit)


if __name__ == "__main__":
    main()
