#!/bin/sh
# Renders the chat templates that llama.cpp publishes with Tessera and with jinja2, and compares.
#   tests/text/published_templates.sh RENDER_TEMPLATE FOLDER
# The templates come with a pinned source package of PyPI (77 MB) and are kept in FOLDER, with jinja2.
# Exit status 77: no network to get them from.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
renderer=${1:?}
folder=${2:?}
package=llama-cpp-python==0.3.36
hash=832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e
jinja=jinja2==3.1.6

skip() { echo "skipped: $1" >&2; exit 77; }
mkdir -p "$folder"
if ! [ -x "$folder/venv/bin/python" ]; then
  python3 -m venv "$folder/partial"
  "$folder/partial/bin/pip" install --quiet --disable-pip-version-check "$jinja" || skip "no $jinja"
  mv "$folder/partial" "$folder/venv"
fi
if ! [ -d "$folder/templates" ]; then
  # A download asks the package's build for its metadata, which compiles nothing.
  "$folder/venv/bin/python" -m pip download --quiet --no-deps --no-cache-dir --no-binary :all: \
    --disable-pip-version-check -d "$folder/sdist" "$package" || skip "no $package"
  echo "$hash  $(ls "$folder"/sdist/*.tar.gz)" | sha256sum --check --quiet
  rm -rf "$folder/unpacked"
  mkdir "$folder/unpacked"
  tar xzf "$folder"/sdist/*.tar.gz -C "$folder/unpacked" --strip-components 4 --wildcards '*/models/templates/*.jinja'
  rm -rf "$folder/sdist"
  mv "$folder/unpacked/templates" "$folder/templates"
fi
exec "$folder/venv/bin/python" "$here/published_templates.py" "$renderer" "$folder/templates"
