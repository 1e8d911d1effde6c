#!/usr/bin/env python3
"""Names the test binaries of changed files: reads paths on stdin, prints NAME FILTER, one a line.
FILTER leaves the cases out that have the label long.

A test source affects the binaries that list it. A product file `engine/kv/kv_pool.cpp` affects the
binaries of `tests/engine` with a source whose name begins with `kv_pool`, or else the smallest set
that covers its folder: every binary of `tests/engine`. Headers of tests affect their whole folder.
"""

import itertools
import re
import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parent
LISTS = ("NO_ASAN", "NO_TSAN", "UNSANITIZED")  # filters of other labels
# Folders whose tests stand in the folder of the layer that reads them.
STATIONS = {"base": "text", "files": "models"}
TARGET = re.compile(r"tessera_test\((\w+)([^()]*)\)", re.S)


def binaries():
    """{binary: ([source path below tests/], GoogleTest filter)} from every CMakeLists.txt."""
    found = {}
    for listing in TESTS.rglob("CMakeLists.txt"):
        folder = listing.parent.relative_to(TESTS)
        for name, rest in TARGET.findall(listing.read_text()):
            sources = [folder / word for word in rest.split() if word.endswith(".cpp")]
            long = list(itertools.takewhile(lambda word: word not in LISTS, rest.partition(" LONG ")[2].split()))
            if sources and "LABELS long" not in rest:
                found[name] = sources, "*-" + ":".join(long)
    return found


def affected(path, all_binaries):
    path = Path(path)
    if path.suffix not in (".cpp", ".h", ".cu", ".cuh", ".jinja", ".json"):
        return set()
    in_tests = path.parts[0] == "tests"
    station = Path(*path.parts[1:2]) if in_tests else Path(STATIONS.get(path.parts[0], path.parts[0]))
    stem = path.stem if in_tests else path.stem + "_"
    near = {name for name, (sources, _) in all_binaries.items() if station in sources[0].parents}
    named = {name for name in near
             if any((source.stem + "_").startswith(stem.rstrip("_") + "_")
                    for source in all_binaries[name][0])}
    return named or near


def main():
    all_binaries = binaries()
    names = set()
    for line in sys.stdin:
        if line.strip():
            names |= affected(line.strip(), all_binaries)
    for name in sorted(names):
        print(name, all_binaries[name][1])


if __name__ == "__main__":
    main()
