#!/usr/bin/env python3
"""Writes the table of docs/kv-methods.md from the table of the laboratory (tessera-eval --list-methods).

    kv-methods.py EVAL           EVAL: the built tessera-eval
    kv-methods.py EVAL --check   exits with 1 if the page is not current
"""

import pathlib
import re
import subprocess
import sys

PAGE = pathlib.Path(__file__).resolve().with_suffix(".md")
BEGIN, END = "<!-- tessera-eval --list-methods -->\n", "<!-- end -->"


def main():
    table = subprocess.run([sys.argv[1], "--list-methods"], check=True, capture_output=True, text=True).stdout
    old = PAGE.read_text()
    new = re.sub(f"{BEGIN}.*?{END}", lambda _: BEGIN + "\n" + table + "\n" + END, old, flags=re.DOTALL)
    if "--check" in sys.argv:
        sys.exit(0 if new == old else f"{PAGE} is not current: run docs/kv-methods.py")
    PAGE.write_text(new)


if __name__ == "__main__":
    main()
