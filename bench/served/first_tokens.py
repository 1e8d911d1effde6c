"""Time to the first token of a new prompt, and bytes of the prefix cache before and after replays.

    python3 bench/served/first_tokens.py http://localhost:8080 --text NOVEL.txt

Each chat has two turns, and a piece of the text that no other chat has. Between the turns the
server is left alone until the bytes of its prefix cache are constant. At the end a long answer is
streamed twice: while nothing else happens, and while the blocks of a new prompt are replayed.
"""

import argparse
import json
import statistics
import time
import urllib.parse

from completions import call, complete


def cache(url):
    return json.load(call(url, "GET", "/v1/cache"))


def wait_until_idle(url):
    """Returns: seconds until the last change of the cached bytes, to a tenth of a second."""
    began, last, changed = time.monotonic(), None, 0
    while time.monotonic() - began < changed + 3:
        now = cache(url)["bytes"]
        if now != last:
            last, changed = now, time.monotonic() - began
        time.sleep(0.1)
    return changed


def measure_chat(url, text):
    first, question = text[:-300], text[-300:]
    answer, times, usage = complete(url, first, 16, ignore_eos=True)
    before = cache(url)["bytes"]
    idle = wait_until_idle(url)
    after = cache(url)["bytes"]
    _, later, found = complete(url, first + answer + question, 16, ignore_eos=True)
    wait_until_idle(url)
    call(url, "POST", "/v1/cache/flush")
    time.sleep(0.5)
    return {
        "prompt": usage["prompt_tokens"],
        "TTFT s": times[0],
        "cached MiB": before / 2**20,
        "MiB idle": after / 2**20,
        "s until idle": idle,
        "later cached": found["prompt_tokens_details"]["cached_tokens"],
        "later TTFT s": later[0],
        "sequence MiB": found["kv_cache"]["bytes"] / 2**20,
    }


def gaps(times):
    between = sorted(1000 * (b - a) for a, b in zip(times, times[1:]))
    return f"median {statistics.median(between):.1f} ms, 95th percentile {between[int(0.95 * len(between))]:.1f} ms"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("url", type=urllib.parse.urlsplit)
    parser.add_argument("--text", required=True)
    parser.add_argument("--chats", type=int, default=5)
    parser.add_argument("--characters", type=int, default=6300, help="of each chat")
    args = parser.parse_args()
    with open(args.text, encoding="utf-8") as file:
        text = " ".join(file.read().split())
    pieces = [text[i * args.characters : (i + 1) * args.characters] for i in range(args.chats + 2)]
    measure_chat(args.url, pieces[args.chats])  # warms up
    rows = [measure_chat(args.url, piece) for piece in pieces[: args.chats]]
    print("  ".join(rows[0]))
    for row in rows:
        print("  ".join(f"{value:{len(name)}.2f}" for name, value in row.items()))
    print("medians: " + ", ".join(f"{n} {statistics.median(r[n] for r in rows):.2f}" for n in rows[0]))
    _, alone, _ = complete(args.url, "Once upon a time", 200, ignore_eos=True)
    complete(args.url, pieces[args.chats + 1], 1, ignore_eos=True)
    _, beside, _ = complete(args.url, "Once upon a time", 200, ignore_eos=True)
    print(f"tokens of an answer, alone: {gaps(alone)}; beside replays: {gaps(beside)}")


if __name__ == "__main__":
    main()
