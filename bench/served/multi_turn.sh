#!/bin/sh
# Multi-turn chats: time to the first token with a prefix cache, by format and ladder.
#
#   bench/served/multi_turn.sh [FOLDER]
#
# 20 chats of 8 turns at once, with 2 s of think time, on the shipped model and the release build. The
# KV pool holds a third of their tokens in f16. One run for each format is without the cache. FOLDER
# gets the reports [build/multi_turn].
set -eu
. "$(dirname "$0")/serve.sh"
folder=${1:-$root/build/multi_turn}
mkdir -p "$folder"

measure() {  # measure LABEL SERVER_FLAG...
  label=$1
  shift
  start_server "$folder/$label.log" --model "$root/models/checkpoints/tessera-tiny" --max-sequences 8 \
    --kv-memory 46MiB "$@"
  "$bin/tessera-load" --url "$url" turns:turns=8:think=2:input=640:output=32 --concurrency 20 \
    --requests 160 --json "$folder/$label.json" >"$folder/$label.txt"
  stop_server
  echo "== $label"
  sed -n -e '/^ms/p' -e '/^TTFT/p' -e '/80% cached/p' -e '/^server/p' "$folder/$label.txt"
}

measure f16-no-cache --kv f16 --prefix-cache off
measure f16 --kv f16 --kv-ladder none
measure f16-ladder --kv f16 --kv-ladder k8v4,k4v2
measure k8v4-no-cache --kv k8v4 --prefix-cache off
measure k8v4 --kv k8v4 --kv-ladder none
measure k8v4-ladder --kv k8v4 --kv-ladder k4v2
