#!/usr/bin/env python3
"""Searches the parameters of a policy for the fewest bytes at a given quality.

    python3 eval/search_policy.py --model models/checkpoints/tessera-tiny --text novels.txt \\
        --vary alpha_high=4,1000 --vary alpha_low=1,3,10 --vary score_pool=15,31

Runs tessera-eval over all combinations of the values, in rounds. The first round has all of them
and few questions. Each further round has the cheapest that passed, with four times the questions
and another seed, so that a lucky result does not persist. Two aims are pursued at once:

    lossless   the divergence from f16 is below 0.01 nats at positions that read a cache that the policy
               changed, and less than 2 % of f16's right answers are lost
    near       less than 5 % of f16's right answers are lost, and perplexity is at most 105 % of f16's

A search goes by the values themselves, because few questions prove nothing; the last column is
tessera-eval's verdict, which goes by their bounds. All data is that of `--split tuning`: report a
result on `--split reporting`.

With --ahead, recall uses questions at the end of the prompt only, which the policy sees before it
drops anything. Otherwise it also uses questions that come later, in another turn. Bytes are all
allocated bytes of the recall questions, as a share of f16's.
"""

import argparse
import itertools
import json
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

AHEAD = ("passkey", "multikey", "json")
LATER = ("later",)


@dataclass
class Result:
    name: str
    share: float  # bytes, relative to f16
    lost: float  # of f16's right answers
    perplexity: float  # relative to f16
    kl: float  # at positions that read a cache that the policy changed
    verdict: str

    def holds(self, aim: str) -> bool:
        if aim == "lossless":
            return self.lost < 0.02 and self.kl < 0.01
        return self.lost < 0.05 and self.perplexity <= 1.05


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--eval", default="build/release/bin/tessera-eval", help="the binary")
    parser.add_argument("--model", required=True)
    parser.add_argument("--text", help="held-out text; default: the one that ships")
    parser.add_argument("--base", default="leankv", help="preset whose numbers are varied")
    parser.add_argument("--vary", action="append", required=True, metavar="FIELD=VALUE,...")
    parser.add_argument("--beside", default="", help="presets to show beside, in every round")
    parser.add_argument("--length", type=int, default=1500, help="tokens of a question")
    parser.add_argument("--samples", type=int, default=1, help="of each depth, in the first round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--keep", type=int, default=6, help="of each aim, after the first round")
    parser.add_argument("--seed", type=int, default=0, help="of the first round's questions")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--ahead", action="store_true", help="ask no question later")
    options = parser.parse_args()
    options.recall = AHEAD if options.ahead else AHEAD + LATER
    return options


def candidates(base: str, varied: list[str]) -> list[str]:
    fields = [field.split("=", 1) for field in varied]
    names = [name for name, _ in fields]
    values = [value.split(",") for _, value in fields]
    return [
        ":".join([base, *(f"{name}={value}" for name, value in zip(names, chosen))])
        for chosen in itertools.product(*values)
    ]


def evaluate(options: argparse.Namespace, names: list[str], samples: int, seed: int) -> dict:
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = [options.eval, "--model", options.model, "--json", str(report)]
        command += ["--tasks", ",".join(("text", *options.recall)), "--lengths", str(options.length)]
        command += ["--samples", str(samples), "--seed", str(seed)]
        command += ["--split", "tuning"]
        command += ["--threads", str(options.threads), "--kv", ",".join(names)]
        if options.text:
            command += ["--text", options.text]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        return json.loads(report.read_text())


def read_results(report: dict, tasks_of_recall: tuple[str, ...]) -> list[Result]:
    tasks = {task["name"]: task for task in report["tasks"]}
    reference = report["presets"][0]["name"]

    def score(task: str, metric: str, preset: str) -> float:
        metrics = {metric["name"]: metric for metric in tasks[task]["metrics"]}
        return metrics[metric]["scores"][preset]["value"]

    def lost(preset: str) -> float:
        return sum(score(task, "lost", preset) for task in tasks_of_recall) / len(tasks_of_recall) / 100

    def kv_bytes(preset: str) -> float:
        return sum(tasks[task]["kv"][preset]["bytes_per_token"] for task in tasks_of_recall)

    def perplexity(preset: str) -> float:
        return score("text", "perplexity", preset)

    return [
        Result(
            preset["name"],
            kv_bytes(preset["name"]) / kv_bytes(reference),
            lost(preset["name"]),
            perplexity(preset["name"]) / perplexity(reference),
            score("text", "KL mean, acted", preset["name"]),
            preset["judgement"]["verdict"],
        )
        for preset in report["presets"][1:]
    ]


def show(results: list[Result]) -> None:
    print(f"{'bytes':>7} {'lost':>7} {'ppl':>7} {'KL':>9}  holds           verdict    policy")
    for result in results:
        aims = ", ".join(aim for aim in ("lossless", "near") if result.holds(aim))
        print(
            f"{result.share:7.1%} {result.lost:7.1%} {result.perplexity:7.1%} {result.kl:9.2g}"
            f"  {aims:14}  {result.verdict:9}  {result.name}",
            flush=True,
        )


def main() -> None:
    options = parse_arguments()
    names = candidates(options.base, options.vary)
    beside = [name for name in options.beside.split(",") if name]
    for number in range(options.rounds):
        samples = options.samples * 4**number
        print(f"round {number + 1}: {len(names)} policies, {samples * 5 * len(options.recall)} questions")
        report = evaluate(options, [*beside, *names], samples, options.seed + number)
        results = sorted(read_results(report, options.recall), key=lambda result: result.share)
        show(results)
        own = [result for result in results if result.name in names]
        keep = max(1, options.keep // 2**number)
        kept = [
            [result.name for result in own if result.holds(aim)][:keep]
            for aim in ("lossless", "near")
        ]
        for aim, best in zip(("lossless", "near"), kept):
            print(f"fewest bytes, {aim}: {best[0] if best else 'none holds'}\n", flush=True)
        names = sorted({name for group in kept for name in group})
        if not names:
            break


if __name__ == "__main__":
    main()
