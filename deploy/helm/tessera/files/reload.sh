#!/bin/sh
# Becomes a command, and sends it SIGHUP when a file in the folders of TESSERA_WATCHED changes. Kubernetes
# updates these files about a minute after their Secret:
#   TESSERA_WATCHED="/etc/tessera/keys /etc/tessera/tls" reload.sh tessera-server --config FILE
# With several ranks (mpirun -n 2 reload.sh ...) the first gets the signal: it has the keys and certificates.
set -u
interval=${TESSERA_WATCH_SECONDS:-5}

# shellcheck disable=SC2086  # a list of folders
contents() { find -L $TESSERA_WATCHED -maxdepth 1 -type f -exec sha256sum {} + 2>/dev/null | sort; }

watch() {  # watch PROCESS, until it has ended
  # The launcher of ranks waits until no process has their pipes open.
  exec </dev/null >/dev/null 2>&1
  [ -z "${PMI_FD:-}" ] || eval "exec $PMI_FD>&-"
  while sleep "$interval" && kill -0 "$1"; do
    now=$(contents)
    # A file that is just being replaced is not there; the next look finds it.
    if [ "$now" != "$seen" ] && [ -n "$now" ]; then
      seen=$now
      kill -HUP "$1"
    fi
  done
}

if [ "${PMI_RANK:-0}" -eq 0 ]; then
  seen=$(contents)
  (watch $$ &)  # not the command's child: the command would have to wait for it
fi
exec "$@"
