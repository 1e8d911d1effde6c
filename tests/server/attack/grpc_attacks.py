"""gRPC messages that a server must refuse: see attack_test.py."""

import contextlib
import json
import time
import unittest

from attack_case import PROMPT, SLOWER, of, serve, with_keys
from attacked_server import MIB, PATIENCE, Http2, eventually, field, varint

GENERATE = {"request_id": 1, "text": 2, "max_tokens": 6, "stop": 7, "ignore_eos": 9}  # of the .proto


def generate(**values):
    return b"".join(field(GENERATE[name], value) for name, value in values.items())


def long_token(server):
    """Returns the id of a token with a long text, and its bytes."""
    words = {"prompt": "something beautiful everything together understand", "return_token_strs": True}
    answer = json.loads(server.ask("POST", "/tokenize", words)[2])
    return max(zip(answer["tokens"], map(len, answer["token_strs"])), key=lambda token: token[1])


def ids_of(token, count):
    return field(1, varint(token) * count)


class Calls(unittest.TestCase):
    def test_calls_without_a_key_stay_within_what_is_told(self):
        """Each connection has as many as it may, and sends no message, or watches."""
        for path, message in (("/tessera.v1.Inference/Generate", None), ("/grpc.health.v1.Health/Check", None),
                              ("/grpc.health.v1.Health/Watch", b"\0\0\0\0\0"), ("/no.such/Method", None)):
            with self.subTest(path), with_keys() as keys, contextlib.ExitStack() as clients:
                server = clients.enter_context(serve("--api-key-file", keys.name, "--request-memory", "256MiB"))
                told = int(server.logged(r"(\d+) MiB of gRPC's calls")) * MIB
                before = server.resident()
                for _ in range(of(20, 80)):
                    client = clients.enter_context(Http2(server))
                    with contextlib.suppress(OSError):  # the server may close it
                        for stream in range(1, 2 * 250, 2):
                            client.begin(stream, path)
                            if message is not None:
                                client.data(stream, message, end=True)
                self.assertTrue(server.grpc_serves())
                most = (told + 12 * MIB) * SLOWER  # the connections have some KiB too
                # Memory of calls that were cancelled goes back to the system in some seconds.
                eventually(lambda: server.resident() - before < most, f"{most >> 20} MiB", 20)

    def test_calls_without_a_key_make_way_behind_a_closed_window(self):
        """Their answers cannot be sent, so they never end by themselves."""
        for path in ("Check", "Watch"):
            with self.subTest(path), serve("--request-memory", "10MiB") as server, contextlib.ExitStack() as clients:
                for _ in range(of(2, 20)):
                    client = clients.enter_context(Http2(server, 5 * SLOWER, window=0))
                    for stream in range(1, 2 * 8, 2):  # as many as there are places for calls without a caller
                        client.begin(stream, f"/grpc.health.v1.Health/{path}")
                        client.data(stream, b"\0\0\0\0\0", end=True)
                    self.assertEqual(client.frame_of(stream)[0], 1, "the answer's headers")
                self.assertTrue(server.grpc_serves(5 * SLOWER))
                with Http2(server, 5 * SLOWER) as other:
                    other.begin(1, "/no.such/Method")
                    self.assertEqual(other.status(1), 12, "UNIMPLEMENTED")

    def test_a_message_that_is_not_compressed_as_it_says_is_refused(self):
        with serve() as server:
            for path in ("/tessera.v1.Inference/Generate", "/tessera.v1.Inference/Tokenize",
                         "/grpc.health.v1.Health/Watch", "/tessera.v1.Inference/Embed"):
                with self.subTest(path), Http2(server, 5 * SLOWER) as client:
                    client.begin(1, path)
                    client.data(1, b"\1\0\0\0\4abcd")
                    self.assertEqual(client.status(1), 13, "INTERNAL by gRPC's rules")


class Messages(unittest.TestCase):
    def test_stop_strings_are_bounded(self):
        with serve() as server, Http2(server) as client:
            client.call(1, "Generate", generate(text=PROMPT, max_tokens=1, stop="n" * of(MIB, 7 * MIB)))
            self.assertIsNone(client.answer(1))

    def test_strings_that_are_no_text_fill_no_log(self):
        with serve() as server, Http2(server) as client:
            lines = len(server.log)
            for stream in range(1, 200, 2):
                client.call(stream, "Generate", generate(text=b"\xff", max_tokens=1))
                self.assertIsNone(client.answer(stream))
            self.assertEqual([line for line in server.log[lines:] if "UTF-8" in line], [])

    def test_the_text_of_tokens_is_bounded(self):
        count = of(MIB, 3 * MIB)
        with serve("--max-answer", "1MiB") as server, Http2(server, PATIENCE) as client:
            token, length = long_token(server)
            client.call(1, "Detokenize", ids_of(token, 100))
            self.assertGreaterEqual(len(client.answer(1)), 100 * length)
            before = server.resident()
            client.call(3, "Detokenize", ids_of(token, count))
            self.assertIsNone(client.answer(3))
            self.assertLess(server.most_resident() - before, 16 * count * SLOWER, "the message and its ids")
            client.call(5, "Tokenize", field(1, "a " * count) + field(5, 1))
            self.assertIsNone(client.answer(5))

    def test_answers_that_are_not_read_stay_within_the_budget(self):
        with serve("--request-memory", "64MiB") as server, contextlib.ExitStack() as clients:
            token, _ = long_token(server)
            before = server.resident()
            for _ in range(of(60, 200)):
                with contextlib.suppress(OSError):
                    clients.enter_context(Http2(server)).call(1, "Detokenize", ids_of(token, MIB // 4))
            time.sleep(1)
            self.assertLess(server.resident() - before, 56 * MIB * SLOWER)
            self.assertLess(server.health(), 1 * SLOWER)
            clients.close()
            eventually(lambda: server.ask("POST", "/tokenize", {"prompt": "a"})[0] == 200,
                       "the bytes came back")

    def test_a_client_that_reads_nothing_loses_the_room_of_its_answer(self):
        with serve("--request-memory", "10MiB", "--grpc-write-timeout", "1s") as server, Http2(server) as client:
            token, length = long_token(server)
            count = 11 * MIB // (12 * length)  # 5.5 of 6.25 MiB for bodies and answers
            client.call(1, "Detokenize", ids_of(token, count))
            # Before its first bytes, another request could take the room, and the call would be refused.
            client.await_first_bytes(1)
            long = json.dumps({"prompt": "a" * MIB})
            self.assertEqual(server.ask("POST", "/tokenize", long)[0], 503, "the call has the room")
            # Later the connection is closed all the same, because this client answers no pings.
            eventually(lambda: server.ask("POST", "/tokenize", long)[0] == 200, "its call is cancelled", seconds=25)
            self.assertTrue(server.grpc_serves())
