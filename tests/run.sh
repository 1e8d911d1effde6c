#!/bin/sh
# Installs what the tests need, builds, and runs them.
#   tests/run.sh          everything under the release preset, and the engine under ASan
#   tests/run.sh --all    also UBSan, TSan (without the server), the browser, the long simulations,
#                         lm-evaluation-harness, and each parser fuzzed for 20 seconds
# The last lines are ctest's own summary.
set -eu
cd "$(dirname "$0")/.."

all=""
case "${1:-}" in
  "") ;;
  --all) all=1 ;;
  *) sed -n '2,6s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
esac

sh deploy/dependencies.sh "${all:+all-}tests"
jobs=$(nproc)

check() {  # check PRESET [ctest arguments]: configure, build and test one preset
  preset=$1; shift
  echo "== $preset"
  cmake --preset "$preset" -DTESSERA_TESTS=ON >/dev/null
  cmake --build --preset "$preset" -j "$jobs"
  ctest --preset "$preset" -j "$jobs" "$@"
}

check asan -LE long
if [ -n "$all" ]; then
  check ubsan -LE long
  check tsan -LE long
  echo "== fuzz"
  sh tests/fuzz/run.sh 20
  check release
else
  check release -LE long
fi
