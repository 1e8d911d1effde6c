#!/bin/sh
# Checks that C++ and CUDA files are formatted as .clang-format says, and names those that are not.
#   tests/format.sh [--fix] [FILE...]    without files: all that git tracks
# Versions of clang-format differ, so it takes version 14 alone; without it: exit status 77.
set -eu
cd "$(dirname "$0")/.."
fix=""
if [ "${1:-}" = --fix ]; then fix=1; shift; fi
format=$(command -v clang-format-14) || { echo "skipped: no clang-format-14 here" >&2; exit 77; }
[ $# -gt 0 ] || set -- $(git ls-files '*.h' '*.cpp' '*.cu')
if [ -n "$fix" ]; then
  printf '%s\n' "$@" | xargs -P "$(nproc)" -n 40 "$format" -i
else
  printf '%s\n' "$@" | xargs -P "$(nproc)" -n 40 "$format" --dry-run -Werror ||
    { echo "not formatted; tests/format.sh --fix mends it" >&2; exit 1; }
fi
