#!/usr/bin/env python3
"""Runs tessera-eval over the sparse formats, in the shape of MUSTAFAR's tables.

    python3 eval/sparsity_table.py --model models/checkpoints/tessera-tiny

Prints tables in Markdown:
- sparsity by pruned side (keys, values, both), with the rest in f16 or in codes of 8 and 4 bits
- keys pruned by magnitude and by query weights, after a prompt that is read dense
- dense formats, sparsity beside token dropping, and more or fewer dense newest tokens
- the presets on the Pareto front of bytes and divergence, or of bytes and recall; candidates
  include LeanKV's and the dense presets

With --resume FILE an interrupted run continues.
"""

import argparse
import json
import subprocess
import tempfile
from pathlib import Path

SPARSITIES = (50, 70, 80, 90)
KEPT = ("f16", "k4v4")
DENSE = ("k8v8", "k8v4", "k4v4", "k4v2", "leankv")
NEWEST = ("s50:newest=0", "s50:newest=64", "s70:newest=0", "s70:newest=64")
DROPPING = "snapkv:keep_share=0.5"
DROPPED = ("s50v0", "s70v0", "s0v50", "s0v70", "s50", "s70", "s50-k4v4")
SURVIVORS = ("leankv:low=s50-k4v4", "leankv:low=s70-k4v4", "leankv:high=s50:low=s70-k4v4")
PRUNED_LATER = ("s50v0", "s70v0", "s80v0", "s90v0", "s50", "s70", "s70-k4v4")
OUTPUT_AWARE = ":key_score=output_aware"


def sides(percent: int) -> tuple[str, str, str]:
    return f"s{percent}v0", f"s0v{percent}", f"s{percent}"


def pruned(name: str, kept: str) -> str:
    return name if kept == "f16" else f"{name}-{kept}"


def later(name: str) -> str:
    return f"mustafar-70:low={name}"


def dropping(name: str) -> str:
    return f"{DROPPING}:low={name}:high_share=0"


def listed() -> list[str]:
    """Returns the presets of the tables with one preset per row."""
    names = [*DENSE, *NEWEST, DROPPING, *(dropping(name) for name in DROPPED), *SURVIVORS]
    return [*names, dropping("s70") + OUTPUT_AWARE, SURVIVORS[0] + OUTPUT_AWARE]


def presets() -> list[str]:
    names = [pruned(s, kept) for kept in KEPT for p in SPARSITIES for s in sides(p)]
    for name in PRUNED_LATER:
        names += [later(name), later(name) + OUTPUT_AWARE]
    return [*names, *listed()]


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--eval", default="build/release/bin/tessera-eval", help="the binary")
    parser.add_argument("--model", required=True)
    parser.add_argument("--tasks", default="text,passkey,multikey,json")
    parser.add_argument("--lengths", default="1500", help="tokens of a question")
    parser.add_argument("--samples", default="1", help="questions of each depth and length")
    parser.add_argument("--threads", default="2")
    parser.add_argument("--resume", help="a journal to go on with")
    parser.add_argument("--report", help="a JSON report that there is already, instead of a run")
    return parser.parse_args()


def run(arguments: argparse.Namespace) -> dict:
    if arguments.report:
        return json.loads(Path(arguments.report).read_text())
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = [arguments.eval, "--model", arguments.model, "--kv", ",".join(presets())]
        for name in ("tasks", "lengths", "samples", "threads", "resume"):
            value = getattr(arguments, name)
            command += [f"--{name}", value] if value else []
        subprocess.run([*command, "--json", str(report)], check=True)
        return json.loads(report.read_text())


class Scores:
    """A preset's bytes, divergence and recall, from a report."""

    def __init__(self, report: dict):
        tasks = {task["name"]: task for task in report["tasks"]}
        text = {metric["name"]: metric["scores"] for metric in tasks.pop("text")["metrics"]}
        self.names = [preset["name"] for preset in report["presets"]]
        self.divergence = text["KL mean, decode"]
        self.questions = sum(task["items"] for task in tasks.values())
        self.asked = [(task["items"], self.accuracy_of(task)) for task in tasks.values()]
        self.kv = [task["kv"] for task in tasks.values()]

    @staticmethod
    def accuracy_of(task: dict) -> dict:
        return next(m["scores"] for m in task["metrics"] if m["name"] == "accuracy")

    def share(self, name: str) -> float:
        def count(preset: str) -> float:
            return sum(kv[preset]["bytes_per_token"] for kv in self.kv)

        return 100 * count(name) / count(self.names[0])

    def kl(self, name: str) -> float:
        return self.divergence[name]["value"] if name != self.names[0] else 0

    def recall(self, name: str) -> float:
        return sum(items * scores[name]["value"] for items, scores in self.asked) / self.questions

    def cell(self, name: str) -> str:
        return f"{self.kl(name):.4f} / {self.recall(name):.0f} / {self.share(name):.0f}"

    def front(self, cost) -> list[str]:
        """Returns the presets that no other preset with at most the same bytes beats."""
        best, names = float("inf"), []
        for name in sorted(self.names, key=lambda n: (self.share(n), cost(n))):
            if cost(name) < best:
                best = cost(name)
                names.append(name)
        return names


def print_row(cells: list[str]) -> None:
    print("| " + " | ".join(cells) + " |")


def print_header(cells: list[str]) -> None:
    print()
    print_row(cells)
    print_row(["---"] * len(cells))


def print_tables(scores: Scores) -> None:
    print(f"KL mean of decode steps in nats / recall in % of {scores.questions} questions / bytes in %")
    reference = scores.names[0]
    print(f"of {reference}'s; {reference} itself recalls {scores.recall(reference):.0f} %")
    print_header(["pruned", *(f"kept in {kept}" for kept in KEPT)])
    for percent in SPARSITIES:
        for side, name in zip(("keys", "values", "both"), sides(percent), strict=True):
            cells = [scores.cell(pruned(name, kept)) for kept in KEPT]
            print_row([f"{side} {percent} %", *cells])
    print_header(["`mustafar`, `low`", "by magnitude", "output-aware"])
    for name in PRUNED_LATER:
        cells = [scores.cell(later(name)), scores.cell(later(name) + OUTPUT_AWARE)]
        print_row([f"`{name}`", *cells])
    print_header(["preset", "KL / recall / bytes"])
    for name in listed():
        print_row([f"`{name}`", scores.cell(name)])
    fronts = {"KL": scores.kl, "recall": lambda name: -scores.recall(name)}
    for what, cost in fronts.items():
        names = ", ".join(f"`{name}`" for name in scores.front(cost))
        print(f"\nOn the front of bytes and {what}: {names}")


if __name__ == "__main__":
    print_tables(Scores(run(parse_arguments())))
