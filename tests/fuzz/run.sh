#!/bin/sh
# Builds the fuzz targets with clang, ASan and UBSan, and runs them one after the other.
#   tests/fuzz/run.sh SECONDS [NAME...]    e.g. 600 settings; without a name: all
# Inputs are corpus/NAME and the findings of earlier runs in build/fuzz/found/NAME. An input that
# crashes is left in build/fuzz/found/: add it to the corpus together with the fix.
set -eu
cd "$(dirname "$0")/../.."
seconds=${1:?how many seconds each?}
shift
[ $# -gt 0 ] || set -- $(ls tests/fuzz/corpus)

cmake --preset fuzz -DTESSERA_TESTS=ON >/dev/null
cmake --build --preset fuzz -j "$(nproc)"
for name; do
  found=build/fuzz/found/$name
  mkdir -p "$found"
  echo "== $name"
  "build/fuzz/bin/${name}_fuzz" -max_total_time="$seconds" -timeout=30 -rss_limit_mb=3072 \
    -max_len=8192 -print_final_stats=1 -verbosity=0 -artifact_prefix="$found-" \
    "$found" "tests/fuzz/corpus/$name"
done
