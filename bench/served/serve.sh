# For the scripts here, which source it: starts and stops the release build's tessera-server.
# shellcheck shell=sh
root=$(cd "$(dirname "$0")/../.." && pwd)
bin=$root/build/release/bin
server=""
trap 'stop_server' EXIT

stop_server() {
  [ -z "$server" ] || { kill "$server" && wait "$server"; } 2>/dev/null || true
  server=""
}

start_server() {  # start_server LOG FLAG...: sets `url`
  log=$1
  shift
  : >"$log"
  "$bin/tessera-server" --http-port 0 --grpc-port 0 --drain-delay 0 "$@" 2>"$log" &
  server=$!
  until grep -q " ready after " "$log"; do
    kill -0 "$server" 2>/dev/null || { cat "$log" >&2; exit 1; }
    sleep 0.2
  done
  url=$(sed -n 's/.*listening \(http:\/\/[^ ]*\).*/\1/p' "$log" | head -n 1)
}
