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
server="" signalled="" status=""
trap 'signalled=1; [ -z "$server" ] || kill -TERM "$server" 2>/dev/null' TERM INT
"$@" &
server=$!
[ -z "$signalled" ] || kill -TERM "$server" 2>/dev/null

while sleep "$interval"; do
  now=$(contents)
  # A file that is just being replaced is not there; the next look finds it.
  if [ "$now" != "$seen" ] && [ -n "$now" ]; then
    seen=$now
    kill -HUP "$server" 2>/dev/null || exit
  fi
done &
watcher=$!

# A signal ends `wait` too; then the command's status is still to come. 127: it has come already.
while :; do
  signalled=""
  wait "$server"
  result=$?
  [ -n "$status" ] && [ "$result" -eq 127 ] || status=$result
  [ -n "$signalled" ] || break
done
kill "$watcher" 2>/dev/null
exit "$status"
