#!/usr/bin/env python3
"""Prints prompts whose long answers can be checked, for tessera-load's workload `file`: each asks for a list once more.

    python3 bench/served/copied_lists.py --prompts 60 --lines 24 > lists.jsonl

An answer is right if it has the last line, so a model must copy all lines before it in their order.
"""

import argparse
import json
import random

NAMES = "Martha Henry Alice Robert Clara Edwin Grace Walter Helen Arthur Louisa Frederick Emma Oliver Julia Simon".split()
THINGS = "lamp chair kettle ladder violin blanket mirror basket hammer clock bottle carpet trumpet bucket candle rope".split()
COLORS = "red blue green yellow white black brown grey purple orange".split()


def fact(chance):
    return (f"{chance.choice(NAMES)} has a {chance.choice(COLORS)} {chance.choice(THINGS)} "
            f"that weighs {chance.randrange(10, 100)} grams.")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--prompts", type=int, default=60)
    parser.add_argument("--lines", type=int, default=24)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    chance = random.Random(args.seed)
    for _ in range(args.prompts):
        lines = [f"{i + 1}. {fact(chance)}" for i in range(args.lines)]
        text = "\n".join(lines)
        print(json.dumps({"prompt": f"A list of {args.lines} facts:\n{text}\n\nThe same list once more:\n1.",
                          "answer": lines[-1]}))


if __name__ == "__main__":
    main()
