#!/usr/bin/env python3
"""Measures the cost of constrained decoding, on a server of its own.

    python3 bench/served/constrained_cost.py build/release/bin/tessera-server MODEL

1. Time of a token at 64 sequences under a JSON schema, over that of sequences without one. Both kinds run
   in turn, with the same prompts and lengths; the median of the ratios counts.
2. Share of the server's CPU time, less waiting, in masks, grammars and sampling, while 64 sequences follow the schema.
   It needs `perf`, and is left out without it. Unlike times, it means something on a busy machine.
3. Time to the first token under a schema that is cached, over that without one, request by request.

It takes 5 minutes with a model of 135 M parameters. The exit status is 1 beyond a bound: ratio of tokens 1.03,
share 3 %, ratio of first tokens 1.02.
"""

import argparse
import concurrent.futures
import json
import os
import pathlib
import random
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request

SCHEMA = {"type": "array", "minItems": 40, "items": {
    "type": "object", "properties": {"name": {"type": "string"}, "n": {"type": "integer"}, "ok": {"type": "boolean"}},
    "required": ["name", "n", "ok"]}}
KINDS = {"free": {"ignore_eos": True}, "schema": {"structured_outputs": {"json": SCHEMA}}}
# Parts of symbols. Threads that wait for the next loop count as nothing.
PARTS = {"grammars": re.compile(r"xgrammar::|tessera_(grammar|append_row|newest_row)|Constraint|StepMasks|Mask(Cache|Key)|RowsRead|"
                                r"_Hash_bytes"),
         "waiting": re.compile(r"ThreadPool::(run|ThreadPool)\b"),
         "sampling": re.compile(r"RowPasses|RowChoice|sample_with|tessera::Sampler|StepSampler|weight_of")}


class Server:
    def __init__(self, args, folder):
        self.log = open(folder / "log", "w+")
        self.process = subprocess.Popen(
            [args.server, "--model", args.model, "--http-port", "0", "--grpc-port", "0", "--drain-delay", "0",
             "--context", "1024", "--prefix-cache", "off", "--max-sequences", str(args.sequences), "--isa", args.isa],
            stderr=self.log)
        for _ in range(1200):
            text = (folder / "log").read_text()
            if " ready after " in text:
                break
            assert self.process.poll() is None, text
            time.sleep(0.1)
        self.url = re.search(r"listening (http://\S+)", text)[1]

    def complete(self, **body):
        request = urllib.request.Request(self.url + "/v1/completions", json.dumps(body).encode(),
                                         {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=600) as answer:
            return json.load(answer)["usage"]["completion_tokens"]


def time_per_token(server, pool, kind, args):
    """Returns the seconds of a step that chooses a token of each sequence."""
    start = time.monotonic()
    counts = list(pool.map(lambda i: server.complete(
        prompt=f"Item {i}: a list of words", max_tokens=args.tokens, temperature=1, seed=i, **KINDS[kind]),
        range(args.sequences)))
    assert min(counts) == args.tokens, f"an answer ended after {min(counts)} tokens"
    return (time.monotonic() - start) / args.tokens


def ratio_of_tokens(server, pool, args):
    for kind in KINDS:
        time_per_token(server, pool, kind, args)
    ratios = []
    for i in range(args.rounds):
        order = list(KINDS) if i % 2 == 0 else list(KINDS)[::-1]
        took = {kind: time_per_token(server, pool, kind, args) for kind in order}
        ratios.append(took["schema"] / took["free"])
        print(f"round {i}: a step takes {1e3 * took['free']:.1f} ms free, {1e3 * took['schema']:.1f} ms under the schema, "
              f"ratio {ratios[-1]:.3f}", flush=True)
    return statistics.median(ratios)


def share_of_parts(server, pool, args, folder):
    """Returns the percentage of the CPU time of each part."""
    data = str(folder / "perf.data")
    perf = subprocess.Popen(["perf", "record", "-q", "-e", "cpu-clock", "-F", "499", "-o", data, "-p",
                             str(server.process.pid)])
    for _ in range(8):  # some 25,000 samples of two CPUs, of which 3 % are 2.8 to 3.2 %
        time_per_token(server, pool, "schema", args)
    perf.send_signal(2)
    perf.wait()
    report = subprocess.run(["perf", "report", "-i", data, "--no-children", "--sort", "symbol"],
                            capture_output=True, text=True).stdout
    shares = dict.fromkeys(PARTS, 0.0)
    for share, symbol in re.findall(r"^\s*([\d.]+)%\s+(.*)$", report, re.M):
        for part, pattern in PARTS.items():
            if pattern.search(symbol):
                shares[part] += float(share)
                break
    busy = 100 - shares.pop("waiting")  # threads spin between the loops of a step
    return {part: 100 * share / busy for part, share in shares.items()}


def ratio_of_first_tokens(server, args):
    words = "the cat sees a small house near some old trees and it goes home now".split()
    rng = random.Random(1)
    ratios = []
    for i in range(args.pairs + 1):
        prompt = " ".join(rng.choice(words) for _ in range(args.prompt))
        took = {}
        for kind in (list(KINDS) if i % 2 == 0 else list(KINDS)[::-1]):
            start = time.monotonic()
            server.complete(prompt=prompt, max_tokens=1, temperature=1, seed=i, **KINDS[kind])
            took[kind] = time.monotonic() - start
        if i > 0:  # the first warms up
            ratios.append(took["schema"] / took["free"])
    return statistics.median(ratios), 1e3 * took["free"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("server", help="tessera-server")
    parser.add_argument("model", help="a GGUF file or a folder, of a large vocabulary")
    parser.add_argument("--isa", default="auto", help="of the server")
    parser.add_argument("--sequences", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=96, help="of each answer")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--pairs", type=int, default=40, help="of first tokens")
    parser.add_argument("--prompt", type=int, default=300, help="words of a prompt, for first tokens")
    args = parser.parse_args()
    print(f"{os.cpu_count()} CPUs, load average {os.getloadavg()[0]:.1f}", flush=True)
    found = []  # name, value, bound
    with tempfile.TemporaryDirectory() as name:
        server = Server(args, pathlib.Path(name))
        try:
            with concurrent.futures.ThreadPoolExecutor(args.sequences) as pool:
                found.append(("time of a token, schema / free", ratio_of_tokens(server, pool, args), 1.03))
                if shutil.which("perf"):
                    shares = share_of_parts(server, pool, args, pathlib.Path(name))
                    print(", ".join(f"{part} {share:.2f} %" for part, share in shares.items()), flush=True)
                    found.append(("share of CPU time, %", sum(shares.values()), 3))
            ratio, least = ratio_of_first_tokens(server, args)
            print(f"a first token takes {least:.1f} ms without a schema")
            found.append(("time to the first token, schema / free", ratio, 1.02))
        finally:
            server.process.kill()
    print("\n| | measured | bound |\n|---|--:|--:|")
    for name, value, bound in found:
        print(f"| {name} | {value:.3f} | {bound} |")
    return all(value <= bound for _, value, bound in found)


if __name__ == "__main__":
    sys.exit(0 if main() else 1)
