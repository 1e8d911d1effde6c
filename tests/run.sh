#!/bin/sh
# Installs what the tests need, builds, and runs them.
#   tests/run.sh          everything under the release preset, the engine under ASan, and the CUDA
#                         kernels compiled (run too where there is a GPU; their emulation always)
#   tests/run.sh --all    also UBSan, TSan (without the server), every kernel under each sanitizer,
#                         the browser, the long simulations, lm-evaluation-harness, and each parser
#                         fuzzed for 20 seconds
# The last lines are ctest's own summary.
set -eu
cd "$(dirname "$0")/.."

all=""
case "${1:-}" in
  "") ;;
  --all) all=1 ;;
  *) sed -n '2,8s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
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

asan() {  # the stations of a request that stand on memory; --all takes everything
  echo "== asan"
  cmake --preset asan -DTESSERA_TESTS=ON >/dev/null
  cmake --build --preset asan -j "$jobs" --target \
    tests/kernels/all tests/models/all tests/engine/all tests/fuzz/all
  # Without what computes longest on plain loops: a third of the time, and memory is met elsewhere.
  slowest='GoldenLogits|WeightFormats|StopATemplateThatNeverEnds|EngineText.*/scalar'
  slowest="$slowest|ForEveryHeadDim/scalar|TheStepsSay/scalar|CountingQueriesPaid/scalar"
  for station in kernels models engine fuzz; do
    ctest --test-dir "build/asan/tests/$station" --output-on-failure -j "$jobs" -LE 'long|oracle' \
      -E "$slowest"
  done
}

cuda() {
  echo "== cuda"
  nvcc=$(sh deploy/cuda_toolkit.sh) || return 0
  cmake --preset cuda -DTESSERA_TESTS=ON -DTESSERA_SERVER=OFF -DCMAKE_CUDA_COMPILER="$nvcc" \
    -DTESSERA_CUDA_PTX="${all:-0}" >/dev/null
  cmake --build --preset cuda -j "$jobs" --target cuda_tests
  ctest --test-dir build/cuda -L gpu
  build/cuda/bin/cuda_library_test
}

if [ -n "$all" ]; then
  check asan -LE long
  cuda
  check ubsan -LE long
  check tsan -LE long
  echo "== fuzz"
  sh tests/fuzz/run.sh 20
  check release
else
  asan
  cuda
  check release -LE long
fi
