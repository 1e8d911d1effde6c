#!/bin/sh
# Measures KV formats on three real checkpoints, on prose, code and questions, and joins the results in report.md.
#   eval/real_checkpoints.sh FOLDER    results; a run that was interrupted goes on
# Environment: PROSE and CODE, two texts that the models have not seen [the text that ships, the scheduler's source];
# PLOT, a PNG file [none], which needs matplotlib.
# Needs build/release/bin/tessera-eval. Exit status 69: the package index is not reached.
set -eu
folder=$(realpath -m "${1:?usage: eval/real_checkpoints.sh FOLDER}")
cd "$(dirname "$0")/.."
formats=f16,k8v8,k8v4,fp8,k6v4r,k4v4,k4v4r,k4v3r,k4v2r,k3v3r,replay-50,replay-31,leankv
code=${CODE:-engine/scheduler.cpp}
mkdir -p "$folder"

measure() {  # measure MODEL TEXT_NAME WINDOWS LIMIT [--text FILE]
  model=$1 name=$2 windows=$3 limit=$4
  shift 4
  build/release/bin/tessera-eval --model "$(sh tests/models/real_checkpoint.sh "$model")" --weights stored \
    --kv "$formats" --tasks text --windows "$windows" --limit "$limit" "$@" --resume "$folder/$model.$name.journal" \
    --json "$folder/$model.$name.json" --html "$folder/$model.$name.html" >"$folder/$model.$name.txt"
}
answers() {  # answers MODEL LENGTHS CONTEXTS: questions at a prompt's end, and questions that come after compression
  build/release/bin/tessera-eval --model "$(sh tests/models/real_checkpoint.sh "$1")" --weights stored --batch 4 \
    --kv f16,k8v4,k4v4r,replay-31 --tasks passkey,materials-end,materials-later --lengths "$2" --samples "$3" \
    --resume "$folder/$1.answers.journal" --json "$folder/$1.answers.json" >"$folder/$1.answers.txt"
}

for model in smollm2-135m qwen2.5-coder-0.5b qwen2.5-coder-1.5b; do
  sh tests/models/real_checkpoint.sh "$model" >/dev/null || exit 69
  limit=5 lengths=1000,3000 contexts=5
  [ "$model" != qwen2.5-coder-1.5b ] || { limit=2 lengths=1000 contexts=3; }
  measure "$model" prose 1024,128 "$limit" ${PROSE:+--text "$PROSE"}
  measure "$model" code 1024,128 "$limit" --text "$code"
  answers "$model" "$lengths" "$contexts"
done
python3 eval/checkpoints_report.py "$folder" ${PLOT:+--plot "$PLOT"} >"$folder/report.md"
cat "$folder/report.md"
