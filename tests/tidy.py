#!/usr/bin/env python3
"""Style as a test: the layers, sizes, comments, and that everything checked in is built.

    base <- kernels <- files <- text <- models <- engine <- server

A file includes its own layer and those to the left; a tool includes itself and the layers it is
listed with, and no layer includes a tool. Prints one line for each violation.
"""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LAYERS = ["base", "kernels", "files", "text", "models", "engine", "server"]
TOOLS = {"bench": ["base", "kernels"], "eval": ["base", "kernels", "files", "text", "models", "engine"],
         "load": ["base", "eval"]}
# A file holds one idea. Beyond this it surely holds two; below it the reader decides, not the count.
MAX_LINES = 700
MAX_COLUMNS = 100  # clang-format sees to code, but wraps no comment

# A layer's sources must do without these, by the beginning of an included path. kernels need C++ and
# CUDA alone; the engine and what it stands on speak token ids and know no wire.
FORBIDDEN = {
    "base": ["nlohmann/", "spdlog/", "grpc", "google/", "boost/"],
    "kernels": ["absl/", "base/status_macros.h", "nlohmann/", "spdlog/", "grpc", "google/", "boost/"],
    "files": ["spdlog/", "grpc", "google/", "boost/"],
    "text": ["kernels/cpu/", "spdlog/", "grpc", "google/", "boost/"],
    "models": ["text/", "spdlog/", "grpc", "google/", "boost/", "CLI/", "yaml-cpp/", "prometheus/"],
    "engine": ["text/", "nlohmann/", "sentencepiece", "grpc", "google/", "boost/", "pcre2"],
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


def unbuilt_violations(sources, headers, included):
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
        if str(header) not in included:
            yield f"{header}: no file includes it"


def folder_arrows(includes_of):
    """Returns: for each folder of a layer or a tool, the folders whose files its own include."""
    arrows = {}
    for path, includes in includes_of.items():
        if path.parts[0] in LAYERS + list(TOOLS):
            others = {Path(include).parent for include in includes if (ROOT / include).exists()}
            arrows.setdefault(path.parent, set()).update(others - {path.parent})
    return arrows


def reached_from(folder, arrows):
    reached, ahead = set(), [folder]
    while ahead:
        for other in arrows.get(ahead.pop(), ()):
            if other not in reached:
                reached.add(other)
                ahead.append(other)
    return reached


def circle_violations(arrows):
    """Folders that include each other, also through others. A folder within another is one of its own."""
    for folder in sorted(arrows):
        back = sorted(str(other) for other in arrows[folder] if folder in reached_from(other, arrows))
        if back:
            yield f"{folder}: includes {', '.join(back)}, and is included from there, perhaps through others"


def sources_and_headers():
    return tracked(".cpp", ".cu"), tracked(".h", ".cuh")


def all_includes():
    """Returns: the paths that each source and header includes."""
    sources, headers = sources_and_headers()
    return {path: INCLUDE.findall((ROOT / path).read_text()) for path in sources + headers}


def main():
    violations, included, includes_of = [], set(), all_includes()
    sources, headers = sources_and_headers()
    for path, includes in includes_of.items():
        text = (ROOT / path).read_text()
        included.update(includes)
        violations += layer_violations(path, includes)
        violations += size_violations(path, text)
        violations += comment_violations(path, text)
    violations += unbuilt_violations(sources, headers, included)
    violations += circle_violations(folder_arrows(includes_of))
    print("\n".join(violations) if violations else f"{len(includes_of)} files, tidy")
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
