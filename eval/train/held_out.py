"""Prints text of the held-out novels for perplexity: equal parts from the middle of each.

    python held_out.py --data DATA [--characters 60000] > novels.txt
"""

import argparse
from pathlib import Path

from corpus import HELD_OUT_NOVELS, read_novels


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--characters", type=int, default=60_000, help="in all")
    options = parser.parse_args()
    novels = read_novels(options.data)
    each = options.characters // len(HELD_OUT_NOVELS)
    for name in HELD_OUT_NOVELS:
        middle = (len(novels[name]) - each) // 2
        print(novels[name][middle : middle + each])


if __name__ == "__main__":
    main()
