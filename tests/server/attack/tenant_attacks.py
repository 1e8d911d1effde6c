"""Attacks of one client on the turns, the cache and the requests of others: see attack_test.py."""

import contextlib
import json
import tempfile
import time
import unittest

from attack_case import PROMPT, SLOWER, asking_without_end, serve, tokens_in
from attacked_server import PATIENCE, Http2, eventually, field
from grpc_attacks import generate

KEYS = {name: f"a-long-key-of-{name}" for name in ("heavy", "light", "admin")}
TENANTS = f"""
tenants:
  - name: heavy
    keys: [{{name: heavy, key: {KEYS["heavy"]}}}]
  - name: light
    keys:
      - {{name: light, key: {KEYS["light"]}}}
      - {{name: admin, key: {KEYS["admin"]}, admin: true}}
"""
DAY = 24 * 3600


def with_key(name):
    return {"Authorization": f"Bearer {KEYS[name]}"}


class OneTenant(unittest.TestCase):
    """Without a tenant file."""

    def test_priorities_and_pins_are_bounded(self):
        with serve() as server:
            for field_name, value in (("priority", -1_000_000), ("cache", {"pin": True, "ttl": DAY})):
                status, _, answer = server.ask(
                    "POST", "/v1/completions", {"prompt": PROMPT, "max_tokens": 1, field_name: value})
                self.assertEqual(status, 400, answer)
                self.assertIn(field_name, json.loads(answer)["error"]["message"])


class Tenants(unittest.TestCase):
    @contextlib.contextmanager
    def serving(self, *flags):
        with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
            file.write(TENANTS)
            file.flush()
            with serve("--tenants", file.name, *flags) as server:
                yield server

    def test_the_best_priority_of_one_starves_no_other(self):
        with self.serving("--max-sequences", "2", "--context", "256", "--queue-timeout", f"{60 * SLOWER}s") as server:
            tokens = tokens_in(server, 0.5, most=20, headers=with_key("heavy"))
            flood = {"prompt": PROMPT, "max_tokens": 5 * tokens, "ignore_eos": True, "priority": -4}
            ask = {"prompt": PROMPT, "max_tokens": tokens, "ignore_eos": True, "priority": 4}
            with asking_without_end(server, 16, flood, with_key("heavy")) as answered:
                eventually(lambda: answered.count(200) > 8, "the flood", PATIENCE * SLOWER)
                begin, before = time.monotonic(), answered.count(200)
                for _ in range(4):
                    status, _, answer = server.ask("POST", "/v1/completions", ask, with_key("light"))
                    self.assertEqual(status, 200, answer)
                # A fifth of the tokens of one request of the flood, each with a half of the turns.
                self.assertLess(answered.count(200) - before, 16)
                self.assertLess(time.monotonic() - begin, 10 * SLOWER)

    def test_only_an_administrator_flushes_the_cache(self):
        with self.serving() as server:
            for name, status in (("heavy", 403), ("light", 403), ("admin", 200)):
                self.assertEqual(server.ask("POST", "/v1/cache/flush", "{}", with_key(name))[0], status)

    def test_one_aborts_no_request_of_another(self):
        found = b"\0\0\0\0\2\x08\x01"
        with self.serving() as server, Http2(server) as stream, Http2(server) as client:
            stream.call(1, "Generate", generate(request_id="mine", text=PROMPT, max_tokens=1800, ignore_eos=1),
                        KEYS["light"])
            stream.read_until(b"mine")
            client.call(1, "Abort", field(1, "mine"), KEYS["heavy"])
            self.assertEqual(client.answer(1), b"", "not found")
            client.call(3, "Abort", field(1, "mine"), KEYS["light"])
            self.assertEqual(client.answer(3), found[5:])

    def test_cached_tokens_tell_nothing_of_anothers_prompts(self):
        def cached(name):
            body = {"prompt": PROMPT * 20, "max_tokens": 1}
            answer = server.ask("POST", "/v1/completions", body, with_key(name), PATIENCE * SLOWER)
            usage = json.loads(answer[2])["usage"]
            return (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)

        with self.serving() as server:
            self.assertEqual(cached("light"), 0)
            self.assertGreater(cached("light"), 0)
            self.assertEqual(cached("heavy"), 0, "a guess of the prompt")
            self.assertGreater(cached("heavy"), 0)
