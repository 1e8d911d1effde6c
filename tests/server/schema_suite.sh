#!/bin/sh
# Prints the folder of the JSON-Schema test suite for draft 2020-12. It is part of the sources of
# jsonschema, which the first call downloads from PyPI by name.
# Exit status: 0; 77 if the package index is not reached; 1 for anything else.
set -eu
package=jsonschema==4.26.0
sha256=0c26707e2efad8aa1bfc5b7ce170f3fccc2e4918ff85989ba9ffa9facb2be326
cache=${XDG_CACHE_HOME:-$HOME/.cache}/tessera/json-schema-suite-4.26.0
if [ ! -d "$cache" ]; then
  mkdir -p "$(dirname "$cache")"
  partial=$(mktemp -d "$cache.XXXXXX")
  trap 'rm -rf "$partial"' EXIT
  python3 -m pip download --quiet --no-deps --no-cache-dir --disable-pip-version-check --retries 1 --timeout 20 \
    --no-binary jsonschema -d "$partial" "$package" >&2 || exit 77
  archive=$(echo "$partial"/*.tar.gz)
  echo "$sha256  $archive" | sha256sum --quiet -c - >&2
  tar -xzf "$archive" -C "$partial"
  mv -T "$partial"/jsonschema-*/json/tests/draft2020-12 "$cache" 2>/dev/null || [ -d "$cache" ]
fi
echo "$cache"
