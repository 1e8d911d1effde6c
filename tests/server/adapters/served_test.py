"""A load with checked answers by adapter, while adapters come and go: python3 served_test.py SERVER.

Needs only Python and the shipped model. Clients ask for deterministic answers of several adapters and of the model
itself, and compare each with the answer of the idle server. Memory has room for some of the adapters, so they are read
again and again. Meanwhile others are loaded and unloaded.
"""

import concurrent.futures
import json
import pathlib
import random
import subprocess
import sys
import tempfile
import threading
import time
import unittest

HERE = pathlib.Path(__file__).resolve()
sys.path[:0] = [str(HERE.parents[1] / "attack"), str(HERE.parents[3] / "bench/served")]

from attacked_server import MODEL, Server, flags_of  # noqa: E402
from random_adapters import write  # noqa: E402

SERVER = sys.argv[1]
SECONDS = 8
ADAPTERS, CLIENTS = 6, 6
PROMPTS = ["Once upon a time", "The cat and the boat went", "Tom had a red ball. " * 12]
BUSY = (429, 503)


class Load(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        config = json.loads((MODEL / "config.json").read_text())
        for seed in range(ADAPTERS):
            write(config, self.folder / str(seed), seed, rank=8, size=0.15)
        each = (self.folder / "0/adapter_model.safetensors").stat().st_size
        # Matrices are bf16 beside this model's weights: half of the file, with room for three.
        self.server = Server(SERVER, "--served-model-name", "base", "--lora-memory", str(each * 7 // 4),
                             "--lora", f"a0={self.folder / '0'}")
        self.addCleanup(self.server.__exit__)

    def ask(self, model, prompt, **more):
        body = {"model": model, "prompt": prompt, "max_tokens": 24, "temperature": 0, "deterministic": True, **more}
        status, _, answer = self.server.ask("POST", "/v1/completions", body)
        return status, json.loads(answer)["choices"][0]["text"] if status == 200 else answer.decode()

    def change(self, route, name, seed=None):
        body = {"lora_name": name} | ({} if seed is None else {"lora_path": str(self.folder / str(seed))})
        return self.server.ask("POST", f"/v1/{route}_lora_adapter", body)[0]

    def load(self, name, seed):
        while (status := self.change("load", name, seed)) in BUSY:
            time.sleep(0.01)
        self.assertEqual(status, 200)

    def expected(self, models):
        answers = {}
        for model in models:
            for prompt in PROMPTS:
                status, answers[model, prompt] = self.ask(model, prompt, cache_prompt=False)
                self.assertEqual(status, 200, answers[model, prompt])
        for prompt in PROMPTS:
            self.assertEqual(len({answers[model, prompt] for model in models}), len(models), "adapters differ")
        return answers

    def test_answers_are_those_of_their_adapter_while_others_come_and_go(self):
        kept = [f"a{seed}" for seed in range(4)]
        for seed in range(1, 4):
            self.load(f"a{seed}", seed)
        expected = self.expected(["base", *kept])
        end = time.monotonic() + SECONDS
        counts = {"right": 0, "busy": 0, "gone": 0}
        lock = threading.Lock()

        def client(seed):
            chance = random.Random(seed)
            while time.monotonic() < end:
                model = chance.choice(["base", *kept, "guest4", "guest5"])
                prompt = chance.choice(PROMPTS)
                status, text = self.ask(model, prompt)
                with lock:
                    if model.startswith("guest"):
                        self.assertIn(status, (200, 404, *BUSY), text)
                        counts["gone"] += status == 404
                        if status == 200:  # every guest has one text for a prompt, whenever it comes
                            self.assertEqual(expected.setdefault((model, prompt), text), text)
                    elif status in BUSY:
                        counts["busy"] += 1
                    else:
                        self.assertEqual((status, text), (200, expected[model, prompt]), model)
                        counts["right"] += 1

        def come_and_go():
            changes = 0
            while time.monotonic() < end:
                for seed in (4, 5):
                    if self.change("load", f"guest{seed}", seed) == 200:
                        time.sleep(0.2)
                        self.assertEqual(self.change("unload", f"guest{seed}"), 200)
                        changes += 1
            return changes

        with concurrent.futures.ThreadPoolExecutor(CLIENTS + 1) as pool:
            changing = pool.submit(come_and_go)
            for one in [pool.submit(client, seed) for seed in range(CLIENTS)]:
                one.result()
            changes = changing.result()
        print(counts, "changes:", changes, file=sys.stderr)
        self.assertGreater(counts["right"], 20)
        self.assertGreater(changes, 2)
        names = [card["id"] for card in json.loads(self.server.ask("GET", "/v1/models")[2])["data"]]
        self.assertEqual(names, ["base", *kept])

    def test_a_start_names_the_adapter_that_it_cannot_read(self):
        nowhere = str(self.folder / "nowhere")
        ended = subprocess.run([SERVER, *flags_of("--lora", f"sql={nowhere}")], stderr=subprocess.PIPE, text=True)
        self.assertNotEqual(ended.returncode, 0)
        self.assertIn(f"lora: sql: {nowhere}: there is no such adapter", ended.stderr)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]], verbosity=2)
