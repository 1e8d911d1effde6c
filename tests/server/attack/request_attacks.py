"""Requests that a server must refuse: see attack_test.py."""

import json
import shutil
import socket
import ssl
import subprocess
import tempfile
import time
import unittest
import warnings

from attack_case import PROMPT, SLOWER, of, serve
from attacked_server import MIB, PATIENCE


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
        body = {"prompt": PROMPT, "max_tokens": 1, "n": 60}
        self.refused(body | {"stop_token_ids": [5] * of(1_000_000, 2_000_000)}, "stop_token_ids")
        self.refused(body | {"stop_token_ids": [5] * 4_100_000}, "stop_token_ids")  # before it is parsed
        self.refused(body | {"prompt": [5] * 4_100_000}, None)  # while it is parsed

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
