#!/bin/sh
# Prints the path of an nvcc that builds the CUDA backend; the first of:
#   $CUDACXX, nvcc in PATH, /usr/local/cuda/bin/nvcc, PyPI's packages in build/cuda-toolkit
# The last are installed there, by name, where there is nothing else; no root is needed. Exits 1 and
# says so where that fails too: then the backend cannot be built on this machine.
# With --libraries the packages have cuBLAS and NCCL too, which the backend needs on a GPU (1 GB).
set -eu
cd "$(dirname "$0")/.."

for nvcc in "${CUDACXX:-}" "$(command -v nvcc || true)" /usr/local/cuda/bin/nvcc; do
  if [ -n "$nvcc" ] && [ -x "$nvcc" ]; then echo "$nvcc"; exit 0; fi
done

version=13.0
toolkit=build/cuda-toolkit
find_nvcc() { find "$PWD/$toolkit" -path '*/bin/nvcc' 2>/dev/null | head -n 1; }
if [ -z "$(find_nvcc)" ]; then
  echo "installing CUDA's compiler $version into $toolkit" >&2
  mkdir -p build
  { python3 -m venv "$toolkit" &&
    "$toolkit/bin/pip" install -q "nvidia-cuda-nvcc==$version.*" "nvidia-cuda-crt==$version.*" \
      "nvidia-nvvm==$version.*" "nvidia-cuda-runtime==$version.*" "nvidia-cuda-cccl==$version.*" \
      $([ "${1:-}" != --libraries ] || echo "nvidia-cublas==13.* nvidia-nccl-cu13")
  } >&2 || { echo "no CUDA toolkit here, and none to be had: the CUDA backend is not built" >&2; exit 1; }
  # The packages hold libraries by version alone; the linker asks for the plain names.
  lib=$(dirname "$(dirname "$(find_nvcc)")")/lib
  for library in libcudart.so.13 libcublas.so.13 libcublasLt.so.13; do
    [ ! -e "$lib/$library" ] || ln -sf "$library" "$lib/${library%.13}"
  done
  nccl=$(dirname "$(dirname "$lib")")/nccl
  if [ -d "$nccl" ]; then
    # A program that is linked looks for the library beside this one.
    ln -sf "$nccl/lib/libnccl.so.2" "$lib/"
    ln -sf libnccl.so.2 "$lib/libnccl.so"
    ln -sf "$nccl/include/nccl.h" "$(dirname "$lib")/include/"
  fi
  [ -e "${lib}64" ] || ln -s lib "${lib}64"
fi
find_nvcc
