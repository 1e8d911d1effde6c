#!/usr/bin/env python3
"""Measures how fast hostile schemas, grammars and chat templates are refused, and how they delay other streams.

    python3 bench/served/hostile_grammars.py build/release/bin/tessera-server MODEL

1. The CPU seconds of the server for each hostile request alone. Unlike times, they mean something on a busy machine.
2. Rounds: streams run all the time, and in every other part of a round two clients send hostile requests, each at most
   --rate a second. The longest answer counts, and the median over the rounds of the ratio of the 99th percentiles of the
   time between two tokens of a stream. With --rate 0 the clients never pause; their own CPU time then delays the streams
   too. --plain sends a request with a wrong type in place of the hostile ones, to show how much.

Every hostile request must be answered 400, but for two that are harmless here. The exit status is 1 beyond a bound: an
answer after 1 second, ratio 1.5.
"""

import argparse
import json
import multiprocessing
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

MIB = 1 << 20
# Exponential elsewhere; an automaton follows them, so they are answered.
HARMLESS = ("regex that backtracks", "$refs that double")
# A chat template that does the work that the first message names.
TEMPLATE_PARTS = {
    "loops": "{% for a in range(9999) %}{% for b in range(9999) %}{{ a }}{% endfor %}{% endfor %}",
    "recursion": "{% macro f() %}{{ f() }}{{ f() }}{% endmacro %}{{ f() }}",
    "doubling": "{% set ns = namespace(s='aa') %}{% for i in range(99) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
    "unique": "{% for i in range(999) %}{{ range(99999) | unique | list | length }}{% endfor %}",
    "search": "{% set s = 'a' * 4000000 %}{% for i in range(999) %}{{ s.find('a' * 2000000 ~ 'b') }}{% endfor %}",
}


def hostile_requests():
    """Returns the path and the body of each, by name."""
    loop = {f"a{i}": {"anyOf": [{"$ref": f"#/$defs/a{(7 * i + j) % 300}"} for j in range(5)]} for i in range(300)}
    nested = {"type": "null"}
    for _ in range(200):
        nested = {"type": "array", "items": nested}
    doubling = {"$defs": {f"a{i}": {"type": "array", "items": {"anyOf": [{"$ref": f"#/$defs/a{i + 1}"}] * 8},
                                    "maxItems": 900} for i in range(30)} | {"a30": {"type": "null"}},
                "$ref": "#/$defs/a0"}
    rules = "root ::= r0\n" + "".join(f"r{i} ::= r{i + 1} r{i + 1} | r{i + 1}\n" for i in range(1500)) + 'r1500 ::= "x"'
    properties = {f"p{i}": {"type": "string", "pattern": "^[a-z]{1,99}(x|y|z){1,99}$"} for i in range(500)}
    fields = {
        "regex of nested repeats": {"guided_regex": "(.{1,1000}){1,1000}"},
        "exponential pattern": {"guided_json": {"type": "string", "pattern": "(([a-z]{1,30}){1,30}){1,30}"}},
        "regex that backtracks": {"guided_regex": "((a|aa|b*)*c?)*" * 20 + "(.*a){40}"},
        "grammar that doubles": {"grammar": rules},
        "left recursion": {"grammar": "root ::= a\na ::= a a | a | b\nb ::= a | b a"},
        "900,000 choices": {"guided_choice": [f"{i}" for i in range(900_000)]},
        "10^6 values": {"guided_json": {"enum": list(range(1_000_000))}},
        "700,000 alternatives of a rule": {"grammar": "root ::= " + "|".join(f'"{i}"' for i in range(700_000))},
        "$ref loop": {"guided_json": {"$defs": loop, "$ref": "#/$defs/a0"}},
        "$refs that double": {"guided_json": doubling},
        "200 levels": {"guided_json": nested},
        "500 patterns": {"guided_json": {"type": "object", "properties": properties}},
        "8 MiB constant": {"guided_json": {"const": "x" * (8 * MIB - 400)}},
        "8 MiB of levels": {"guided_json": {"items": {"enum": [[[["x" * 60]]] for _ in range(100_000)]}}},
    }
    dumped = lambda body: json.dumps(body, separators=(",", ":")).encode()
    made = {name: ("/v1/completions", dumped({"prompt": "a", "max_tokens": 1} | more)) for name, more in fields.items()}
    for part in TEMPLATE_PARTS:
        chat = {"messages": [{"role": "user", "content": part}], "max_tokens": 1}
        made[f"template: {part}"] = ("/v1/chat/completions", dumped(chat))
    assert all(len(body) <= 8 * MIB for _, body in made.values())
    return made


