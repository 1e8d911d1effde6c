#!/usr/bin/env python3
"""Measures the speed of a batch whose requests have an adapter each, beside the same batch without.

    python3 bench/served/random_adapters.py MODEL /tmp/adapters --count 16 --rank 16
    python3 bench/served/adapters.py SERVER MODEL /tmp/adapters --streams 16

Starts the server once, and asks in turns: all streams without an adapter, then each with its own. Prints tokens a second
of each turn, and the ratio of the medians. MODEL may be a GGUF file.
"""

import argparse
import concurrent.futures
import json
import pathlib
import re
import statistics
import subprocess
import time
import urllib.request


def ask(url, model, tokens):
    body = {"prompt": "Once upon a time", "max_tokens": tokens, "temperature": 0, "ignore_eos": True}
    request = urllib.request.Request(url + "/v1/completions", json.dumps(dict(body, model=model)).encode(),
                                     {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)["usage"]["completion_tokens"]


def speed(url, models, tokens):
    begin = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(len(models)) as pool:
        done = sum(pool.map(lambda model: ask(url, model, tokens), models))
    return done / (time.monotonic() - begin)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("server")
    parser.add_argument("model")
    parser.add_argument("adapters", type=pathlib.Path)
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--flags", default="", help="further flags of the server")
    arguments = parser.parse_args()
    lora = ",".join(f"a{i}={arguments.adapters / str(i)}" for i in range(arguments.streams))
    process = subprocess.Popen([arguments.server, "--model", arguments.model, "--served-model-name", "base", "--lora",
                                lora, "--http-port", "0", "--grpc-port", "0", *arguments.flags.split()],
                               stderr=subprocess.PIPE, text=True)
    try:
        for line in process.stderr:
            if found := re.search(r"listening (http://\S+)", line):
                url = found.group(1)
            if "ready after" in line:
                break
        batches = {"none": ["base"] * arguments.streams, "adapters": [f"a{i}" for i in range(arguments.streams)]}
        found = {name: [] for name in batches}
        for turn in range(arguments.turns + 1):
            for name, models in batches.items():
                rate = speed(url, models, arguments.tokens)
                if turn > 0:  # the first one fills caches
                    found[name].append(rate)
        for name, rates in found.items():
            print(f"{name}: {', '.join(f'{rate:.1f}' for rate in rates)} tokens/s")
        ratio = statistics.median(found["adapters"]) / statistics.median(found["none"])
        print(f"with an adapter each: {ratio:.3f} of the speed without")
    finally:
        process.terminate()
        process.wait()


if __name__ == "__main__":
    main()
