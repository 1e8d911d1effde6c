#!/bin/sh
# Rate against TTFT, correct answers and KV bytes, by KV preset, with and without the ladder.
#
#   bench/served/kv_presets.sh MODEL FOLDER SERVER_FLAGS LOAD_FLAGS
#
# It starts the release build's tessera-server with MODEL for each preset, loads it by tessera-load
# with LOAD_FLAGS (which begin with the workloads, and hold --rates), and writes the reports,
# curves.html and table.md into FOLDER. SERVER_FLAGS should hold a --kv-memory that is too small for all prefixes:
# otherwise no block is ever demoted. Each argument is one word for the shell:
#
#   bench/served/kv_presets.sh models/checkpoints/tessera-tiny build/curves \
#     "--max-sequences 8 --kv-memory 24MiB" \
#     "recall:prefix=300:groups=24 --rates 5,10 --requests 60 --min-correct 0"
set -eu
model=${1:?MODEL} folder=${2:?FOLDER} server_flags=${3:?SERVER_FLAGS} load_flags=${4:?LOAD_FLAGS}
. "$(dirname "$0")/serve.sh"
mkdir -p "$folder"

measure() {  # measure LABEL KV LADDER
  # shellcheck disable=SC2086  # the flags are words
  start_server "$folder/$1.log" --model "$model" --kv "$2" --kv-ladder "$3" $server_flags
  echo "== $1"
  # shellcheck disable=SC2086
  "$bin/tessera-load" --url "$url" $load_flags --json "$folder/$1.json" >"$folder/$1.txt" ||
    [ $? -eq 2 ]  # answers that fail a check are a result here
  sed -n '/^requests\/s/,$p' "$folder/$1.txt" | grep '^ *[0-9r]'
  stop_server
  curves="$curves $1=$folder/$1.json"
}

curves=""
measure f16 f16 none
measure f16-ladder f16 k8v4,k4v2
measure k8v4 k8v4 none
measure k8v4-ladder k8v4 k4v2
measure k4v2 k4v2 none  # the coarsest: it has no ladder
measure leankv leankv none
measure leankv-ladder leankv k4v2
# shellcheck disable=SC2086
"$bin/tessera-load" curves $curves --html "$folder/curves.html"
echo "$folder/curves.html"
# shellcheck disable=SC2086
python3 "$root/bench/served/curves_table.py" $curves | tee "$folder/table.md"
