"""Attacks on a server, with the shipped model: python3 attack_test.py SERVER [SECONDS].

Needs only Python. Each test is one attack that once stopped or filled a server. SECONDS: repeats
all of them for this long, with the numbers that were found to work, in a random order whose seed is
printed. Without it the numbers are smaller.
"""

import contextlib
import json
import os
import random
import resource
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import warnings

from attacked_server import MIB, PATIENCE, Http2, Server, eventually, flags_of, read_all

SERVER = sys.argv[1]
WHOLE = len(sys.argv) > 2 and sys.argv[2].isdigit()
SLOWER = 10 if "/fuzz/" in SERVER else 1  # a sanitizer's share of time and memory
PROMPT = "Tell me a story about a cat and a boat."


def of(short, whole):
    return whole if WHOLE else short


def raise_own_limit():
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


raise_own_limit()


def serve(*flags, **more):
    return Server(SERVER, *flags, **more)


def with_keys():
    file = tempfile.NamedTemporaryFile("w", suffix=".keys")
    file.write("right-key\n")
    file.flush()
    return file


def unfinished(length, headers=""):
    return (f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n{headers}"
            f"Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n").encode()


class Descriptors(unittest.TestCase):
    def test_idle_connections_stop_neither_front_end(self):
        limit, idle = of((256, 300), (1024, 1200))
        with serve(descriptors=limit) as server, contextlib.ExitStack() as clients:
            for _ in range(idle):
                with contextlib.suppress(OSError):
                    clients.enter_context(server.connect())
            for _ in range(3):
                with contextlib.suppress(OSError):
                    clients.enter_context(server.connect(server.grpc))
            self.assertTrue(server.logged(f"limit of {limit} open files"), "the shares are told")
            self.assertTrue(server.grpc_serves(), "while they are open")
            self.assertLess(server.health(), 2 * SLOWER)
            clients.close()
            self.assertTrue(server.grpc_serves(), "when they have gone")

    def test_idle_grpc_connections_stop_neither_front_end(self):
        limit, idle = of((256, 300), (1024, 1200))
        with serve(descriptors=limit) as server, contextlib.ExitStack() as clients:
            for _ in range(idle):
                with contextlib.suppress(OSError):
                    clients.enter_context(server.connect(server.grpc))
            self.assertLess(server.health(), 2 * SLOWER)
            clients.close()
            self.assertTrue(server.grpc_serves(), "when they have gone")

    def test_silent_grpc_connections_make_way_for_a_new_one(self):
        with serve("--grpc-max-connections", "20") as server, contextlib.ExitStack() as clients:
            for _ in range(22):
                clients.enter_context(server.connect(server.grpc))
            self.assertTrue(server.grpc_serves(10), "within some seconds of silence")

    def test_the_soft_limit_is_raised_to_the_hard_one(self):
        with serve(setup=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (64, 4096))) as server:
            self.assertEqual(resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE), (4096, 4096))

    def test_a_server_out_of_descriptors_says_so_once_and_recovers(self):
        with serve() as server, contextlib.ExitStack() as clients:
            number = server.process.pid
            used = {int(name) for name in os.listdir(f"/proc/{number}/fd")}
            free = min(set(range(len(used) + 1)) - used)
            limits = resource.prlimit(number, resource.RLIMIT_NOFILE)
            resource.prlimit(number, resource.RLIMIT_NOFILE, (free, limits[1]))
            for port in (server.http, server.grpc):
                for _ in range(5):
                    clients.enter_context(server.connect(port))
            eventually(lambda: len(server.lines("cannot accept")) >= 2, "a line of each")
            time.sleep(1)
            self.assertEqual(len(server.lines("cannot accept")), 2)
            resource.prlimit(number, resource.RLIMIT_NOFILE, limits)
            self.assertTrue(server.grpc_serves())
            self.assertLess(server.health(), 2 * SLOWER)

    def test_too_few_descriptors_are_named(self):
        result = subprocess.run([SERVER, *flags_of()], capture_output=True, text=True, timeout=PATIENCE,
                                preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (8, 8)))
        self.assertEqual(result.returncode, 1, result.stderr)
        self.assertIn("open files", result.stderr)

    @unittest.skipIf(SLOWER > 1, "a sanitizer's own address space is larger")
    def test_too_little_address_space_is_named(self):
        result = subprocess.run(
            [SERVER, *flags_of()], capture_output=True, text=True, timeout=PATIENCE,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (700 << 20, 700 << 20)))
        self.assertEqual(result.returncode, 1, result.stderr)
        self.assertIn("address space", result.stderr)

    def test_a_server_without_standard_streams_serves(self):
        def close_them():
            os.close(0)
            os.close(1)

        with serve(setup=close_them) as server:
            self.assertLess(server.health(), 2 * SLOWER)
            self.assertTrue(server.grpc_serves())
            for number in (0, 1):  # else a connection gets them, and what is printed there
                self.assertEqual(os.readlink(f"/proc/{server.process.pid}/fd/{number}"), "/dev/null")


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
            for fields in hostile:
                body = json.dumps({"prompt": PROMPT, "max_tokens": 1} | fields, separators=(",", ":"))
                start = time.monotonic()
                status = server.ask("POST", "/v1/completions", body)[0]
                name = str(fields)[:60]
                self.assertEqual(status, 400, name)
                self.assertLess(time.monotonic() - start, 2 * SLOWER, name)
            self.assertLess(max(gaps), 1.5 * SLOWER, "the running stream paused")

    def test_a_prompt_that_cannot_fit_is_refused_by_its_bytes(self):
        with serve() as server:
            before = server.computed()
            status, _, body = server.ask("POST", "/v1/completions", {"prompt": "a" * (7 * MIB)})
            self.assertEqual(status, 400)
            self.assertIn(b"context_length_exceeded", body)
            self.assertLess(server.computed() - before, 0.5 * SLOWER)


