#!/bin/sh
# What a machine with a GPU runs first: the kernels' tests, compute-sanitizer, decode attention's speed.
# Takes build/cuda/bin as it was built elsewhere where that runs here, or builds it. Logs go to $OUT, or
# build/gpu; the summary is printed last.
set -eu
cd "$(dirname "$0")/.."
out=${OUT:-build/gpu}
mkdir -p "$out"
bin=build/cuda/bin
tests=$bin/cuda_gpu_test

nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader
if ! "$tests" --gtest_list_tests >"$out/list.log" 2>&1; then
  nvcc=$(sh deploy/cuda_toolkit.sh)
  cmake --preset cuda -DTESSERA_TESTS=ON -DTESSERA_SERVER=OFF -DCMAKE_CUDA_COMPILER="$nvcc" >"$out/configure.log"
  cmake --build --preset cuda -j "$(nproc)" --target cuda_tests tessera-bench >"$out/build.log" 2>&1 ||
    { tail -n 30 "$out/build.log"; exit 1; }
fi

failed=0
"$tests" >"$out/tests.log" 2>&1 || failed=1
for tool in memcheck racecheck; do
  if command -v compute-sanitizer >/dev/null; then
    timeout 150 compute-sanitizer --tool $tool --error-exitcode 9 "$tests" \
      --gtest_filter='*Simt*:*TakeThePages*:*ReadsBothTiers*:*RandomSteps*' >"$out/$tool.log" 2>&1 || failed=1
  else
    echo "there is no compute-sanitizer here" >"$out/$tool.log"
  fi
done
if [ -x "$bin/cuda_nccl_test" ]; then "$bin/cuda_nccl_test" >>"$out/tests.log" 2>&1 || failed=1; fi
"$bin/tessera-bench" --device cuda --shapes 8b --ops attention --kv f16,k8v8,k8v4,k4v4,k4v2 \
  --cases "decode 32 x 1 at 8191,decode 4 x 1 at 65535,decode 1 x 1 at 8191 GQA 4 page 64" >"$out/bench.log" 2>&1 || failed=1

for log in tests memcheck racecheck; do echo "== $log"; grep -E 'FAILED|Failure|check failed|PASSED|ERROR SUMMARY|RACECHECK|no compute' "$out/$log.log" | tail -n 15 || true; done
echo "== bench"; cat "$out/bench.log"
exit $failed