class Server:
    def __init__(self, args, folder):
        template = "".join(f"{{% if messages[0].content == '{name}' %}}{text}{{% endif %}}"
                           for name, text in TEMPLATE_PARTS.items())
        (folder / "hostile.jinja").write_text(template)
        with open(folder / "log", "w") as log:
            self.process = subprocess.Popen(
                [args.server, "--model", args.model, "--http-port", "0", "--grpc-port", "0", "--drain-delay", "0",
                 "--context", "2048", "--chat-template", str(folder / "hostile.jinja")], stderr=log)
        for _ in range(1200):
            text = (folder / "log").read_text()
            if " ready after " in text:
                break
            assert self.process.poll() is None, text
            time.sleep(0.1)
        self.url = re.search(r"listening (http://\S+)", text)[1]

    def ask(self, path, body):
        return urllib.request.urlopen(urllib.request.Request(
            self.url + path, body, {"Content-Type": "application/json"}), timeout=600)

    def seconds_to_answer(self, name, path, body):
        start = time.monotonic()
        try:
            with self.ask(path, body) as answer:
                status, text = answer.status, answer.read()
        except urllib.error.HTTPError as error:
            status, text = error.code, error.read()
        took = time.monotonic() - start
        assert status == (200 if name in HARMLESS else 400), (name, status, text[:300])
        return took

    def cpu_seconds(self):
        fields = pathlib.Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


# A part of a run is a half of a round: quiet or hostile.
NO_PART = -1


def part_of(round_number, hostile):
    return 2 * round_number + hostile


def is_hostile(part):
    return part != NO_PART and part % 2 == 1


class Run:
    """Streams that never pause, and hostile clients that do. Each client is a process, so that none waits for the
    interpreter of another: a delay of the measuring client would look like a delay of the server."""

    def __init__(self, server, hostile, rate):
        self.server = server
        self.pause = 1 / rate if rate else 0  # seconds from one request of a client to its next, at least
        self.hostile = list(hostile.items())
        self.part = multiprocessing.Value("i", NO_PART)  # the measured part
        self.turn = multiprocessing.Value("i", 0)        # hostile requests that were begun
        self.ends = multiprocessing.Event()
        self.results = multiprocessing.Queue()
        self.gaps = {}     # of a part: seconds between two tokens
        self.slowest = {}  # of a hostile request: the longest answer in seconds

    def stream(self, seed):
        # Steps take longer as texts grow, so streams have different lengths, and each part has several of them.
        body = json.dumps({"prompt": "Once upon a time", "max_tokens": 150 + 40 * seed, "stream": True,
                           "ignore_eos": True, "seed": seed}).encode()
        gaps = {}
        while not self.ends.is_set():
            last = None
            for line in self.server.ask("/v1/completions", body):
                now, part = time.monotonic(), self.part.value
                if self.ends.is_set():
                    break
                if line.startswith(b"data: {"):
                    if last is not None and part != NO_PART:
                        gaps.setdefault(part, []).append(now - last)
                    last = now
        self.results.put((gaps, {}))

    def attack(self):
        slowest = {}
        while not self.ends.is_set():
            if not is_hostile(self.part.value):
                time.sleep(0.01)
                continue
            with self.turn.get_lock():
                name, (path, body) = self.hostile[self.turn.value % len(self.hostile)]
                self.turn.value += 1
            took = self.server.seconds_to_answer(name, path, body)
            slowest[name] = max(took, slowest.get(name, 0))
            time.sleep(max(0.0, self.pause - took))
        self.results.put(({}, slowest))

    def measure(self, streams, rounds, seconds):
        """Runs all rounds. A client that fails ends the run: it must not make the rest look quiet."""
        clients = [multiprocessing.Process(target=self.stream, args=(i,), daemon=True) for i in range(streams)]
        clients += [multiprocessing.Process(target=self.attack, daemon=True) for _ in range(2)]
        for client in clients:
            client.start()
        time.sleep(2)
        for i in range(rounds):
            for hostile in ((False, True) if i % 2 == 0 else (True, False)):
                self.part.value = part_of(i, hostile)
                time.sleep(seconds)
                self.part.value = NO_PART
                time.sleep(1.5)  # begun work ends
                assert all(client.is_alive() for client in clients), "a client failed"
        self.ends.set()
        for _ in clients:
            gaps, slowest = self.results.get(timeout=120)
            for part, more in gaps.items():
                self.gaps.setdefault(part, []).extend(more)
            for name, took in slowest.items():
                self.slowest[name] = max(took, self.slowest.get(name, 0))
        for client in clients:
            client.join()


