#!/usr/bin/env python3
"""Prints prompts whose long answers can be checked, for tessera-load's workload `file`.

    python3 bench/served/copied_passages.py http://localhost:8080 NOVEL.txt... --prompts 48 > passages.jsonl

Each has a passage twice and its first words, so that a model copies the rest. An answer is right if it has the last
words, which a model reaches by copying all of the others. Only passages are kept that the server copies while it has
nothing else to do.
"""

import argparse
import concurrent.futures
import itertools
import json
import pathlib
import random
import re
import urllib.request

HEAD = 8  # words of the passage that the prompt gives
TAIL = 6  # words that an answer must have


def passages(paths, words, seed):
    chance = random.Random(seed)
    texts = [re.sub(r"\s+", " ", pathlib.Path(path).read_text("utf-8", "replace")).split(" ") for path in paths]
    while True:
        text = chance.choice(texts)
        begin = chance.randrange(len(text) - words)
        yield text[begin:begin + words]


def task(words):
    text = " ".join(words)
    return {"prompt": f"{text}\n\n{text}\n\n{' '.join(words[:HEAD])}", "answer": " ".join(words[-TAIL:])}


def is_copied(url, one, tokens):
    body = {"prompt": one["prompt"], "max_tokens": tokens, "temperature": 0}
    request = urllib.request.Request(url + "/v1/completions", json.dumps(body).encode(),
                                     {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=600) as answer:
        return one["answer"] in json.load(answer)["choices"][0]["text"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("url", help="of a server")
    parser.add_argument("texts", nargs="+", help="files of prose")
    parser.add_argument("--prompts", type=int, default=48)
    parser.add_argument("--words", type=int, default=220, help="of a passage")
    parser.add_argument("--tokens", type=int, default=340, help="of an answer, at most")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    drawn = map(task, passages(args.texts, args.words, args.seed))
    kept = 0
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        while kept < args.prompts:
            some = list(itertools.islice(drawn, 8))
            for one, copied in zip(some, pool.map(lambda one: is_copied(args.url, one, args.tokens), some)):
                if copied and kept < args.prompts:
                    print(json.dumps(one), flush=True)
                    kept += 1


if __name__ == "__main__":
    main()
