#!/bin/sh
# Runs real clients against a tessera-server with the shipped model.
#   tests/server/clients/run.sh PACKAGES SERVER [pytest arguments]
# PACKAGES is `requirements`, `harness` for the tests marked so, or `frameworks/NAME` for
# frameworks/test_NAME.py. The packages of PACKAGES.txt are installed into build/clients/PACKAGES. A
# framework's file names every package with its version: pip needs many minutes to find versions that fit
# together. Exit status 77: no network to install them from.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
root=$here/../../..
packages=${1:?requirements, harness or frameworks/NAME}
server=$(realpath "${2:-$root/build/release/bin/tessera-server}")
shift $(($# < 2 ? $# : 2))

venv=$root/build/clients/$packages
wanted=$(cat "$here/requirements.txt" "$here/$packages.txt")
if [ "$wanted" != "$(cat "$venv/installed.txt" 2>/dev/null)" ]; then
  rm -rf "$venv"
  python3 -m venv "$venv"
  if ! "$venv/bin/pip" install --quiet --disable-pip-version-check -r "$here/$packages.txt"; then
    echo "skipped: the clients' packages cannot be installed" >&2
    exit 77
  fi
  echo "$wanted" >"$venv/installed.txt"
fi
cd "$here/$(dirname "$packages")"
case $packages in frameworks/*) set -- "test_${packages#frameworks/}.py" "$@" ;; esac
TESSERA_SERVER=$server exec "$venv/bin/python" -m pytest -q -p no:cacheprovider "$@"
