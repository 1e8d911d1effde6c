#!/bin/sh
# Compares every architecture with PyPI's transformers at all positions of its prompts, on one rank and on two. Needs
# build/release/bin/architectures_test. Packages take 6 GB in build/. Exit status 69: the package index is not reached.
set -eu
cd "$(dirname "$0")/../.."
out=build/live_architectures
mkdir -p "$out"
[ -d "$out/venv" ] || python3 -m venv "$out/venv"
"$out/venv/bin/pip" install -q --no-cache-dir --disable-pip-version-check torch==2.15.0 transformers==5.23.0 || exit 69
rm -rf "$out/models"
TESSERA_MODELS_OUT=$out/models build/release/bin/architectures_test --gtest_brief=1
OMP_NUM_THREADS=2 "$out/venv/bin/python" tests/models/architectures_golden.py "$out/models" "$out/golden.json" --live
export TESSERA_ARCHITECTURES_GOLDEN="$PWD/$out/golden.json"
build/release/bin/architectures_test --gtest_brief=1
if [ -x build/release/bin/tensor_parallel_test ]; then
  mpiexec -n 2 build/release/bin/tensor_parallel_test --gtest_brief=1 --gtest_filter='*Transformers*'
fi
