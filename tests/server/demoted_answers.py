"""Answers from prefix blocks that the default ladder has demoted, on real checkpoints.

A document with 26 numbers is asked about. Two others then fill the memory, so the ladder demotes blocks of the first.
All 26 questions about it are asked again, and must be answered as by a server that demotes nothing.

  python3 tests/server/demoted_answers.py build/release/bin/tessera-server MODEL.gguf...
"""

import json
import pathlib
import random
import subprocess
import sys
import tempfile
import time
import urllib.request

SEED = 20261129
NAMES = """Alma Bruno Clara Dario Edith Felix Greta Henry Irene Jakob Katja Lukas Marta Nadia Oscar Paula Quinn Rosa
Simon Tilda Ulrich Vera Walter Xenia Yusuf Zelda""".split()
FILLER = "The old clerk wrote it down twice, closed the book, and went on to the next one."
CONTEXT = 2048


def document(seed):
    draw = random.Random(seed)
    codes = {name: draw.randrange(10_000, 99_999) for name in NAMES}
    lines = [f"The locker code of {name} is {code}. {FILLER}" for name, code in codes.items()]
    return "Notes of the swimming hall.\n" + "\n".join(lines) + "\n", codes


class Server:
    def __init__(self, binary, model, memory, ladder):
        self.log = tempfile.NamedTemporaryFile()
        self.process = subprocess.Popen(
            [binary, "--model", model, "--http-port", "0", "--grpc-port", "0", "--max-sequences", "1", "--context",
             str(CONTEXT), "--kv-memory", str(memory), "--kv-ladder", ladder], stderr=self.log)
        self.address = None
        for _ in range(1200):
            found = [line.split("listening ")[1] for line in pathlib.Path(self.log.name).read_text().splitlines()
                     if "listening http" in line]
            if found:
                self.address = found[0].strip()
                try:
                    urllib.request.urlopen(self.address + "/health", timeout=5).read()
                    return
                except OSError:
                    pass
            time.sleep(0.1)
        raise SystemExit(pathlib.Path(self.log.name).read_text())

    def get(self, path):
        return json.load(urllib.request.urlopen(self.address + path, timeout=60))

    def answer(self, text, name):
        body = {"prompt": f"{text}\nQuestion: what is the locker code of {name}?\n"
                          f"Answer: the locker code of {name} is", "max_tokens": 8, "temperature": 0}
        request = urllib.request.Request(self.address + "/v1/completions", json.dumps(body).encode(),
                                         {"Content-Type": "application/json"})
        reply = json.load(urllib.request.urlopen(request, timeout=300))
        return reply["choices"][0]["text"], reply["usage"]

    def stop(self):
        self.process.terminate()
        self.process.wait(60)


def memory_of(binary, model):
    """Bytes of one whole context in k8v4, and a quarter more."""
    plan = subprocess.run([binary, "--plan", "--model", model, "--context", str(CONTEXT), "--max-sequences", "1", "--kv",
                           "k8v4"], capture_output=True, text=True, check=True).stdout
    whole = next(int(line.split()[-2]) for line in plan.splitlines() if "KV cache k8v4" in line)
    return whole * 5 // 4


def right_answers(binary, model, ladder):
    """Returns: answers that were right behind the two other documents, and tokens that were read demoted."""
    text, codes = document(SEED)
    server = Server(binary, model, memory_of(binary, model), ladder)
    try:
        server.answer(text, NAMES[0])
        for other in (1, 2):
            server.answer(document(SEED + other)[0], NAMES[0])
        demoted = server.get("/v1/cache")["demoted_units"]
        right = sum(str(codes[name]) in server.answer(text, name)[0] for name in NAMES)
        return right, demoted
    finally:
        server.stop()


def main():
    binary, *models = sys.argv[1:]
    failed = 0
    for model in models:
        expected, none = right_answers(binary, model, "none")
        right, demoted = right_answers(binary, model, "auto")
        print(f"{pathlib.Path(model).name}: {right} of {len(NAMES)} right after {demoted} blocks were demoted, "
              f"{expected} with --kv-ladder none", flush=True)
        failed += none != 0 or demoted == 0 or right < expected
    print(f"{len(models) - failed} passed, {failed} failed")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