class Memory(unittest.TestCase):
    def test_bodies_without_a_key_are_not_read(self):
        with with_keys() as keys, serve("--api-key-file", keys.name) as server:
            before = server.resident()
            with contextlib.ExitStack() as clients:
                for _ in range(of(40, 150)):
                    client = clients.enter_context(server.connect())
                    client.settimeout(0.2)
                    with contextlib.suppress(OSError):
                        client.sendall(unfinished(8 * MIB) + b" " * (8 * MIB - 1))
                self.assertLess(server.resident() - before, 24 * MIB * SLOWER)

    def test_bodies_with_a_key_stay_within_the_budget(self):
        with serve("--request-memory", "64MiB") as server:
            before = server.resident()
            with contextlib.ExitStack() as clients:
                for _ in range(of(40, 150)):
                    client = clients.enter_context(server.connect())
                    client.settimeout(0.2)
                    with contextlib.suppress(OSError):
                        client.sendall(unfinished(8 * MIB) + b" " * (8 * MIB - 1))
                self.assertLess(server.resident() - before, 96 * MIB * SLOWER)
                self.assertLess(server.health(), 1 * SLOWER)
            eventually(lambda: server.ask("POST", "/tokenize", {"prompt": "a"})[0] == 200,
                       "the bytes came back")

    def test_unfinished_grpc_messages_stay_within_the_budget(self):
        with serve("--request-memory", "64MiB") as server:
            before = server.resident()
            with contextlib.ExitStack() as clients:
                for _ in range(of(8, 20)):
                    with contextlib.suppress(OSError):
                        client = clients.enter_context(Http2(server, seconds=1))
                        for stream in range(1, of(129, 201), 2):
                            client.begin(stream, "/tessera.v1.Inference/Tokenize")
                            client.data(stream, b"\0" + (6 * MIB).to_bytes(4, "big"))
                            for _ in range(64):
                                client.data(stream, b" " * 16000)
                self.assertLess(server.resident() - before, 128 * MIB * SLOWER)
                self.assertLess(server.health(), 1 * SLOWER)
            self.assertTrue(server.grpc_serves())

    def test_grpc_tells_each_connection_how_many_calls_it_may_have(self):
        with serve("--grpc-max-streams", "7") as server, Http2(server) as client:
            self.assertEqual(client.settings().get(3), 7)  # SETTINGS_MAX_CONCURRENT_STREAMS

    def test_no_body_takes_more_memory_than_is_told_at_start(self):
        size = of(MIB, 8 * MIB)
        numbers = [5] * (size // 2 - 60)
        bodies = [("/tokenize", {"prompt": "".join("qzxwvkj"[i * 7919 % 7] for i in range(size - 99)),
                                 "return_token_strs": True}),
                  ("/detokenize", {"tokens": numbers}),
                  ("/v1/completions", {"prompt": numbers}),
                  ("/v1/completions", {"prompt": "a", "stop_token_ids": numbers})]
        for path, body in bodies:
            limits = ("--http-max-body", size, "--grpc-max-message", size)
            with self.subTest(path), serve(*limits) as server:
                before = server.resident()
                told = float(server.logged(r"messages, ([0-9]+) MiB while 2 threads parse")) * MIB
                server.ask("POST", path, json.dumps(body, separators=(",", ":")))
                self.assertLess(server.most_resident() - before, (told + 32 * MIB) * SLOWER)

    def test_unread_replies_stay_within_the_budget(self):
        with serve("--request-memory", "64MiB") as server, contextlib.ExitStack() as clients:
            before = server.resident()
            # A reply of 10 MB, more than the kernel keeps for a connection.
            body = json.dumps({"prompt": "ab " * 1_000_000, "return_token_strs": True}).encode()
            for _ in range(of(8, 24)):
                client = clients.enter_context(server.connect(receive_bytes=4096))
                client.sendall(unfinished(len(body)).replace(b"/v1/completions", b"/tokenize") + body)
            eventually(lambda: server.ask("POST", "/tokenize", {"prompt": "a"})[0] == 200, "its turn")
            time.sleep(1)
            self.assertLess(server.resident() - before, 200 * MIB * SLOWER)
            self.assertLess(server.health(), 1 * SLOWER)

    def test_silent_clients_do_not_shut_health_out(self):
        limit, silent = of((20, 40), (100, 200))
        with serve("--http-max-connections", limit) as server, contextlib.ExitStack() as clients:
            for _ in range(silent):
                clients.enter_context(server.connect())
            self.assertLess(server.health(), 2 * SLOWER)


class Fields(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = serve()

    @classmethod
    def tearDownClass(cls):
        cls.server.__exit__()

    def refused(self, body, field, path="/v1/completions"):
        before = self.server.resident()
        status, _, answer = self.server.ask("POST", path, body)
        self.assertEqual(status, 400, answer[:300])
        self.assertEqual(json.loads(answer)["error"]["param"], field)
        return self.server.resident() - before

    def test_stop_ids_are_bounded(self):
        self.refused({"prompt": PROMPT, "max_tokens": 1, "n": 60, "stop_token_ids": [5] * of(1_000_000, 4_100_000)},
                     "stop_token_ids")

    def test_biases_are_bounded_and_have_one_spelling(self):
        many = {"0" * (i // 4096) + str(i % 4096): 1 for i in range(50_000)}
        self.refused({"prompt": PROMPT, "max_tokens": 1, "logit_bias": many}, "logit_bias")
        self.refused({"prompt": PROMPT, "max_tokens": 1, "logit_bias": {"007": 1}}, "logit_bias")

    def test_an_answer_that_is_too_large_is_not_computed(self):
        taken = self.refused({"prompt": [5] * 1900, "max_tokens": 1, "n": 64, "echo": True,
                              "logprobs": 20}, "n")
        self.assertLess(taken, 64 * MIB * SLOWER)

    def test_a_grade_that_is_not_cached_is_refused(self):
        for accepted in "f16", "s50":
            status, _, answer = self.server.ask("POST", "/v1/completions", {
                "prompt": PROMPT, "max_tokens": 1, "cache": {"accept": accepted}})
            self.assertEqual(status, 400, answer[:300])
            self.assertIn("cache.accept", json.loads(answer)["error"]["message"])

    def test_salts_are_bounded(self):
        self.refused({"prompt": PROMPT, "max_tokens": 1, "cache_salt": "s" * 7_000_000}, "cache_salt")


SECOND = "GET /version HTTP/1.1\r\nHost: localhost\r\n\r\n"
SMUGGLED = {
    "gzip": f"Transfer-Encoding: gzip\r\nContent-Length: {len(SECOND)}",
    "gzip alone": "Transfer-Encoding: gzip",
    "identity": "Transfer-Encoding: identity",
    "xchunked": "Transfer-Encoding: xchunked",
    "chunked, identity": "Transfer-Encoding: chunked, identity",
    "two codings": "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity",
    "a folded header": "X: a\r\n b: c",
    "two hosts": "Host: localhost",
    "white space before the colon": "X : a",
    "two lengths": "Content-Length: 0\r\nContent-Length: 5",
    "a signed length": "Content-Length: +0",
    "a list of lengths": "Content-Length: 0, 0",
    "a bare CR": "X: a\rb",
}


class Framing(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = serve()

    @classmethod
    def tearDownClass(cls):
        cls.server.__exit__()

    def test_no_second_request_is_smuggled(self):
        shapes = {name: f"POST /tokenize HTTP/1.1\r\nHost: localhost\r\n{headers}\r\n\r\n"
                  for name, headers in SMUGGLED.items()}
        shapes["no host"] = "GET /version HTTP/1.1\r\n\r\n"
        shapes["chunked in HTTP/1.0"] = ("POST /tokenize HTTP/1.0\r\nHost: localhost\r\nConnection: "
                                         "keep-alive\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n")
        for name, shape in shapes.items():
            with self.subTest(name):
                answer = self.server.exchange((shape + SECOND).encode())
                self.assertEqual(answer.count(b"\r\nDate: "), 1, answer)
                self.assertNotIn(b"HTTP/1.1 200", answer)

    def test_chunk_extensions_are_skipped(self):
        begin = time.monotonic()
        answer = self.server.exchange(
            b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b"Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
            b'e;name="a b";x=y\r\n{"prompt":"a"}\r\n0;last\r\n\r\n', seconds=5)
        self.assertIn(b"HTTP/1.1 200", answer)
        self.assertLess(time.monotonic() - begin, 2 * SLOWER)

    def test_a_chunk_extension_without_an_end_is_refused_at_once(self):
        begin = time.monotonic()
        answer = self.server.exchange(
            b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
            b"e;x=" + b"y" * 100_000, seconds=5)
        self.assertIn(b"HTTP/1.1 400", answer)
        self.assertLess(time.monotonic() - begin, 2 * SLOWER)

    def test_pages_of_other_sites_are_refused_without_keys(self):
        ask = json.dumps({"prompt": "a", "max_tokens": 1})
        for headers in ({"Content-Type": "text/plain", "Origin": "https://evil.example"},
                        {"Sec-Fetch-Site": "cross-site"},
                        {"Host": "evil.example"}, {"Host": f"evil.example:{self.server.http}"}):
            with self.subTest(headers):
                status, _, body = self.server.ask("POST", "/v1/completions", ask, headers)
                self.assertEqual(status, 403, body)
        for host in ("localhost", f"127.0.0.1:{self.server.http}", "[::1]:80"):
            self.assertEqual(self.server.ask("POST", "/v1/completions", ask, {"Host": host})[0], 200)

    def test_the_page_names_what_it_may_load(self):
        _, headers, _ = self.server.ask("GET", "/")
        self.assertIn("default-src 'none'", headers["Content-Security-Policy"])
        self.assertEqual(headers["X-Frame-Options"], "DENY")
        self.assertEqual(headers["X-Content-Type-Options"], "nosniff")


class Chats(unittest.TestCase):
    def ask(self, server, role):
        return server.ask("POST", "/tokenize", {"messages": [{"role": role, "content": "a"}]})

    def test_no_role_becomes_a_control_token(self):
        with serve() as server:
            ids = {role: json.loads(self.ask(server, role)[2])["tokens"] for role in ("user", "end")}
            end = json.loads(server.ask("POST", "/tokenize", {"content": "<|end|>"})[2])["tokens"]
            self.assertEqual(len(end), 1, "one control token")
            self.assertEqual(ids["user"].count(end[0]), 1, "the end of the turn")
            self.assertEqual(ids["end"].count(end[0]), 1, "the role adds none")

    def test_a_template_without_an_end_is_the_requests_error(self):
        with tempfile.NamedTemporaryFile("w", suffix=".jinja") as template:
            template.write("{% for a in range(999999) %}{% for b in range(999999) %}"
                           "{% endfor %}{% endfor %}")
            template.flush()
            with serve("--chat-template", template.name) as server:
                status, _, body = self.ask(server, "user")
                self.assertEqual(status, 400, body)
                self.assertLess(server.health(), 1 * SLOWER)


class Tls(unittest.TestCase):
    @staticmethod
    def connects(port, ciphers, version):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        context.set_alpn_protocols(["h2"])
        context.minimum_version = context.maximum_version = version
        context.set_ciphers(ciphers)
        try:
            with socket.create_connection(("127.0.0.1", port), PATIENCE) as client:
                with context.wrap_socket(client) as secure:
                    return secure.version() is not None
        except (ssl.SSLError, OSError):
            return False

    @unittest.skipUnless(shutil.which("openssl"), "no openssl to make a certificate")
    def test_both_front_ends_have_forward_secrecy_only(self):
        with tempfile.TemporaryDirectory() as folder:
            files = [f"{folder}/cert.pem", f"{folder}/key.pem"]
            subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj",
                            "/CN=localhost", "-out", files[0], "-keyout", files[1]],
                           check=True, capture_output=True)
            with serve("--tls-cert", files[0], "--tls-key", files[1]) as server:
                for port in (server.http, server.grpc):
                    old, new = ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3
                    self.assertFalse(self.connects(port, "kRSA:@SECLEVEL=0", old), "RSA key exchange")
                    self.assertFalse(self.connects(port, "ECDHE+AES+SHA1:@SECLEVEL=0", old), "CBC")
                    self.assertTrue(self.connects(port, "ECDHE+AESGCM", old))
                    self.assertTrue(self.connects(port, "ECDHE+AESGCM", new))
                    with warnings.catch_warnings():
                        warnings.simplefilter("ignore", DeprecationWarning)
                        self.assertFalse(self.connects(port, "ALL:@SECLEVEL=0", ssl.TLSVersion.TLSv1_1))


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


class Start(unittest.TestCase):
    def fails(self, *flags):
        result = subprocess.run([SERVER, *flags_of(*flags)], capture_output=True, text=True,
                                timeout=PATIENCE)
        self.assertEqual(result.returncode, 1, result.stderr)
        return result.stderr

    def test_an_empty_key_opens_no_server(self):
        self.assertIn("api-key", self.fails("--api-key", ""))

    def test_a_config_that_is_no_file_is_named(self):
        self.assertIn("/tmp", self.fails("--config", "/tmp"))
        self.assertIn("/dev/zero", self.fails("--config", "/dev/zero"))

    def test_an_open_server_and_an_open_key_file_are_mentioned(self):
        with serve("--host", "0.0.0.0") as server:
            self.assertTrue(server.logged("warning.*without an API key"))
        with with_keys() as keys:
            os.chmod(keys.name, 0o644)
            with serve("--api-key-file", keys.name) as server:
                self.assertTrue(server.logged("warning.*other users can read"))

    def test_the_memory_of_the_kv_cache_is_taken_at_start(self):
        with serve("--kv-memory", "200MiB") as server:
            self.assertGreater(server.resident(), 200 * MIB)

    def test_no_signal_of_a_terminal_or_log_rotation_kills(self):
        with serve() as server:
            for number in (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
                server.process.send_signal(number)
            time.sleep(0.1)
            self.assertLess(server.health(), 2 * SLOWER)


def repeat(seconds):
    """Runs the attacks again and again. Returns True if all were survived."""
    seed = int(time.time())
    print("seed", seed, file=sys.stderr)
    order = random.Random(seed)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        cases = list(unittest.defaultTestLoader.loadTestsFromModule(sys.modules[__name__]))
        order.shuffle(cases)
        if not unittest.TextTestRunner(verbosity=1).run(unittest.TestSuite(cases)).wasSuccessful():
            return False
    return True


if __name__ == "__main__":
    if len(sys.argv) > 2 and sys.argv[2].isdigit():
        sys.exit(0 if repeat(int(sys.argv[2])) else 1)
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]], verbosity=2)
