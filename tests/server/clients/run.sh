#!/bin/sh
# Runs real clients against a tessera-server with the shipped model.
#   tests/server/clients/run.sh SERVER [pytest arguments]
# Their packages go into build/clients/venv. Without a network to get them from: exit status 77.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
root=$here/../../..
server=$(realpath "${1:-$root/build/release/bin/tessera-server}")
[ $# -eq 0 ] || shift

venv=$root/build/clients/venv
if ! cmp -s "$here/requirements.txt" "$venv/installed.txt"; then
  rm -rf "$venv"
  python3 -m venv "$venv"
  if ! "$venv/bin/pip" install --quiet --disable-pip-version-check -r "$here/requirements.txt"; then
    echo "skipped: the clients' packages cannot be installed" >&2
    exit 77
  fi
  cp "$here/requirements.txt" "$venv/installed.txt"
fi
cd "$here"
TESSERA_SERVER=$server exec "$venv/bin/python" -m pytest -q -p no:cacheprovider "$@"
