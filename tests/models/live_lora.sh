#!/bin/sh
# Compares adapters of a real checkpoint in f32 with PyPI's PEFT in f64: a random one, and one trained for 50 steps. Needs
# build/release/bin/lora_test. Packages take 6 GB in build/, a checkpoint up to 6 GB. Exit status 69: the package index is
# not reached.
#   tests/models/live_lora.sh [smollm2-135m | qwen2.5-coder-0.5b]
set -eu
cd "$(dirname "$0")/../.."
name=${1:-smollm2-135m}
out=build/live_lora
mkdir -p "$out"
[ -d "$out/venv" ] || python3 -m venv "$out/venv"
"$out/venv/bin/pip" install -q --no-cache-dir --disable-pip-version-check torch==2.15.0 transformers==5.2.0 \
  peft==0.21.2 gguf==0.19.0 || exit 69
file=$(sh tests/models/real_checkpoint.sh "$name")
rm -rf "${out:?}/$name"
# One thread: two would wait actively for each other on a busy machine.
OMP_NUM_THREADS=1 "$out/venv/bin/python" tests/models/lora_golden.py --real "$file" "$out/$name"
TESSERA_LIVE_LORA="$out/$name" build/release/bin/lora_test --gtest_brief=1 --gtest_filter='LiveLora.*'
