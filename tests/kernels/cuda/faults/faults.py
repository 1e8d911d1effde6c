#!/usr/bin/env python3
"""Seeds faults in the CUDA backend and shows which tool catches each.

    faults.py BUILD [--only PATTERN] [--first] [--table FILE]

BUILD is a build folder with cuda_emulated_test, cuda_races_test and, where CUDA's headers are,
cuda_host_test. Two kinds of faults:
  barriers   each sync_cluster(), sync_block() and sync_warp() of the kernels in turn is left out.
             Those in SMALLER also serve a part of their threads alone. The emulation does it at run
             time, so nothing is compiled.
  edits      each line of edits.py replaces text in a copy of one source, which is compiled and linked
             into the test.
A fault runs under the tests that reach its place, the fastest first. Tools: `orders` are the tests
under three orders of threads, `races` is the search for races, `host` is cuda_host_test. With --first
a fault that one tool has caught is not shown to the next. Exit status 1 if a fault is caught by none, or
a barrier is reached by no test.
"""
import argparse
import json
import os
import pathlib
import re
import resource
import shlex
import signal
import subprocess
import sys
import tempfile
import time

from edits import EDITS, EMULATED, HOST, RACES

ROOT = pathlib.Path(__file__).resolve().parents[4]
ORDERS = ("ascending", "descending", "shuffled:1")
SECONDS = 300  # of processor time, so that a busy machine catches nothing; a kernel may never end
WALL_SECONDS = 12 * SECONDS  # for a test that waits forever, which takes no processor time
FEW = 3  # tests of a fault's first run

# Barriers of a block that are also tried as barriers of each warp alone, and those of a cluster as
# barriers of each block alone: a wrong fence.
SMALLER = {"warp": re.compile(r"\bsync_block\(\);"), "block": re.compile(r"\bsync_cluster\(\);")}


def run(command, **variables):
    """Returns: (exit status, output); status 124 if it ran too long."""
    try:
        done = subprocess.run(command, env={**os.environ, **variables}, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, errors="replace", timeout=WALL_SECONDS,
                              preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS)))
    except subprocess.TimeoutExpired:
        return 124, ""
    too_long = done.returncode in (-signal.SIGXCPU, -signal.SIGKILL)
    return (124, "") if too_long else (done.returncode, done.stdout)


def tests_of(program):
    suite, names = "", []
    for line in run([program, "--gtest_list_tests"])[1].splitlines():
        if not line.startswith(" "):
            suite = line.split("#")[0].strip()
        elif suite.endswith("."):
            names.append(suite + line.split("#")[0].strip())
    return [name for name in names if "Death" not in name]


def places_of_tests(program):
    """Returns: for each barrier that some test reaches, those tests, the fastest first."""
    reached = {}
    for test in tests_of(program):
        began = time.monotonic()
        output = run([program, "--gtest_filter=" + test], TESSERA_EMULATED_BARRIERS="1")[1]
        seconds = time.monotonic() - began
        for place in re.findall(r"^barrier \w+ (\S+)$", output, re.M):
            reached.setdefault(place, []).append((seconds, test))
    return {place: [test for _, test in sorted(tests)] for place, tests in reached.items()}


def barriers():
    """Returns: (fault, place) of all barriers of the kernels."""
    for path in sorted((ROOT / "kernels/cuda").rglob("*")):
        if path.suffix not in (".cu", ".h") or path.name in ("simt.h", "device.h"):
            continue
        for number, line in enumerate(path.read_text().splitlines(), 1):
            code = line.split("//")[0]
            if re.search(r"\bsync_(cluster|block|warp)\(\)", code):
                place = f"{path.name}:{number}"
                yield "missing:" + place, place
                for part, barrier in SMALLER.items():
                    if barrier.search(code):
                        yield f"{part}:{place}", place


def first_words(output):
    """Returns: why a test failed, in a few words."""
    for pattern in (r"check failed: .*?: (.*)", r"(data race) at", r"(Failure)", r"(Segmentation fault)"):
        found = re.search(pattern, output)
        if found:
            return found.group(1).lower()
    return "a crash"


