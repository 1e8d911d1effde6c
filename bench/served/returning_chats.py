#!/usr/bin/env python3
"""Chats that return after memory has lost them: what the tiers give back, how soon, and what writing costs.

    python3 bench/served/returning_chats.py build/release/bin/tessera-server MODEL.gguf --chats 1000 --in-memory 50

Each chat has a prompt of its own, of random tokens, and memory holds few of them. All chats have their first turn, then
all their second one in the same order, so that each finds its prefix in the tier alone. Some have a third turn at once,
which finds it in memory. Times are to the first token. At the end two servers, one with the tier and one without, decode
in turns behind new prompts. MODEL may be a GGUF file.
"""

import argparse
import json
import random
import statistics
import tempfile
import time

from completions import call
from running_server import RunningServer

QUESTION = 50  # tokens of a later turn
ANSWER = 16


def tokens(name, count):
    """Token ids that ordinary vocabularies have, and no special ones."""
    chance = random.Random(name)
    return [chance.randrange(1000, 20000) for _ in range(count)]


def ask(server, prompt, answer=ANSWER):
    """Returns the answer's token ids, the seconds of each token since the request, and its cached tokens."""
    body = {"prompt": prompt, "max_tokens": answer, "temperature": 0, "ignore_eos": True, "stream": True,
            "return_token_ids": True, "stream_options": {"include_usage": True}}
    began = time.monotonic()
    ids, times, cached = [], [], None
    for line in call(server.url, "POST", "/v1/completions", json.dumps(body)):
        if line.startswith(b"data: {"):
            event = json.loads(line[6:])
            for choice in event["choices"]:
                if new := choice.get("token_ids"):
                    ids += new
                    times.append(time.monotonic() - began)
            if usage := event.get("usage"):
                cached = usage["prompt_tokens_details"]["cached_tokens"]
    return ids, times, cached


def bytes_of_chat(arguments):
    with RunningServer(arguments.server, arguments.model, *arguments.flags) as server:
        ask(server, tokens("size", arguments.tokens + ANSWER + QUESTION))
        return server.cache()["bytes"]


class Turns:
    """Times to the first token, and what was found of the tokens before."""

    def __init__(self, name):
        self.name, self.times, self.found, self.before = name, [], 0, 0

    def add(self, times, cached, before):
        self.times.append(times[0])
        self.found += cached
        self.before += before

    def __str__(self):
        share = f"{self.found / self.before:.1%} of earlier tokens found" if self.before else "nothing before"
        ordered = sorted(1000 * one for one in self.times)
        return (f"{self.name}: {len(ordered)} turns, first token p50 {statistics.median(ordered):.0f} ms, "
                f"p90 {ordered[int(0.9 * (len(ordered) - 1))]:.0f} ms, {share}")


def measure_turns(server, arguments):
    first, tier, memory = Turns("first turns, computed"), Turns("second turns, tier"), Turns("third turns, memory")
    chats = []
    for chat in range(arguments.chats):
        prompt = tokens(f"chat {chat}", arguments.tokens)
        ids, times, cached = ask(server, prompt)
        first.add(times, cached, 0)
        chats.append(prompt + ids)
    time.sleep(2)  # until the newest blocks are written
    for chat, before in enumerate(chats):
        prompt = before + tokens(f"second {chat}", QUESTION)
        ids, times, cached = ask(server, prompt)
        tier.add(times, cached, len(before))
        if chat % max(1, arguments.chats // arguments.third) == 0:
            before = prompt + ids
            _, times, cached = ask(server, before + tokens(f"third {chat}", QUESTION))
            memory.add(times, cached, len(before))
    for turns in (first, tier, memory):
        print(turns)
    p50 = [statistics.median(turns.times) for turns in (first, tier, memory)]
    print(f"tier: {p50[1] / p50[2]:.2f} times the first token from memory, {p50[1] / p50[0]:.3f} of computing", flush=True)
    for one in server.cache()["tiers"]:
        print(f"{one['tier']}: {one['bytes'] / 1e6:.0f} MB in {one['units']} blocks, {one['read_units']} read, "
              f"{one['damaged_units']} damaged", flush=True)


def measure_writing(arguments, tier, memory):
    """Steps of a server that writes its new blocks, beside one that has no tier."""
    gaps = {"writing": [], "not writing": []}
    with RunningServer(arguments.server, arguments.model, *memory, *tier) as writing, \
            RunningServer(arguments.server, arguments.model, *memory) as plain:
        for turn in range(arguments.rounds + 1):
            servers = [("writing", writing), ("not writing", plain)]
            for name, server in servers if turn % 2 else servers[::-1]:
                _, times, _ = ask(server, tokens(f"steps {turn}", 512), 48)
                if turn > 0:  # the first one fills caches
                    gaps[name].append(statistics.mean(b - a for a, b in zip(times, times[1:])))
    for name, means in gaps.items():
        print(f"{name}: {1000 * statistics.median(means):.3f} ms a step, median of {len(means)} answers")
    pairs = sorted(a / b for a, b in zip(*gaps.values()))
    print(f"pairs: median {statistics.median(pairs):.4f}, from {pairs[0]:.3f} to {pairs[-1]:.3f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("server")
    parser.add_argument("model")
    parser.add_argument("--chats", type=int, default=1000)
    parser.add_argument("--in-memory", type=int, default=50, help="chats that memory has room for")
    parser.add_argument("--tokens", type=int, default=2000, help="of a first turn's prompt")
    parser.add_argument("--third", type=int, default=20, help="chats with a third turn, about")
    parser.add_argument("--rounds", type=int, default=20, help="pairs of answers, with and without writing")
    parser.add_argument("--host-memory", help="of a tier there, such as 4GiB; without it the tier is on disk")
    parser.add_argument("--flags", default="--kv k8v4 --kv-ladder none", help="of the server")
    arguments = parser.parse_args()
    arguments.flags = arguments.flags.split() + ["--context", str(arguments.tokens + 256), "--max-sequences", "2"]
    size = bytes_of_chat(arguments)
    memory = [*arguments.flags, "--kv-memory", arguments.in_memory * size, "--kv-populate", "on"]
    print(f"{arguments.chats} chats of {arguments.tokens} tokens, {size / 1e6:.1f} MB each, "
          f"memory for {arguments.in_memory}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        tier = ["--kv-host-memory", arguments.host_memory] if arguments.host_memory else \
            ["--kv-disk", folder + "/turns", "--kv-disk-size", "100GiB"]
        with RunningServer(arguments.server, arguments.model, *memory, *tier) as server:
            measure_turns(server, arguments)
        if arguments.rounds > 0:
            tier = [one.replace("/turns", "/steps") for one in tier]
            measure_writing(arguments, tier, memory)


if __name__ == "__main__":
    main()
