"""Many questions about one document, of a server for each KV preset: answers, bytes, time to the first token.

    python3 bench/served/document_questions.py build/release/bin/tessera-server MODEL NOVEL.txt

A question quotes some words of the document, and the right answer is the words that follow there. The document is sent
first, alone. Then the questions come one after the other, each behind the whole document. Lost: of the questions that
the first preset answers.
"""

import argparse
import json
import pathlib
import random
import re
import statistics
import subprocess
import tempfile
import time
import urllib.parse

from completions import call, complete

QUOTED, ASKED = 24, 3  # words of a question, and of its answer


class Server:
    def __init__(self, args, preset, folder):
        log = pathlib.Path(folder) / "log"
        with open(log, "w") as file:
            self.process = subprocess.Popen(
                [args.server, "--model", args.model, "--http-port", "0", "--grpc-port", "0", "--drain-delay", "0",
                 "--context", "8192", "--max-sequences", "4", "--kv", preset, "--kv-ladder", "none"], stderr=file)
        while " ready after " not in log.read_text():
            if self.process.poll() is not None:
                raise SystemExit(log.read_text())
            time.sleep(0.1)
        self.url = urllib.parse.urlsplit(re.search(r"listening (http://\S+)", log.read_text())[1])

    def tokens(self, text):
        return json.load(call(self.url, "POST", "/tokenize", json.dumps({"prompt": text})))["tokens"]

    def cached_bytes(self):
        return json.load(call(self.url, "GET", "/v1/cache"))["bytes"]


def document_of(server, words, tokens):
    """Returns the first words of the novel that have at most this number of tokens."""
    low, high = 1, len(words)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if len(server.tokens(" ".join(words[:middle]))) <= tokens else (low, middle)
    return words[:low]


def ask_all(server, document, questions):
    """Returns the questions that were answered right, the times of the first tokens, and the last usage."""
    right, times, usage = set(), [], None
    for begin in questions:
        quoted = " ".join(document[begin:begin + QUOTED])
        expected = document[begin + QUOTED:begin + QUOTED + ASKED]
        text, seconds, usage = complete(server.url, " ".join(document) + "\n\n" + quoted, 4 * ASKED)
        times.append(seconds[0])
        if text.split()[:ASKED] == expected:
            right.add(begin)
    return right, times, usage


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("server", help="tessera-server")
    parser.add_argument("model", help="a GGUF file or a folder")
    parser.add_argument("text", help="UTF-8 prose")
    parser.add_argument("--kv", default="f16,k6v4r,replay-31")
    parser.add_argument("--tokens", type=int, default=4000)
    parser.add_argument("--questions", type=int, default=300)
    args = parser.parse_args()
    words = pathlib.Path(args.text).read_text().split()
    print("| preset | bytes in the cache: document, after the questions | document's first token, s "
          "| later, s: median, p90 | cached tokens | right | lost | gained |\n|---|" + "--:|" * 7, flush=True)
    reference = None
    for preset in args.kv.split(","):
        with tempfile.TemporaryDirectory() as folder:
            server = Server(args, preset, folder)
            try:
                document = document_of(server, words, args.tokens)
                places = range(len(document) - QUOTED - ASKED)
                questions = random.Random(1).sample(places, args.questions)
                _, alone, _ = complete(server.url, " ".join(document), 1)
                cached = server.cached_bytes()
                right, times, usage = ask_all(server, document, questions)
                after = server.cached_bytes()
            finally:
                server.process.kill()
                server.process.wait()
        reference = right if reference is None else reference
        times.sort()
        found = usage["prompt_tokens_details"]["cached_tokens"]
        print(f"| {preset} | {cached}, {after} | {alone[0]:.2f} "
              f"| {statistics.median(times):.3f}, {times[len(times) * 9 // 10]:.3f} "
              f"| {found} of {usage['prompt_tokens']} | {len(right)} "
              f"| {len(reference - right)} | {len(right - reference)} |", flush=True)


if __name__ == "__main__":
    main()
