#!/bin/sh
# Runs a command, and sends it SIGHUP when a file in the folders of TESSERA_WATCHED changes, which
# Kubernetes does about a minute after its Secret has changed:
#   TESSERA_WATCHED="/etc/tessera/keys /etc/tessera/tls" reload.sh tessera-server --config FILE
# Ends with the command's exit status, and passes SIGTERM on.
set -u
interval=${TESSERA_WATCH_SECONDS:-5}

# shellcheck disable=SC2086  # a list of folders
contents() { find -L $TESSERA_WATCHED -maxdepth 1 -type f -exec sha256sum {} + 2>/dev/null | sort; }

seen=$(contents)
"$@" &
server=$!
trap 'kill -TERM "$server" 2>/dev/null' TERM INT

while sleep "$interval"; do
  now=$(contents)
  # A file that is just being replaced is not there; the next look finds it.
  if [ "$now" != "$seen" ] && [ -n "$now" ]; then
    seen=$now
    kill -HUP "$server" 2>/dev/null || exit
  fi
done &
watcher=$!

# A signal ends `wait` too, while the command still runs.
while wait "$server"; status=$?; [ "$status" -gt 128 ] && kill -0 "$server" 2>/dev/null; do :; done
kill "$watcher" 2>/dev/null
exit "$status"
