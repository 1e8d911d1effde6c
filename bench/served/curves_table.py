#!/usr/bin/env python3
"""Prints reports of tessera-load's --rates as a Markdown table: curves_table.py LABEL=REPORT..."""

import json
import pathlib
import sys

MIB = 1 << 20


def cell(point):
    answers = point["answers"]
    correct = f"{100 * answers['correct'] / answers['checked']:.0f} %" if answers["checked"] else "-"
    return f"{1e3 * point['ttft_p90']['value']:.0f} ms, {correct}"


def main():
    reports = {label: json.loads(pathlib.Path(file).read_text())
               for label, file in (given.split("=", 1) for given in sys.argv[1:])}
    first = next(iter(reports.values()))
    print(f"`{first['command'].split(' --json')[0]}`, {first['machine']}\n")
    rates = sorted(point["rate"] for point in first["sweep"]["points"])
    print("| | " + " | ".join(f"{rate:g} requests/s" for rate in rates)
          + " | KV of a request | KV in use, most |")
    print("|---|" + "--:|" * (len(rates) + 2))
    for label, report in reports.items():
        points = {point["rate"]: point for point in report["sweep"]["points"]}
        of_request = [point["kv_bytes_per_request"] for point in points.values()
                      if point["kv_bytes_per_request"] is not None]
        most = max(point["most_kv_bytes"] for point in points.values())
        print(f"| {label} | " + " | ".join(cell(points[rate]) for rate in rates)
              + f" | {sum(of_request) / len(of_request) / MIB:.2f} MiB | {most / MIB:.1f} MiB |")


if __name__ == "__main__":
    main()
