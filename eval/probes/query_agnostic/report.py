"""Prints the results of probe.py as a table with paired 95 % intervals, drawn by context.

python report.py results.jsonl
"""

import argparse
import collections
import json
import random

from selection import bytes_share

DRAWS = 2000


def interval(contexts, draw):
    """contexts: [(numerator, denominator)]. Returns the ratio of sums and its middle 95 %."""

    def ratio(chosen):
        of = sum(d for _, d in chosen)
        return sum(n for n, _ in chosen) / of if of else float("nan")

    drawn = sorted(ratio(draw.choices(contexts, k=len(contexts))) for _ in range(DRAWS))
    return ratio(contexts), drawn[DRAWS // 40], drawn[-DRAWS // 40]


def read(path):
    """Returns: {method: {context: line}}, with the contexts that all methods have."""
    methods = collections.defaultdict(dict)
    for text in open(path):
        line = json.loads(text)
        methods[line["method"], line["stored"], line["share"]][line["context"]] = line
    common = set.intersection(*(set(of) for of in methods.values()))
    return {key: {c: of[c] for c in sorted(common)} for key, of in methods.items()}, sorted(common)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("results")
    methods, contexts = read(parser.parse_args().results)
    full = methods["-", "f16", "-"]
    right = {c: [a["right"] for a in full[c]["answers"]] for c in contexts}
    asked = sum(len(r) for r in right.values())
    print(
        f"{len(contexts)} contexts, {asked} questions, the full cache answers {sum(map(sum, right.values()))}\n"
    )
    print(
        "| score | basis | heads | stored | tokens, % | bytes, % of f16 | answers kept, % | KL, nats |"
    )
    print("|---|---|---|---|--:|--:|--:|--:|")
    rows = []
    for (method, stored, _), of in methods.items():
        draw = random.Random(0)
        kept = [
            (sum(a["right"] for a, r in zip(of[c]["answers"], right[c]) if r), sum(right[c]))
            for c in contexts
        ]
        kl = [(sum(a["kl"] for a in of[c]["answers"]), len(of[c]["answers"])) for c in contexts]
        share = sum(of[c]["kept"] for c in contexts) / len(contexts)
        bits = (16, 16) if stored == "f16" else (int(stored[1]), int(stored[3]))
        size = share * (1 if stored == "f16" else bytes_share(*bits))
        names = method.split(", ") if method != "-" else ["-", "-", "-"]
        rows.append((size, names, stored, share, interval(kept, draw), interval(kl, draw)))
    for size, names, stored, share, kept, kl in sorted(rows, key=lambda row: (row[0], row[5][0])):
        answers = f"{100 * kept[0]:.0f} [{100 * kept[1]:.0f}, {100 * kept[2]:.0f}]"
        distance = f"{kl[0]:.4f} [{kl[1]:.4f}, {kl[2]:.4f}]"
        print(
            f"| {' | '.join(names)} | {stored} | {100 * share:.0f} | {100 * size:.1f} | {answers} | {distance} |"
        )


if __name__ == "__main__":
    main()