def p99(gaps):
    return statistics.quantiles(gaps, n=100)[98]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("server", help="tessera-server")
    parser.add_argument("model", help="a GGUF file or a folder")
    parser.add_argument("--streams", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=12, help="of each half of a round")
    parser.add_argument("--rate", type=float, default=10, help="requests a second of each hostile client; 0: no pause")
    parser.add_argument("--plain", action="store_true", help="send a plain error instead")
    args = parser.parse_args()
    print(f"{os.cpu_count()} CPUs, load average {os.getloadavg()[0]:.1f}", flush=True)
    plain = {"plain error": ("/v1/completions", b'{"prompt":1}')}
    hostile = plain if args.plain else hostile_requests()
    with tempfile.TemporaryDirectory() as folder:
        server = Server(args, pathlib.Path(folder))
        try:
            cpu = {}
            for name, (path, body) in hostile.items():
                before = server.cpu_seconds()
                server.seconds_to_answer(name, path, body)
                cpu[name] = server.cpu_seconds() - before
                print(f"{name}: {cpu[name]:.2f} CPU s", flush=True)
            if args.rounds == 0:
                return all(seconds <= 1 for seconds in cpu.values())
            run = Run(server, hostile, args.rate)
            run.measure(args.streams, args.rounds, args.seconds)
        finally:
            server.process.kill()
    ratios = []
    for i in range(args.rounds):
        quiet, hostile_time = p99(run.gaps[part_of(i, False)]), p99(run.gaps[part_of(i, True)])
        ratios.append(hostile_time / quiet)
        print(f"round {i}: p99 between tokens {1e3 * quiet:.1f} ms quiet, {1e3 * hostile_time:.1f} ms hostile, "
              f"ratio {ratios[-1]:.2f}")
    print("\n| request | CPU s alone | longest answer, s |\n|---|--:|--:|")
    for name in hostile:
        print(f"| {name} | {cpu[name]:.2f} | {run.slowest.get(name, 0):.2f} |")
    print(f"\n{run.turn.value} hostile requests")
    longest, ratio = max(run.slowest.values()), statistics.median(ratios)
    print(f"\n| | measured | bound |\n|---|--:|--:|\n| longest answer, s | {longest:.2f} | 1 |\n"
          f"| p99 between tokens, hostile / quiet | {ratio:.2f} | 1.5 |")
    return longest <= 1 and ratio <= 1.5


if __name__ == "__main__":
    sys.exit(0 if main() else 1)
