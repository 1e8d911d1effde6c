#!/usr/bin/env python3
"""Style as a test: the layers, sizes, comments, and that everything checked in is built.

    kernels <- models <- engine <- server

A file includes its own layer and those to the left; a tool includes itself and the layers it is
listed with, and no layer includes a tool. Prints one line for each violation.
"""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LAYERS = ["kernels", "models", "engine", "server"]
TOOLS = {"bench": ["kernels"], "eval": ["kernels", "models", "engine"],
         "load": ["kernels", "models", "eval"]}
MAX_LINES = 500
MAX_COLUMNS = 100  # clang-format sees to code, but wraps no comment

# A layer's sources must do without these, by the beginning of an included path. kernels need C++ and
# CUDA alone; the engine and what it stands on speak token ids and know no wire.
FORBIDDEN = {
    "kernels": ["absl/", "nlohmann/", "spdlog/", "grpc", "google/", "boost/"],
    "models": ["spdlog/", "grpc", "google/", "boost/", "CLI/", "yaml-cpp/", "prometheus/"],
    "models/text": ["kernels/cpu/"],
    "engine": ["models/text/", "nlohmann/", "sentencepiece", "grpc", "google/", "boost/", "pcre2"],
    "eval": ["spdlog/", "grpc", "google/", "yaml-cpp/", "prometheus/"],
    "eval/report": ["boost/"], "eval/run": ["boost/"], "eval/score": ["boost/"],
    "eval/tasks": ["boost/"],
    "load": ["spdlog/", "yaml-cpp/", "prometheus/"],
    "load/check": ["boost/", "grpc", "google/"], "load/client": ["grpc", "google/"],
    "load/grpc": ["boost/"], "load/report": ["boost/", "grpc", "google/"],
    "load/run": ["boost/", "grpc", "google/"], "load/workload": ["boost/", "grpc", "google/"],
    "proto": [],
    "bench": ["absl/", "spdlog/", "grpc", "google/", "boost/", "yaml-cpp/", "prometheus/"],
}
INCLUDE = re.compile(r'^\s*#\s*include\s+["<]([^">]+)[">]', re.MULTILINE)


def tracked(*suffixes):
    listing = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, check=True, capture_output=True, text=True).stdout.split("\n")
    return [Path(p) for p in listing if p.endswith(suffixes) and (ROOT / p).exists()]


def layer_violations(path, includes):
    layer = path.parts[0]
    if layer in LAYERS:
        for other in LAYERS[LAYERS.index(layer) + 1:] + list(TOOLS):
            for include in includes:
                if include.startswith(other + "/"):
                    yield f"{path}: {layer} may not include {include}"
    if layer in TOOLS:
        allowed = [layer] + TOOLS[layer]
        for other in LAYERS + list(TOOLS):
            for include in includes:
                if other not in allowed and include.startswith(other + "/"):
                    yield f"{path}: {layer} may not include {include}"
    for folder, prefixes in FORBIDDEN.items():
        if path.is_relative_to(folder):
            for include in includes:
                if include.startswith(tuple(prefixes)):
                    yield f"{path}: {folder} may not include <{include}>"


COMMENT = re.compile(r"^\s*// ")


def comment_violations(path, text):
    for number, line in enumerate(text.split("\n"), 1):
        if len(line) > MAX_COLUMNS and COMMENT.search(line):
            yield f"{path}:{number}: a comment of {len(line)} columns, at most {MAX_COLUMNS}"


def size_violations(path, text):
    lines = text.count("\n")
    if lines > MAX_LINES:
        yield f"{path}: {lines} lines, at most {MAX_LINES}"
    for number, line in enumerate(text.split("\n"), 1):
        if "TODO" in line or "FIXME" in line:
            yield f"{path}:{number}: an unfinished marker"


def unbuilt_violations(sources, headers, all_includes):
    listed = {}
    for cmake in tracked("CMakeLists.txt"):
        listed[cmake.parent] = (ROOT / cmake).read_text()
    for source in sources:
        names = [
            f"{source.relative_to(folder)}" for folder in source.parents if folder in listed]
        texts = [listed[folder] for folder in source.parents if folder in listed]
        if not any(name in text for name, text in zip(names, texts)):
            yield f"{source}: no CMakeLists.txt builds it"
    for header in headers:
        if str(header) not in all_includes:
            yield f"{header}: no file includes it"


def circle_violations(includes_of):
    """Folders of kernels/ that lie in the same folder and include each other, also through others."""
    reached = {}
    for path, includes in includes_of.items():
        for include in includes:
            folder, other = path.parent, Path(include).parent
            if folder != other and folder.parent == other.parent and folder.parts[0] == "kernels":
                reached.setdefault(folder, set()).add(other)
    for _ in range(len(reached)):
        for others in reached.values():
            others |= {far for other in others for far in reached.get(other, ())}
    for folder in sorted(reached):
        if folder in reached[folder]:
            yield f"{folder}: includes itself through a folder beside it"


def main():
    violations, all_includes, includes_of = [], set(), {}
    sources = tracked(".cpp", ".cu")
    headers = tracked(".h", ".cuh")
    for path in sources + headers:
        text = (ROOT / path).read_text()
        includes = INCLUDE.findall(text)
        all_includes.update(includes)
        includes_of[path] = includes
        violations += layer_violations(path, includes)
        violations += size_violations(path, text)
        violations += comment_violations(path, text)
    violations += unbuilt_violations(sources, headers, all_includes)
    violations += circle_violations(includes_of)
    print("\n".join(violations) if violations else f"{len(sources) + len(headers)} files, tidy")
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
