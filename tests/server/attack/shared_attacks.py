"""Attacks of one client on parts that all share, such as kept grammars and stored conversations: see attack_test.py."""

import concurrent.futures
import contextlib
import json
import tempfile
import unittest

from attack_case import PROMPT, SLOWER, of, serve
from attacked_server import MIB, PATIENCE, Http2, eventually, field
from tenant_attacks import with_key

TENANTS = """
tenants:
  - name: heavy
    {limits}
    keys: [{{name: heavy, key: a-long-key-of-heavy}}]
  - name: light
    keys: [{{name: light, key: a-long-key-of-light, admin: true}}]
"""
TEXT = "tell me a story about a cat and a boat on the sea "


@contextlib.contextmanager
def serving_tenants(limits="share: 1", *flags):
    """A server with two tenants, of which `heavy` has these limits."""
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        file.write(TENANTS.format(limits=limits))
        file.flush()
        with serve("--tenants", file.name, *flags) as server:
            yield server


def bound(schema):
    """Returns a request whose answer is bound to a schema."""
    return {"prompt": "a", "max_tokens": 1, "guided_json": schema}


def patterns(number, count):
    """Returns a schema of this number that takes the longer to compile, the more patterns it has."""
    each = {f"p{number}_{i}": {"type": "string", "pattern": "^[a-z]{1,%d}$" % (90 + i % 9)} for i in range(count)}
    return {"type": "object", "properties": each, "required": list(each)}


@contextlib.contextmanager
def serving_within(room):
    """A server that takes requests until its memory has grown by so many bytes."""
    with serve() as server:
        limit = server.resident() + room
    with serve("--max-memory", f"{limit // MIB}MiB") as server:
        yield server


def serves(server):
    return server.ask("POST", "/v1/completions", {"prompt": "a", "max_tokens": 1})[0] == 200


class Grammars(unittest.TestCase):
    def test_long_specs_take_no_memory_when_they_are_compiled(self):
        with serve() as server:
            before = server.resident()
            for number in range(of(500, 6000)):
                described = {"type": "integer", "description": f"{number}" + "d" * 120_000}
                self.assertEqual(server.ask("POST", "/v1/completions", bound(described))[0], 200)
            self.assertLess(server.resident() - before, of(30, 100) * MIB * SLOWER)

    def test_grammars_that_fill_the_memory_make_room_again(self):
        with serving_within(16 * MIB) as server:
            for number in range(of(250, 1000)):
                server.ask("POST", "/v1/completions", bound(patterns(number, 1)))
            eventually(lambda: serves(server), "requests are taken again", 10 * SLOWER)

    def test_a_small_schema_waits_for_no_other_tenant(self):
        with serving_tenants() as server, concurrent.futures.ThreadPoolExecutor(64) as threads:
            def compile_slowly(number):
                with contextlib.suppress(OSError):  # the server is killed meanwhile
                    server.ask("POST", "/v1/completions", bound(patterns(number, 100)), with_key("heavy"))

            before = server.computed()
            for number in range(of(48, 200)):
                threads.submit(compile_slowly, number)
            eventually(lambda: server.computed() - before > 1, "the slow ones")
            before = server.computed()
            status, _, answer = server.ask("POST", "/v1/completions", bound(patterns(0, 1)), with_key("light"))
            self.assertEqual(status, 200, answer)
            self.assertLess(server.computed() - before, 1.5 * SLOWER)
            server.process.kill()