def catchers(emulated, races, tests, variables, first):
    """Returns: names of the tools that a fault fails, with a reason each; the first alone if `first`."""
    caught = []
    chosen = "--gtest_filter=" + ":".join(tests)
    for order in ORDERS:
        status, output = run([emulated, chosen, "--gtest_brief=1"], TESSERA_EMULATED_ORDER=order, **variables)
        if status != 0:
            why = "it never ends" if status == 124 else first_words(output)
            caught.append(f"orders ({order}: {why})")
            break
    if races is not None and not (first and caught):
        status, output = run([races, chosen, "--gtest_brief=1"], **variables)
        if status != 0:
            caught.append("races" if "data race" in output else f"races ({first_words(output)})")
    return caught


def barrier_faults(build, only, first):
    emulated, races = (str(build / "bin" / name) for name in (EMULATED, RACES))
    reached = None
    for fault, place in barriers():
        if not re.search(only, fault):
            continue
        reached = reached if reached is not None else places_of_tests(emulated)
        tests = reached.get(place, [])
        if not tests:
            yield fault, ["no test reaches it"], False
            continue
        variables = {"TESSERA_EMULATED_FAULT": fault}
        caught = catchers(emulated, races, tests[:FEW], variables, first)
        if not caught and len(tests) > FEW:
            caught = catchers(emulated, races, tests[FEW:], variables, first)
        yield fault, caught, bool(caught)


def built_with(build, edit, folder):
    """Compiles an edited copy of a source and links it before the libraries of its test.
    Returns: the program."""
    source = ROOT / edit["file"]
    text = source.read_text()
    if text.count(edit["old"]) != 1:
        sys.exit(f"{edit['name']}: its text stands {text.count(edit['old'])} times in {edit['file']}")
    copy = folder / edit["file"]
    copy.parent.mkdir(parents=True)
    copy.write_text(text.replace(edit["old"], edit["new"]))
    test = edit["test"]
    part = "stand_in" if test == HOST else "noted" if test == RACES else "cuda_emulated.dir"
    for entry in json.loads((build / "compile_commands.json").read_text()):
        if entry["file"].endswith(edit["source"]) and part in entry["command"]:
            break
    else:
        sys.exit(f"{edit['name']}: the build does not compile {edit['source']} for {test}")
    words = shlex.split(entry["command"])
    words = words[next(i for i, word in enumerate(words) if word.endswith("c++")):]
    made = folder / (source.name + ".o")
    words = [str(made) if word == words[words.index("-o") + 1] else
             str(copy) if word.endswith(edit["file"]) else word for word in words]
    words.insert(1, f"-I{folder}")  # where an edited header is found first
    subprocess.run(words, cwd=entry["directory"], check=True)
    link = run(["ninja", "-C", str(build), "-t", "commands", "bin/" + test])[1].splitlines()[-1]
    program = folder / test
    link = link.replace(f"-o bin/{test}", f"{made} -o {program}", 1)
    subprocess.run(link, shell=True, cwd=build, check=True)
    return str(program)


def edit_faults(build, only, first):
    for edit in EDITS:
        if not re.search(only, edit["name"]) or not (build / "bin" / edit["test"]).exists():
            continue
        with tempfile.TemporaryDirectory() as folder:
            program = built_with(build, edit, pathlib.Path(folder))
            if edit["test"] == EMULATED:
                caught = catchers(program, None, [edit["tests"]], {}, first)
            else:
                status, output = run([program, "--gtest_brief=1", "--gtest_filter=" + edit["tests"]])
                tool = "races" if edit["test"] == RACES else "host"
                caught = [f"{tool} ({first_words(output)})"] if status != 0 else []
            yield f"{edit['name']} ({edit['file'].split('/')[-1]})", caught, bool(caught)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("--only", default="")
    parser.add_argument("--first", action="store_true")
    parser.add_argument("--table", type=pathlib.Path)
    options = parser.parse_args()
    build = options.build.resolve()
    missed, rows = 0, ["| fault | caught by |", "|---|---|"]
    for faults in (edit_faults, barrier_faults):
        for name, caught, right in faults(build, options.only, options.first):
            missed += 0 if right else 1
            rows.append(f"| {name} | {', '.join(caught) or '**nothing**'} |")
            print(rows[-1], flush=True)
    if options.table:
        options.table.write_text("\n".join(rows) + "\n")
    print(f"{len(rows) - 2} faults, {missed} missed")
    sys.exit(1 if missed else 0)


main()
