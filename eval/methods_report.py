#!/usr/bin/env python3
"""Prints one Markdown table of methods from the reports of tessera-eval --method ... --json, one report a model.

    methods_report.py MODEL=FILE.json ...

A row has the bytes of KV beside full attention in f16, the mean divergence behind a prompt of prose, and the answers
that full attention gives and the method loses: asked at the prompt's end, later, and in turns.
"""

import json
import sys

TASKS = {"materials-end": "end", "materials-later": "later", "materials-turns": "turns"}


def score(task, metric, name):
    scores = {entry["name"]: entry["scores"] for entry in task["metrics"]}.get(metric, {})
    return scores.get(name)


def cells(report, name):
    """Returns: share of bytes, divergence with its interval, and lost answers by task, as text."""
    tasks = {task["name"]: task for task in report["tasks"]}
    kv = {preset["name"]: preset["kv"]["bytes_per_token"] for preset in report["presets"]}
    row = [f"{100 * kv[name] / kv['full']:.0f}"]
    divergence = score(tasks["continuation"], "KL mean", name)
    row.append("" if divergence is None else f"{divergence['value']:.3f}")
    for task in TASKS:
        lost = score(tasks[task], "lost", name) if task in tasks else None
        row.append("" if lost is None else f"{lost['value']:.0f}")
    return row


def main():
    reports = {}
    for argument in sys.argv[1:]:
        model, _, path = argument.partition("=")
        with open(path, encoding="utf-8") as file:
            reports[model] = json.load(file)
    if not reports:
        sys.exit(__doc__)
    columns = ["bytes, %", "KL", *(f"lost {short}, %" for short in TASKS.values())]
    print("| method | " + " | ".join(f"{model}: {column}" for model in reports for column in columns) + " |")
    print("|---|" + "--:|" * (len(columns) * len(reports)))
    names = dict.fromkeys(preset["name"] for report in reports.values() for preset in report["presets"])
    for name in names:
        if name == "full":
            continue
        row = [cells(report, name) if any(preset["name"] == name for preset in report["presets"])
               else [""] * len(columns) for report in reports.values()]
        print(f"| `{name}` | " + " | ".join(cell for own in row for cell in own) + " |")


if __name__ == "__main__":
    main()
