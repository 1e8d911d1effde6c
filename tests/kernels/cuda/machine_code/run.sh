#!/bin/sh
# Compares the machine code of hot CUDA kernels with bounds.txt: run.sh [OBJECTS_DIRECTORY] (default: build/cuda's,
# compiled for sm_90a at least). The disassembler is PyPI's, installed by name into build/disassembler.
# Exit status 69: the package index is not reached.
set -eu
cd "$(dirname "$0")/../../../.."
venv=build/disassembler
[ -d "$venv" ] || python3 -m venv "$venv"
"$venv/bin/pip" install -q --disable-pip-version-check "nvidia-cuda-nvdisasm==13.*" "nvidia-cuda-cuobjdump==13.*" || exit 69
tools=$(dirname "$(find "$PWD/$venv" -path '*/bin/cuobjdump' | head -n 1)")
PATH=$tools:$PATH python3 tests/kernels/cuda/machine_code/machine_code.py \
  "${1:-build/cuda/kernels/cuda/CMakeFiles/tessera_cuda.dir}"
