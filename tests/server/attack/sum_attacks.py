"""Attacks on several parts of the memory at once: see attack_test.py."""

import contextlib
import re
import threading
import time
import unittest

from attack_case import SLOWER, of, serve, with_keys
from attacked_server import MIB, PATIENCE, Http2, eventually
from shared_attacks import bound, patterns

KEY = {"Authorization": "Bearer right-key"}
# Parts of the line that is told at start, by their metric. No load here has a long body.
TOLD = {"bodies_and_answers": "bodies and answers", "grammars": "grammars,", "grpc_calls": "gRPC's calls",
        "grpc_messages": "its messages", "http_connections": r"\d+ HTTP connections",
        "stored_responses": "stored responses", "compilations": r"while \d+ threads compile them"}


def told_by(server):
    """Returns the most bytes of each part."""
    told = {part: float(server.logged(rf"([0-9]+) MiB (?:of )?{text}")) * MIB for part, text in TOLD.items()}
    told["swapped_sequences"] = float(server.logged(r"([0-9.]+) MiB of the host's memory for swapped-out")) * MIB
    return told


def taken_by(server):
    """Returns the bytes of each part that has a metric."""
    metrics = server.ask("GET", "/metrics", headers=KEY)[2].decode()
    return {part: float(value) for part, value in re.findall(r'request_memory_bytes\{.*part="(\w+)"\} (\S+)', metrics)}


def started(works):
    threads = [threading.Thread(target=work, args=args) for work, *args in works]
    for thread in threads:
        thread.start()
    return threads


class Sum(unittest.TestCase):
    """Long schemas, sequences that are swapped out, and calls that nobody ends, all at the same time."""

    FLAGS = ("--request-memory", "128MiB", "--kv", "leankv", "--kv-memory", "24MiB", "--max-sequences", "16",
             "--http-max-connections", "64", "--response-store", "1MiB")

    def compile_many(self, server, first):
        for number in range(first, 4 * of(25, 250), 4):
            described = {"type": "integer", "description": f"{number}" + "d" * 120_000}
            for schema in (described, patterns(number, 6)):
                server.ask("POST", "/v1/completions", bound(schema), KEY, 5 * PATIENCE * SLOWER)

    def preempt(self, server, priority, number):
        """Each priority preempts those below, whose compressed slots go to the memory of the host."""
        time.sleep(0.3 * (4 - priority))
        body = {"prompt": f"once {number} upon a time there was a cat " * 100, "ignore_eos": True, "max_tokens": 200,
                "priority": priority}
        server.ask("POST", "/v1/completions", body, KEY, 5 * PATIENCE * SLOWER)

    def leave_calls(self, server, clients):
        for path, message, key in (("/grpc.health.v1.Health/Watch", b"\0\0\0\0\0", None),
                                   ("/tessera.v1.Inference/Generate", None, "right-key")):
            for _ in range(20):
                client = clients.enter_context(Http2(server, PATIENCE * SLOWER))
                with contextlib.suppress(OSError):  # the server may close it
                    for stream in range(1, 2 * 250, 2):
                        client.begin(stream, path, key)
                        if message is not None:
                            client.data(stream, message, end=True)

    def test_the_bytes_told_at_start_hold_for_all_parts_together(self):
        with with_keys() as keys, serve("--api-key-file", keys.name, *self.FLAGS) as server, \
                contextlib.ExitStack() as clients:
            preemptions = [(self.preempt, server, priority, number) for priority in range(4, -5, -1) for number in range(6)]
            for thread in started(preemptions):  # the engine touches its own memory, which is not of requests
                thread.join()
            told, before, most = told_by(server), server.resident(), {}
            compilations = [(self.compile_many, server, first) for first in range(4)]
            threads = started([*compilations, *preemptions, (self.leave_calls, server, clients)])
            while any(thread.is_alive() for thread in threads):
                for part, taken in taken_by(server).items():
                    most[part] = max(most.get(part, 0), taken)
                time.sleep(0.1)
            for thread in threads:
                thread.join()
            for part in ("grammars", "compilations", "swapped_sequences", "grpc_calls"):
                self.assertGreater(most[part], MIB / 2, f"{part} is filled")
            for part in told.keys() & most.keys():
                self.assertLessEqual(most[part], 1.05 * told[part], part)
            told["compilations"] = most["compilations"]  # these loads use little of it
            self.assertLess(server.most_resident() - before, 1.05 * sum(told.values()) * SLOWER)
            # Memory of calls that were cancelled goes back to the system in some seconds.
            held = sum(told[part] for part in ("grammars", "grpc_calls", "swapped_sequences", "http_connections"))
            eventually(lambda: server.resident() - before < 1.05 * held * SLOWER, f"{held / MIB:.0f} MiB", 30 * SLOWER)
