#!/usr/bin/env python3
"""Joins the results of eval/real_checkpoints.sh: tables in Markdown, joint verdicts and a plot.

    python3 eval/checkpoints_report.py FOLDER [--plot FILE.png]

Reads MODEL.prose.json, MODEL.code.json and MODEL.answers.json of FOLDER. Reads peers.csv too, if it is there: rows of
other programs on the same files and texts, with the columns model,program,text,k,v,mean_kl,mean_kl_err,p99_kl,same_top.
The plot needs matplotlib.
"""

import argparse
import csv
import json
from dataclasses import dataclass
from pathlib import Path

# Name, title and make. Checkpoints of one make share data and architecture, so they share weaknesses.
CHECKPOINTS = (
    ("smollm2-135m", "SmolLM2-135M", "SmolLM2"),
    ("qwen2.5-coder-0.5b", "Qwen2.5-Coder-0.5B", "Qwen2.5"),
    ("qwen2.5-coder-1.5b", "Qwen2.5-Coder-1.5B", "Qwen2.5"),
)
REFERENCE = "f16"
# Bits for a channel of the types of llama.cpp and ik_llama.cpp.
PEER_BITS = {"q8_0": 8.5, "q5_1": 6, "q4_0": 4.5}
PLOTTED_PEERS = (("q8_0", "q8_0"), ("q8_0", "q4_0"), ("q5_1", "q5_1"), ("q4_0", "q4_0"))


@dataclass(frozen=True)
class Result:
    """One checkpoint's results: the JSON of one tessera-eval."""
    name: str
    title: str
    make: str
    json: dict

    def presets(self):
        return {preset["name"]: preset for preset in self.json["presets"]}

    def scores(self, task, metric):
        for one in task["metrics"]:
            if one["name"] == metric:
                return one["scores"]
        return {}


def joint_verdict(verdicts):
    """The verdict that a document may state without the name of a model.

    verdicts: (make, verdict) of each checkpoint. Lossless or near on one make alone is undecided, and the worst
    checkpoint decides.
    """
    named = [verdict for _, verdict in verdicts]
    if "no" in named:
        return "no"
    if not named or "undecided" in named or len({make for make, _ in verdicts}) < 2:
        return "undecided"
    return "near" if "near" in named else "lossless"


def read(folder, suffix):
    found = []
    for name, title, make in CHECKPOINTS:
        path = folder / f"{name}.{suffix}.json"
        if path.exists():
            found.append(Result(name, title, make, json.loads(path.read_text())))
    return found


def rounded(number):
    return f"{number:.2g}" if number < 0.0995 else f"{number:.2f}"


def verdict_of(result, preset):
    judgement = result.presets().get(preset, {}).get("judgement")
    return judgement["verdict"] if judgement else "undecided"


def text_table(results):
    names = [name for name in results[0].presets() if name != REFERENCE]
    lines = ["| KV | " + " | ".join(f"{r.title}: KL | p99 | top, %" for r in results) + " | joint verdict |",
             "|---|" + "--:|--:|--:|" * len(results) + "---|"]
    for name in names:
        cells = []
        for result in results:
            task = result.json["tasks"][0]
            kl = result.scores(task, "KL mean, decode")[name]
            p99 = result.scores(task, "KL p99")[name]
            top = result.scores(task, "top-1 agreement")[name]
            cells.append(f"{rounded(kl['value'])} ({rounded(kl['low'])} to {rounded(kl['high'])}) | "
                         f"{rounded(p99['value'])} | {top['value']:.1f}")
        verdict = joint_verdict([(r.make, verdict_of(r, name)) for r in results])
        lines.append(f"| {name} | " + " | ".join(cells) + f" | {verdict} |")
    return "\n".join(lines)


def answers_table(result):
    """Rows of tasks: the share of right answers of each preset, and of f16's right answers that it loses."""
    names = list(result.presets())
    lines = [f"{result.title}, right answers in percent with 95 % intervals",
             "", "| task | items | " + " | ".join(names) + " |", "|---|--:|" + "--:|" * len(names)]
    for task in result.json["tasks"]:
        scores = result.scores(task, "accuracy")
        if not scores:
            continue
        cells = [f"{s['value']:.0f} ({s['low']:.0f} to {s['high']:.0f})" if (s := scores.get(name)) else ""
                 for name in names]
        lines.append(f"| {task['name']} | {task['items']} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def read_peers(folder):
    path = folder / "peers.csv"
    if not path.exists():
        return []
    with path.open() as file:
        return [row for row in csv.DictReader(file) if row["mean_kl"] not in ("", "failed")]


def peers_table(peers):
    lines = ["| model | text | program | keys / values | KL | p99 | top, % |", "|---|---|---|---|--:|--:|--:|"]
    for row in peers:
        lines.append(f"| {row['model']} | {row['text']} | {row['program']} | {row['k']} / {row['v']} | "
                     f"{rounded(float(row['mean_kl']))} | {rounded(float(row['p99_kl']))} | {float(row['same_top']):.1f} |")
    return "\n".join(lines)


def plot(results, peers, path):
    """Writes one panel for each checkpoint: bytes of the KV cache against divergence."""
    import matplotlib
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(1, len(results), figsize=(5 * len(results), 4.6), sharey=True, squeeze=False)
    for panel, result in zip(panels[0], results):
        presets = result.presets()
        scores = result.scores(result.json["tasks"][0], "KL mean, decode")
        whole = presets[REFERENCE]["kv"]["bytes_per_token"]
        for name, preset in presets.items():
            if name == REFERENCE:
                continue
            x, y = 100 * preset["kv"]["bytes_per_token"] / whole, scores[name]["value"]
            drops = name.startswith(("replay", "leankv"))
            panel.plot(x, y, "^" if drops else "o", color="#b3430b" if drops else "#00785a")
            panel.annotate(name, (x, y), textcoords="offset points", xytext=(5, 3), fontsize=8)
        for row in peers:
            pair = (row["k"], row["v"])
            if (row["model"], row["text"]) != (result.name, "prose") or pair not in PLOTTED_PEERS:
                continue
            x, y = 100 * sum(PEER_BITS[side] for side in pair) / 32, float(row["mean_kl"])
            panel.plot(x, y, "x", color="#555")
            panel.annotate(f"{row['program'].split('_')[0].split('.')[0]} {'/'.join(pair)}", (x, y),
                           textcoords="offset points", xytext=(5, -8), fontsize=7, color="#555")
        panel.axhline(0.05, color="#999", linewidth=0.7, linestyle="--")
        panel.set_yscale("log")
        panel.set_xlim(10, 62)
        panel.set_title(result.title, fontsize=10)
        panel.set_xlabel("bytes of the KV cache, % of f16")
    panels[0][0].set_ylabel("mean KL from f16, nats (lower is better)")
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--plot", type=Path, help="file of the plot")
    arguments = parser.parse_args()
    for text in ("prose", "code"):
        results = read(arguments.folder, text)
        if results:
            print(f"## {text}\n\n{text_table(results)}\n")
    for result in read(arguments.folder, "answers"):
        print(answers_table(result) + "\n")
    peers = read_peers(arguments.folder)
    if peers:
        print(f"## Other programs\n\n{peers_table(peers)}\n")
    prose = read(arguments.folder, "prose")
    if arguments.plot and prose:
        plot(prose, peers, arguments.plot)


if __name__ == "__main__":
    main()
