#!/bin/sh
# Runs the tests of deploy/ against a tessera-server with the shipped model:
#   tests/deploy/run.sh FOLDER [pytest arguments]
# FOLDER has tessera-server and tessera-load. The packages of requirements.txt are installed into
# build/deploy/python, helm into build/helm. Exit status 77: no network to install them from.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
root=$here/../..
programs=$(realpath "${1:-$root/build/release/bin}")
shift $(($# < 1 ? $# : 1))

venv=$root/build/deploy/python
if ! cmp -s "$here/requirements.txt" "$venv/installed.txt"; then
  rm -rf "$venv"
  python3 -m venv "$venv"
  if ! "$venv/bin/pip" install --quiet --disable-pip-version-check -r "$here/requirements.txt"; then
    echo "skipped: the tests' packages cannot be installed" >&2
    exit 77
  fi
  cp "$here/requirements.txt" "$venv/installed.txt"
fi
helm=$(sh "$root/deploy/helm/get_helm.sh") || {
  [ $? -eq 69 ] || exit 1
  echo "skipped: helm cannot be installed" >&2
  exit 77
}
cd "$here"
TESSERA_PROGRAMS=$programs HELM=$helm exec "$venv/bin/python" -m pytest -q -p no:cacheprovider "$@"
