#!/usr/bin/env python3
"""A prompt that comes back from a file: tessera-server's tier on disk beside llama-server's --slot-save-path.

    python3 bench/served/saved_slots.py build/release/bin/tessera-server LLAMA_SERVER MODEL.gguf --tokens 1000

For each cache type of both servers: the first token of a new prompt, of the same prompt and a question from memory, and
from a file by a new process. LLAMA_SERVER is the program of llama.cpp. The files are in the page cache.
"""

import argparse
import json
import pathlib
import socket
import statistics
import subprocess
import tempfile
import time
import urllib.parse

from completions import call
from returning_chats import QUESTION, ask, tokens
from running_server import RunningServer

COLUMNS = ("computed", "from memory", "from a file", "bytes of 1,000 tokens")


class LlamaServer:
    def __init__(self, program, model, kind, context, folder):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.command = [program, "-m", model, "--port", str(port), "-c", str(context), "-np", "1", "-t", "2", "-fa", "on",
                        "-ctk", kind, "-ctv", kind, "--slot-save-path", folder]
        self.url = urllib.parse.urlsplit(f"http://127.0.0.1:{port}")

    def __enter__(self):
        self.process = subprocess.Popen(self.command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        while True:
            try:
                call(self.url, "GET", "/health")
                return self
            except (OSError, SystemExit):  # not there yet, or loading
                if self.process.poll() is not None:
                    raise SystemExit("llama-server has ended") from None
                time.sleep(0.05)

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait()

    def first_token(self, prompt):
        """Returns the seconds, and the number of tokens that were computed."""
        body = {"prompt": prompt, "n_predict": 1, "temperature": 0, "cache_prompt": True, "id_slot": 0}
        began = time.monotonic()
        answer = json.load(call(self.url, "POST", "/completion", json.dumps(body)))
        return time.monotonic() - began, answer["timings"]["prompt_n"]

    def slot(self, action):
        answer = call(self.url, "POST", f"/slots/0?action={action}", json.dumps({"filename": "slot"}))
        return json.load(answer)


def of_llama(arguments, kind):
    rows = []
    for turn in range(arguments.turns):
        prompt = tokens(f"prompt {turn}", arguments.tokens)
        asked = [prompt + tokens(f"question {turn} {i}", QUESTION) for i in range(2)]
        with tempfile.TemporaryDirectory() as folder:
            server = LlamaServer(arguments.llama, arguments.model, kind, arguments.tokens + 256, folder)
            with server:
                server.first_token(tokens("warm", 64))
                computed, _ = server.first_token(prompt)
                saved = server.slot("save")
                memory, again = server.first_token(asked[0])
            with server:
                server.first_token(tokens("warm", 64))
                began = time.monotonic()
                server.slot("restore")
                restored, new = server.first_token(asked[1])
                restored = time.monotonic() - began
        assert max(again, new) <= QUESTION + 1, f"{again} and {new} tokens were computed again"
        rows.append((computed, memory, restored, 1000 * saved["n_written"] / saved["n_saved"]))
    return rows


def of_tessera(arguments, kind):
    rows = []
    flags = ["--kv", kind, "--kv-ladder", "none", "--context", arguments.tokens + 256, "--max-sequences", "1"]
    for turn in range(arguments.turns):
        prompt = tokens(f"prompt {turn}", arguments.tokens)
        asked = [prompt + tokens(f"question {turn} {i}", QUESTION) for i in range(2)]
        with tempfile.TemporaryDirectory() as folder:
            disk = ["--kv-disk", folder + "/kv"]
            with RunningServer(arguments.server, arguments.model, *flags, *disk) as server:
                ask(server, tokens("warm", 40), 1)
                _, computed, _ = ask(server, prompt, 1)
                _, memory, again = ask(server, asked[0], 1)
            with RunningServer(arguments.server, arguments.model, *flags, *disk) as server:
                tier = server.tier("disk")
                stored = tier["units"] * server.cache()["unit_tokens"]
                ask(server, tokens("warm again", 40), 1)
                _, restored, new = ask(server, asked[1], 1)
        assert min(again, new) >= arguments.tokens - 64, f"{again} and {new} tokens were found"
        rows.append((computed[0], memory[0], restored[0], 1000 * tier["bytes"] / stored))
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("server")
    parser.add_argument("llama")
    parser.add_argument("model")
    parser.add_argument("--tokens", type=int, default=1000)
    parser.add_argument("--turns", type=int, default=1, help="prompts of each; medians are printed")
    parser.add_argument("--kv", default="f16,k8v8,k8v4", help="formats of Tessera")
    parser.add_argument("--types", default="f16,q8_0", help="cache types of llama-server")
    arguments = parser.parse_args()
    arguments.model = str(pathlib.Path(arguments.model).resolve())
    print("| server, cache | " + " | ".join(COLUMNS) + " |\n|---|" + "--:|" * len(COLUMNS))
    programs = [("llama-server", of_llama, kind) for kind in arguments.types.split(",")]
    programs += [("Tessera", of_tessera, kind) for kind in arguments.kv.split(",")]
    for name, measure, kind in programs:
        row = [statistics.median(column) for column in zip(*measure(arguments, kind))]
        times = " | ".join(f"{1000 * seconds:,.0f} ms" for seconds in row[:3])
        print(f"| {name}, {kind} | {times} | {row[3]:,.0f} |", flush=True)


if __name__ == "__main__":
    main()
