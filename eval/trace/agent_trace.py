#!/usr/bin/env python3
"""Prints the requests of tessera-load's agents as a trace in Mooncake's form, for tessera-cache-trace.

    build/release/bin/load-stub 8090 2 0.02 &
    build/release/bin/tessera-load agent:turns=20:input=2000:followup=200-1200:output=~200:prefix=4096:groups=1 \\
      --url http://127.0.0.1:8090 --rate 2 --requests 4000 --records agents.jsonl
    python3 eval/trace/agent_trace.py agents.jsonl --prefix 4096 > trace.jsonl

A session's prompt grows with each turn, so its blocks are named by session and place. The first ones are those of the
system prompt that all sessions share.
"""

import argparse
import json

BLOCK = 512


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("records", help="of tessera-load --records")
    parser.add_argument("--prefix", type=int, default=0, help="tokens of the system prompt of all sessions")
    arguments = parser.parse_args()
    with open(arguments.records, encoding="utf-8") as file:
        records = [json.loads(line) for line in file]
    names = {}
    for record in sorted((record for record in records if "usage" in record), key=lambda record: record["sent"]):
        prompt = record["usage"]["prompt_tokens"]
        blocks = [(0 if at < arguments.prefix // BLOCK else record["session"] + 1, at) for at in range(-(-prompt // BLOCK))]
        print(json.dumps({"timestamp": int(1000 * record["sent"]), "input_length": prompt,
                          "output_length": record["usage"]["completion_tokens"],
                          "hash_ids": [names.setdefault(block, len(names)) for block in blocks]}))


if __name__ == "__main__":
    main()