class Conversations(unittest.TestCase):
    def turns(self, bytes_of_each, count):
        text = (TEXT * (bytes_of_each // len(TEXT) + 1))[:bytes_of_each]
        return [{"role": "user", "content": text}] * count

    def ask(self, server, body):
        before = server.computed()
        status, _, answer = server.ask("POST", "/v1/responses", {"max_output_tokens": 1} | body, timeout=5 * PATIENCE)
        return status, json.loads(answer), server.computed() - before

    def test_a_short_body_that_continues_a_long_conversation_costs_little(self):
        with serve() as server:
            whole = self.turns(4000, of(1000, 1500))
            stored = None
            for _ in range(of(1, 5)):
                body = {"input": whole, "truncation": "auto"} | ({"previous_response_id": stored} if stored else {})
                status, answer, _ = self.ask(server, body)
                self.assertEqual(status, 200, answer)
                stored = answer["id"]
            for more in ({"truncation": "auto"}, {}):
                status, answer, computed = self.ask(server, {"input": "and?", "previous_response_id": stored} | more)
                self.assertEqual(status, 200 if more else 400, answer)
                self.assertLess(computed, 0.5 * SLOWER * of(1, 5), more)

    def test_conversations_that_fill_the_memory_make_room_again(self):
        with serving_within(24 * MIB) as server:
            turns = self.turns(4000, 250)
            for _ in range(of(45, 100)):
                self.ask(server, {"input": turns, "truncation": "auto"})
            eventually(lambda: serves(server), "requests are taken again", 10 * SLOWER)

    def test_turns_behind_long_instructions_cost_little(self):
        with serve() as server:
            text = TEXT * (of(2, 7) * MIB // len(TEXT))
            turns = [{"role": "user", "content": "a"}] * 1000
            for body in ({"instructions": text, "input": turns},
                         {"input": [{"role": "system", "content": text}, *turns]},
                         {"input": [*turns, {"role": "user", "content": text}]}):
                status, answer, computed = self.ask(server, body | {"truncation": "auto"})
                self.assertEqual(status, 400, answer)
                self.assertEqual(answer["error"]["code"], "context_length_exceeded")
                self.assertLess(computed, 0.6 * SLOWER * of(1, 3))


class Rates(unittest.TestCase):
    def test_a_tenant_over_its_rate_costs_nothing(self):
        text = TEXT * (2 * MIB // len(TEXT))
        chat = {"messages": [{"role": "user", "content": text}], "max_tokens": 1}
        bodies = {"/v1/completions": bound(patterns(0, 100)) | {"prompt": text}, "/v1/chat/completions": chat,
                  "/v1/messages": chat, "/v1/messages/count_tokens": chat, "/v1/responses": {"input": text},
                  "/v1/embeddings": {"input": text}, "/v1/rerank": {"query": "a", "documents": [text]},
                  "/v1/score": {"text_1": "a", "text_2": text}, "/tokenize": {"prompt": text},
                  "/detokenize": {"tokens": [5] * 500_000}, "/apply-template": chat}
        with serving_tenants("requests-per-minute: 6") as server:
            small = {"prompt": "a", "max_tokens": 1}
            self.assertEqual(server.ask("POST", "/v1/completions", small, with_key("heavy"))[0], 200)
            before = server.computed()
            for path, body in bodies.items():
                with self.subTest(path):
                    status, headers, _ = server.ask("POST", path, body, with_key("heavy"))
                    self.assertEqual(status, 429)
                    self.assertIn("Retry-After", headers)
            self.assertLess(server.computed() - before, 0.1 * SLOWER * len(bodies))
            self.assertEqual(server.ask("POST", "/v1/completions", small, with_key("light"))[0], 200)

    def test_texts_that_are_only_converted_use_the_rate_up(self):
        with serving_tenants("tokens-per-minute: 6000") as server:
            body = {"prompt": TEXT * 2000}
            answered = [server.ask("POST", "/tokenize", body, with_key("heavy"))[0] for _ in range(3)]
            self.assertEqual(answered, [200, 429, 429])

    def test_a_tenant_over_its_rate_costs_nothing_over_grpc(self):
        text = field(1, TEXT * (2 * MIB // len(TEXT)))
        with serving_tenants("requests-per-minute: 6") as server, Http2(server) as client:
            client.call(1, "Tokenize", field(1, "a"), "a-long-key-of-heavy")
            self.assertIsNotNone(client.answer(1))
            before = server.computed()
            client.call(3, "Tokenize", field(1, PROMPT), "a-long-key-of-heavy")
            self.assertIsNone(client.answer(3))
            with contextlib.suppress(OSError), Http2(server, PATIENCE) as other:
                other.call(1, "Tokenize", text, "a-long-key-of-heavy")
                self.assertIsNone(other.answer(1))
            self.assertLess(server.computed() - before, 0.2 * SLOWER)


class Names(unittest.TestCase):
    """Ids give access to stored responses, so that no id may tell another one."""

    MASK = (1 << 64) - 1
    STEP = 0x9E3779B97F4A7C15

    def state_of(self, z):
        """Undoes splitmix64."""
        for shift, factor in ((31, 0x319642B2D24D8EC3), (27, 0x96DE1B173F119089), (30, 1)):
            z = (z ^ z >> shift ^ z >> 2 * shift) * factor & self.MASK
        return z

    def number_at(self, state):
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1)):
            state = (state ^ state >> shift) * factor & self.MASK
        return state

    def letters_from(self, state, count):
        letters = ""
        number = 0
        while len(letters) < count:
            if number == 0:
                number, state = self.number_at(state), state + self.STEP & self.MASK
            letters += "abcdefghijklmnopqrstuvwxyz0123456789"[number % 36]
            number //= 36
        return letters

    def test_a_response_is_not_found_by_the_ids_of_others(self):
        with serve() as server:
            answer = server.ask("POST", "/v1/completions", {"prompt": "a", "max_tokens": 1})[2]
            state = self.state_of(int(json.loads(answer)["id"].removeprefix("cmpl-"), 16))
            secret = server.ask("POST", "/v1/responses", {"input": "a secret", "max_output_tokens": 1})[2]
            guesses = [f"resp_{self.letters_from(state + self.STEP * i & self.MASK, 32)}" for i in range(100)]
            self.assertNotIn(json.loads(secret)["id"], guesses)
            for guess in guesses:
                self.assertEqual(server.ask("GET", f"/v1/responses/{guess}")[0], 404)
