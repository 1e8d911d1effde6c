#!/usr/bin/env python3
"""Runs tessera-eval over the sparse formats, in the shape of MUSTAFAR's tables 4 to 6.

    python3 eval/sparsity_table.py --model models/checkpoints/tessera-tiny

prints two tables in Markdown: sparsity by what is pruned (keys, values, both), for what is kept in f16
and in codes of 8 and 4 bits, and beside token dropping; then the presets that nothing beats in both
bytes and KL divergence, LeanKV's and the dense ones among them. With --resume FILE an interrupted run
goes on.
"""

import argparse
import json
import subprocess
import tempfile
from pathlib import Path

SPARSITIES = (50, 70, 80, 90)
KEPT = ("f16", "k8v8", "k4v4")
DENSE = ("k8v8", "k8v4", "k4v4", "k4v2")
OTHERS = ("leankv", "leankv-aggressive", "s50-k8v4", "s70-k8v4")
DROPPING = "h2o:keep_share=0.5"
DROPPED = ("s50v0", "s70v0", "s0v50", "s0v70", "s50", "s70")
SURVIVORS = (
    "leankv:low=s50-k4v4",
    "leankv:low=s70-k4v4",
    "leankv:high=s50-k8v8:low=s70-k4v4",
)


def sides(percent: int) -> tuple[str, str, str]:
    return f"s{percent}v0", f"s0v{percent}", f"s{percent}"


def pruned(name: str, kept: str) -> str:
    return name if kept == "f16" else f"{name}-{kept}"


def dropping(name: str) -> str:
    return f"{DROPPING}:high={name}:low={name}"


def presets() -> list[str]:
    names = [*DENSE, *OTHERS]
    names += [pruned(s, kept) for kept in KEPT for p in SPARSITIES for s in sides(p)]
    names += [DROPPING, *(dropping(name) for name in DROPPED), *SURVIVORS]
    return names


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--eval", default="build/release/bin/tessera-eval", help="the binary")
    parser.add_argument("--model", required=True)
    parser.add_argument("--tasks", default="text,passkey")
    parser.add_argument("--lengths", default="512,1500", help="tokens of a question")
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
        self.kl = {preset["name"]: preset["kl_mean"] for preset in report["presets"][1:]}
        self.reference = report["presets"][0]["name"]
        recall = [task for task in report["tasks"] if task["name"] != "text"]
        self.kv = recall[0]["kv"] if recall else report["tasks"][0]["kv"]
        self.metrics = [
            metric["scores"]
            for task in recall
            for metric in task["metrics"]
            if metric["name"].startswith("accuracy")
        ]

    def share(self, name: str) -> float:
        def count(preset: str) -> float:
            return self.kv[preset]["bytes_per_token"]

        return 100 * count(name) / count(self.reference)

    def recall(self, name: str) -> str:
        values = [scores[name]["value"] for scores in self.metrics]
        return f"{sum(values) / len(values):.0f}" if values else "-"

    def cell(self, name: str) -> str:
        return f"{self.kl[name]:.4f} / {self.recall(name)} / {self.share(name):.0f}"

    def front(self) -> list[str]:
        best, names = float("inf"), []
        for name in sorted(self.kl, key=lambda n: (self.share(n), self.kl[n])):
            if self.kl[name] < best:
                best = self.kl[name]
                names.append(name)
        return names


def print_row(cells: list[str]) -> None:
    print("| " + " | ".join(cells) + " |")


def print_tables(scores: Scores) -> None:
    print("KL mean in nats / recall in % / bytes in % of f16's\n")
    print_row(["pruned", *(f"kept in {kept}" for kept in KEPT)])
    print_row(["---"] * (1 + len(KEPT)))
    for percent in SPARSITIES:
        for side, name in zip(("keys", "values", "both"), sides(percent), strict=True):
            print_row(
                [f"{side} {percent} %", *(scores.cell(pruned(name, kept)) for kept in KEPT)]
            )
    print("\n")
    print_row(["preset", "KL / recall / bytes"])
    print_row(["---"] * 2)
    names = [*DENSE, *OTHERS, DROPPING, *(dropping(name) for name in DROPPED), *SURVIVORS]
    for name in names:
        print_row([f"`{name}`", scores.cell(name)])
    print("\nOn the front of bytes and KL: " + ", ".join(f"`{name}`" for name in scores.front()))


if __name__ == "__main__":
    print_tables(Scores(run(parse_arguments())))
