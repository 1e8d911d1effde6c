"""Multi-turn chats against tessera-server: time to the first token with a prefix cache.

20 conversations of 8 turns, with think time, run on the shipped model. The KV pool holds a third of
their tokens in f16. One run is without the cache; the others have it, in f16 and k8v4, with and
without the ladder. Turns that found 80 % or more of their prompt are compared with the same turns
without the cache, in the same format: each user sends the same messages in every run.

    build/clients/requirements/bin/python bench/served/multi_turn.py build/release/bin/tessera-server

(tests/server/clients/run.sh creates that environment; only httpx is needed.)
"""

import argparse
import json
import os
import pathlib
import random
import statistics
import sys
import threading
import time

import httpx

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tests/server/clients"))
from tessera_server import TesseraServer  # noqa: E402

CONVERSATIONS = 20
TURNS = 8
DOCUMENT_WORDS = 640  # in the first message
QUESTION_WORDS = 20
ANSWER_TOKENS = 32
THINK_SECONDS = 2.0  # mean of an exponential distribution
CACHED_SHARE = 0.8
WORDS = ("a and big bird boat box boy cake cat day dog found friend game girl happy house in little "
         "long looked mom new not of old on one park play red run sad saw she small some story sun "
         "the they to toy tree very wanted was water went with").split()

# label, flags
RUNS = [
    ("f16, no cache", ["--kv", "f16", "--prefix-cache", "off"]),
    ("f16", ["--kv", "f16"]),
    ("f16, ladder k8v4, k4v2", ["--kv", "f16", "--kv-ladder", "k8v4,k4v2"]),
    ("k8v4, no cache", ["--kv", "k8v4", "--prefix-cache", "off"]),
    ("k8v4", ["--kv", "k8v4", "--kv-ladder", "none"]),
    ("k8v4, ladder k4v2", ["--kv", "k8v4", "--kv-ladder", "k4v2"]),
]


def words(rng, count):
    return " ".join(rng.choice(WORDS) for _ in range(count))


def ask(client, messages):
    """Returns the answer's text, its usage, and the seconds to its first token."""
    body = {"model": "tessera-tiny", "messages": messages, "max_tokens": ANSWER_TOKENS,
            "temperature": 0, "ignore_eos": True, "stream": True,
            "stream_options": {"include_usage": True}}
    begin = time.monotonic()
    text, usage, first = "", None, None
    with client.stream("POST", "/v1/chat/completions", json=body) as answer:
        assert answer.status_code == 200, answer.read()
        for line in answer.iter_lines():
            if not line.startswith("data: ") or line == "data: [DONE]":
                continue
            event = json.loads(line[len("data: "):])
            usage = event.get("usage") or usage
            for choice in event["choices"]:
                content = choice["delta"].get("content")
                if content and first is None:
                    first = time.monotonic() - begin
                text += content or ""
    return text, usage, first


class Turn:
    def __init__(self, usage, first):
        self.prompt = usage["prompt_tokens"]
        self.cached = usage["prompt_tokens_details"]["cached_tokens"]
        self.first = first


def converse(http, seed, turns):
    """Runs one conversation; its turns are stored in `turns` by (seed, number)."""
    rng = random.Random(seed)
    messages = []
    with httpx.Client(base_url=http, timeout=120) as client:
        time.sleep(rng.uniform(0, THINK_SECONDS))
        for number in range(TURNS):
            count = DOCUMENT_WORDS if number == 0 else QUESTION_WORDS
            messages.append({"role": "user", "content": words(rng, count)})
            text, usage, first = ask(client, messages)
            turns[seed, number] = Turn(usage, first)
            messages.append({"role": "assistant", "content": text})
            time.sleep(rng.expovariate(1 / THINK_SECONDS))


def run(flags):
    """Returns the turns by (conversation, number)."""
    turns = {}
    with TesseraServer(*flags) as server:
        chats = [threading.Thread(target=converse, args=(server.http, seed, turns))
                 for seed in range(CONVERSATIONS)]
        for chat in chats:
            chat.start()
        for chat in chats:
            chat.join()
        server.signal()
        server.wait()
    assert len(turns) == CONVERSATIONS * TURNS, "a conversation failed"
    return turns


def pool_bytes(slots, tokens):
    """Returns the --kv-memory that holds `tokens` tokens in f16."""
    probe = 64 << 20
    with TesseraServer("--max-sequences", str(slots), "--kv-memory", str(probe)) as server:
        fixed = sum(server.metric("tessera:kv_bytes", state=s) for s in ("window", "tables"))
        token = (probe - fixed) / server.metric("tessera:kv_token_capacity")
        server.signal()
        server.wait()
    return round(fixed + tokens * token)


def percentile(values, share):
    return statistics.quantiles(values, n=100, method="inclusive")[round(100 * share) - 1]


def row(label, turns, without):
    hits = [key for key, turn in turns.items() if turn.cached >= CACHED_SHARE * turn.prompt]
    found = sum(t.cached for t in turns.values()) / sum(t.prompt for t in turns.values())
    cells = [label, f"{found:.2f}", f"{len(hits)} of {len(turns)}"]
    for share in (0.5, 0.9):
        if len(hits) < 2:
            cells += ["-"] * 3
            continue
        with_cache = percentile([turns[key].first for key in hits], share)
        alone = percentile([without[key].first for key in hits], share)
        cells += [f"{1000 * alone:.1f}", f"{1000 * with_cache:.1f}", f"{alone / with_cache:.1f}"]
    return "| " + " | ".join(cells) + " |"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("server", help="tessera-server to run")
    parser.add_argument("--max-sequences", type=int, default=8)
    parser.add_argument("--threads", type=int, default=0)
    args = parser.parse_args()
    os.environ["TESSERA_SERVER"] = str(pathlib.Path(args.server).resolve())

    common = ["--max-sequences", str(args.max_sequences), "--threads", str(args.threads)]
    measured = {}
    memory = pool_bytes(args.max_sequences, 2048 * CONVERSATIONS // 3)
    for label, flags in RUNS:
        if not measured:  # measures the length of the conversations
            lengths = run(common + flags)
            tokens = sum(lengths[seed, TURNS - 1].prompt + ANSWER_TOKENS
                         for seed in range(CONVERSATIONS))
            memory = pool_bytes(args.max_sequences, tokens // 3)
            print(f"{CONVERSATIONS} conversations of {tokens // CONVERSATIONS} tokens, {TURNS} turns "
                  f"each; --kv-memory {memory} holds {tokens // 3} tokens of f16\n")
            print("| | prompt tokens found | turns with 80 % | p50 ms without | p50 ms | times "
                  "| p90 ms without | p90 ms | times |")
            print("|---|--:|--:|--:|--:|--:|--:|--:|--:|")
        turns = run(common + flags + ["--kv-memory", str(memory)])
        measured[label] = turns
        if "no cache" not in label:
            without = measured[label.split(",")[0] + ", no cache"]
            print(row(label, turns, without), flush=True)


if __name__ == "__main__":
    main()
