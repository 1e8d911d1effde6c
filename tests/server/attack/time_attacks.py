"""Attacks on the time of other clients: see attack_test.py."""

import contextlib
import json
import re
import threading
import time
import unittest

from attack_case import PROMPT, SLOWER, asking_without_end, serve, tokens_in, unfinished
from attacked_server import MIB, PATIENCE, eventually


@contextlib.contextmanager
def streaming(server):
    """A stream that runs meanwhile. Gives the seconds between its pieces. Kills the server at the end."""
    gaps = []

    def read():
        with server.connect() as client:
            body = json.dumps({"prompt": PROMPT, "max_tokens": 1500, "stream": True, "ignore_eos": True}).encode()
            client.sendall(unfinished(len(body)) + body)
            last = time.monotonic()
            with contextlib.suppress(OSError):  # the server is killed meanwhile
                while piece := client.recv(65536):
                    gaps.append(time.monotonic() - last)
                    last = time.monotonic()
                    if b"[DONE]" in piece:
                        return

    thread = threading.Thread(target=read)
    thread.start()
    try:
        eventually(lambda: gaps, "the stream's start")
        yield gaps
    finally:
        server.process.kill()
        thread.join()


class Threads(unittest.TestCase):
    def test_long_texts_delay_neither_health_nor_streams(self):
        with serve("--max-sequences", "4") as server, streaming(server) as gaps:
            text = json.dumps({"prompt": "a" * (8 * MIB - 100)})

            def tokenize():
                with contextlib.suppress(OSError):  # the server is killed meanwhile
                    server.ask("POST", "/tokenize", text)

            threads = [threading.Thread(target=tokenize) for _ in range(2)]
            for thread in threads:
                thread.start()
            slowest = 0
            end = time.monotonic() + 2
            while time.monotonic() < end:
                slowest = max(slowest, server.health())
                time.sleep(0.02)
            self.assertLess(slowest, 1 * SLOWER)
            self.assertLess(max(gaps), 1.5 * SLOWER, "the running stream paused")
            server.process.kill()
            for thread in threads:
                thread.join()

    def test_hostile_grammars_are_refused_and_streams_go_on(self):
        loop = {f"a{i}": {"anyOf": [{"$ref": f"#/$defs/a{(7 * i + j) % 300}"} for j in range(5)]} for i in range(300)}
        nested = {"type": "null"}
        for _ in range(200):
            nested = {"type": "array", "items": nested}
        hostile = [
            {"guided_regex": "(.{1,1000}){1,1000}"},
            {"guided_json": {"type": "string", "pattern": "(([a-z]{1,30}){1,30}){1,30}"}},
            {"grammar": "root ::= r0\n" + "".join(f"r{i} ::= r{i + 1} r{i + 1} | r{i + 1}\n" for i in range(1500)) +
                        'r1500 ::= "x"'},
            {"guided_choice": [f"v{i:06}" for i in range(700_000)]},
            {"guided_json": {"$defs": loop, "$ref": "#/$defs/a0"}},
            {"guided_json": nested},
            {"guided_json": {"const": "x" * (8 * MIB - 400)}},
        ]
        with serve("--max-sequences", "4") as server, streaming(server) as gaps:
            engine = server.busiest_thread()
            for fields in hostile:
                body = json.dumps({"prompt": PROMPT, "max_tokens": 1} | fields, separators=(",", ":"))
                before = server.computed(besides=engine)
                status = server.ask("POST", "/v1/completions", body)[0]
                name = str(fields)[:60]
                self.assertEqual(status, 400, name)
                self.assertLess(server.computed(besides=engine) - before, 2 * SLOWER, name)
            self.assertLess(max(gaps), 1.5 * SLOWER, "the running stream paused")

    def test_a_prompt_that_cannot_fit_is_refused_by_its_bytes(self):
        with serve() as server:
            before = server.computed()
            status, _, body = server.ask("POST", "/v1/completions", {"prompt": "a" * (7 * MIB)})
            self.assertEqual(status, 400)
            self.assertIn(b"context_length_exceeded", body)
            self.assertLess(server.computed() - before, 0.5 * SLOWER)


class Time(unittest.TestCase):
    def test_a_steady_slow_reader_gets_all(self):
        with serve("--http-write-timeout", "500ms") as server:
            body = json.dumps({"prompt": "ab " * 1_000_000, "return_token_strs": True}).encode()
            with server.connect(receive_bytes=4096) as client:
                client.sendall(unfinished(len(body)).replace(b"/v1/completions", b"/tokenize") + body)
                got = client.recv(1024)
                length = int(got.split(b"Content-Length: ")[1].split(b"\r\n")[0])
                begin = time.monotonic()
                while got[-2:] != b"]}" and (piece := client.recv(16384)):
                    got += piece
                    if time.monotonic() - begin < 2:
                        time.sleep(0.01)
                self.assertGreater(len(got), length)


class Queue(unittest.TestCase):
    @staticmethod
    def waiting(server):
        metrics = server.ask("GET", "/metrics")[2].decode()
        return float(re.search(r"^vllm:num_requests_waiting\S* (\S+)", metrics, re.M).group(1))

    def test_a_request_beyond_its_queue_timeout_is_refused_with_an_estimate(self):
        """Retry-After grows with the queue, and a request may set its own queue timeout."""
        with serve("--max-sequences", "1", "--queue-timeout", f"{60 * SLOWER}s") as server:
            # Two seconds each, so that the wait is over one also where the machine was busy until now.
            body = {"prompt": PROMPT, "max_tokens": tokens_in(server, 2, most=1500), "ignore_eos": True}
            with asking_without_end(server, 12, body) as answered:
                eventually(lambda: answered.count(200) > 2, "the server knows its rate", PATIENCE * SLOWER)
                eventually(lambda: self.waiting(server) > 8, "a queue")
                begin = time.monotonic()
                status, headers, _ = server.ask("POST", "/v1/completions", body, {"x-queue-timeout": "0.2"})
                self.assertEqual(status, 429)
                self.assertGreater(int(headers["Retry-After"]), 1, "an estimate")
                self.assertLess(time.monotonic() - begin, 2 * SLOWER)
                status, _, _ = server.ask("POST", "/v1/completions", body, {"x-request-timeout": "0.2"})
                self.assertIn(status, (429, 504))
