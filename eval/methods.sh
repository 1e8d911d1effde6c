#!/bin/sh
# Measures every method of the laboratory on real checkpoints and prints one table; it resumes.
#   eval/methods.sh OUT [METHODS [MODEL...]]   OUT: folder of journals and reports
# METHODS: as --method takes them [all]. MODEL: a name of tests/models/real_checkpoint.sh
# [qwen2.5-coder-0.5b]. Methods with a draft model run on the 1.5B, whose draft is the 0.5B.
set -eu
cd "$(dirname "$0")/.."
out=${1:?"a folder for journals and reports"}
methods=${2:-all}
[ $# -gt 2 ] && shift 2 || set -- qwen2.5-coder-0.5b
mkdir -p "$out"
reports=""
for name; do
  checkpoint=$(sh tests/models/real_checkpoint.sh "$name")
  draft=""
  [ "$name" = qwen2.5-coder-1.5b ] && draft="--draft-model $(sh tests/models/real_checkpoint.sh qwen2.5-coder-0.5b)"
  # The draft is left unquoted: it is nothing, or two words.
  build/release/bin/tessera-eval --model "$checkpoint" --weights stored --method "$methods" $draft \
    --tasks continuation,materials-end,materials-later,materials-turns --windows 1024,96 --limit 3 \
    --lengths 1000 --samples 3 --questions 6 --resume "$out/$name.journal" --json "$out/$name.json" \
    >"$out/$name.txt"
  reports="$reports $name=$out/$name.json"
done
python3 eval/methods_report.py $reports
