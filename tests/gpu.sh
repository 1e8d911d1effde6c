#!/bin/sh
# Runs on a machine with a GPU: the kernels' tests, compute-sanitizer, and then the run-book of
# bench/gpu/README.md. Uses build/cuda/bin from another machine if it runs here, else builds it.
# Logs and tables go to $OUT, or build/gpu; a summary is printed last.
#   tests/gpu.sh            all of it, each part within its limit
#   tests/gpu.sh tests      the tests and the sanitizer alone
#   tests/gpu.sh measure    the run-book alone
set -eu
cd "$(dirname "$0")/.."
out=${OUT:-build/gpu}
bin=build/cuda/bin
programs="tessera-bench tessera-compare tessera-throughput"
part=${1:-all}
case $part in all | tests | measure) ;; *) sed -n 2,7p "$0" >&2; exit 2 ;; esac
mkdir -p "$out"

nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader
if ! "$bin/cuda_gpu_test" --gtest_list_tests >"$out/list.log" 2>&1; then
  nvcc=$(sh deploy/cuda_toolkit.sh)
  cmake --preset cuda -DTESSERA_TESTS=ON -DTESSERA_SERVER=OFF -DCMAKE_CUDA_COMPILER="$nvcc" >"$out/configure.log"
  # shellcheck disable=SC2086  # a list
  cmake --build --preset cuda -j "$(nproc)" --target cuda_tests tessera_cuda_library $programs \
    >"$out/build.log" 2>&1 || { tail -n 30 "$out/build.log"; exit 1; }
fi

summary=""
failed=0
step() {  # step NAME SECONDS COMMAND...: its log is $out/NAME.log
  name=$1; limit=$2; shift 2
  echo "== $name"
  status=0
  timeout "$limit" "$@" >"$out/$name.log" 2>&1 || status=$?
  case $status in
    0) verdict=done ;;
    124) verdict="did not end within $limit s"; failed=1 ;;
    *) verdict="failed ($status)"; failed=1 ;;
  esac
  summary="$summary
$name: $verdict"
}
skip() { summary="$summary
$1: skipped, $2"; }
has() { python3 -c "import $1" 2>/dev/null; }

# Each test has a process of its own, because a fault of a kernel ends the process.
each() {  # each NAME SECONDS COMMAND...: runs the command with every test of the list
  name=$1; limit=$2; shift 2
  rm -rf "${out:?}/$name"
  mkdir -p "$out/$name"
  # shellcheck disable=SC2016  # of the inner shell
  step "$name" "$limit" xargs -P "$(nproc)" -I TEST sh -c '
    log=$1/$(echo "$2" | tr / _).log; test=$2; shift 2
    timeout 300 "$@" --gtest_filter="$test" >"$log" 2>&1
    status=$?
    echo "$test: $status"
    [ $status = 0 ] || { tail -n 30 "$log"; exit 1; }
  ' each "$out/$name" TEST "$@" <"$out/names.log"
}

if [ "$part" != measure ]; then
  awk '/^[^ ]/ { suite = $1 } /^ / { print suite $1 }' "$out/list.log" >"$out/names.log"
  each tests 500 "$bin/cuda_gpu_test"
  step library 60 "$bin/cuda_library_test"
  if [ -x "$bin/cuda_nccl_test" ]; then step nccl 100 "$bin/cuda_nccl_test"; fi
  for tool in memcheck racecheck; do
    if command -v compute-sanitizer >/dev/null; then
      each $tool 400 compute-sanitizer --tool $tool --error-exitcode 9 "$bin/cuda_gpu_test"
    else
      skip $tool "there is no compute-sanitizer here"
    fi
  done
fi
if [ "$part" != tests ]; then
  step compare 300 "$bin/tessera-compare" --model models/checkpoints/tessera-tiny --with cuda:f32,cuda:bf16
  # GPUs other than Hopper have no kernels for fp8, and report it.
  step compare_fp8 200 "$bin/tessera-compare" --model models/checkpoints/tessera-tiny \
    --reference cpu:fp8 --with cuda:fp8
  step compare_k8v4 200 "$bin/tessera-compare" --model models/checkpoints/tessera-tiny --kv k8v4 --with cuda:f32
  if has torch; then
    step decode_attention 600 python3 bench/gpu/decode_attention.py
  else
    step decode_attention 600 python3 bench/gpu/decode_attention.py --no-peer
    skip decode_attention_peer "there is no PyTorch here"
  fi
  step ops 600 "$bin/tessera-bench" --device cuda --shapes 8b --budget 0.1 --kv f16,k8v4,k4v2 --json "$out/ops.json" \
    --ops embed,rms_norm,linear,rope,silu_mul,kv_resize,kv_fork,kv_swap_out,kv_swap_in,kv_share,kv_attach,kv_own,kv_evict,kv_demote,kv_store,kv_score,kv_compress
  step throughput 1500 "$bin/tessera-throughput" --device cuda
  if has transformers; then
    step hf_continuous 900 python3 bench/gpu/hf_continuous.py
  else
    skip hf_continuous "there is no transformers here"
  fi
fi

for log in tests memcheck racecheck; do
  if [ -f "$out/$log.log" ]; then
    echo "== $log"
    grep -E 'FAILED|Failure|check failed|PASSED|ERROR SUMMARY|RACECHECK|: [1-9][0-9]*$' "$out/$log.log" | tail -n 15 || true
  fi
done
for log in compare compare_fp8 compare_k8v4 decode_attention throughput hf_continuous; do
  if [ -f "$out/$log.log" ]; then echo "== $log"; cat "$out/$log.log"; fi
done
echo "== summary$summary"
exit $failed
