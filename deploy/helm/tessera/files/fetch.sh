#!/bin/sh
# Fetches the files of a checkpoint: lines "SHA256 PATH URL" on stdin, into the folder $1. A file that
# is there with its checksum is kept, so that a restart fetches nothing. FETCH_TOKEN is sent as a
# bearer token if it is set.
set -eu
folder=$1
while read -r sha256 path url; do
  file=$folder/$path
  if [ -f "$file" ] && echo "$sha256  $file" | sha256sum -c - >/dev/null 2>&1; then
    echo "there: $path"
    continue
  fi
  echo "fetching: $path"
  mkdir -p "$(dirname "$file")"
  set -- --fail --location --silent --show-error --retry 5 --continue-at - --output "$file.part" "$url"
  [ -z "${FETCH_TOKEN:-}" ] || set -- --header "Authorization: Bearer $FETCH_TOKEN" "$@"
  curl "$@"
  echo "$sha256  $file.part" | sha256sum -c - >/dev/null || {
    rm -f "$file.part"
    echo "$path: not the expected content" >&2
    exit 1
  }
  mv "$file.part" "$file"
done
