"""SIGHUP reads tenants again, and the log has an object on each line: python3 reload_test.py SERVER.

Needs only Python and the shipped model.
"""

import json
import signal
import sys
import tempfile
import unittest

from attacked_server import PATIENCE, Server, eventually

SERVER = sys.argv[1]


def tenants(key):
    return f"tenants:\n  - name: one\n    keys: [{{name: of-one, key: {key}, admin: true}}]\n"


def with_key(key):
    return {"Authorization": f"Bearer {key}"}


class Reload(unittest.TestCase):
    OLD, NEW = "the-old-key-of-tenant-one", "the-new-key-of-tenant-one"

    def setUp(self):
        self.file = tempfile.NamedTemporaryFile("w", suffix=".yaml")
        self.write(tenants(self.OLD))
        self.server = Server(SERVER, "--tenants", self.file.name, "--log-format", "json")

    def tearDown(self):
        self.server.__exit__()
        self.file.close()

    def write(self, text):
        self.file.seek(0)
        self.file.truncate()
        self.file.write(text)
        self.file.flush()

    def hang_up(self, logged):
        self.server.process.send_signal(signal.SIGHUP)
        eventually(lambda: self.server.logged(logged), logged)

    def status(self, key):
        return self.server.ask("GET", "/v1/models", headers=with_key(key))[0]

    def test_keys_change_while_an_answer_goes_on(self):
        body = json.dumps({"prompt": "Tell me a story", "max_tokens": 800, "stream": True,
                           "ignore_eos": True})
        with self.server.connect() as client:
            client.sendall((f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: "
                            f"application/json\r\nAuthorization: Bearer {self.OLD}\r\n"
                            f"x-request-id: the-stream\r\nContent-Length: {len(body)}\r\n\r\n{body}").encode())
            got = client.recv(1000)
            self.assertIn(b"200 OK", got)
            self.write(tenants(self.NEW))
            self.hang_up("were read again")
            self.assertEqual(self.status(self.OLD), 401)
            self.assertEqual(self.status(self.NEW), 200)
            while b"[DONE]" not in got[-100:]:
                piece = client.recv(65536)
                self.assertTrue(piece, "the stream is cut")
                got = got[-100:] + piece
        line = None

        def ended():
            nonlocal line
            line = self.server.logged(r'^.*"id":"the-stream".*$')
            return line

        eventually(ended, "the line of the stream", PATIENCE)
        record = json.loads(line)
        self.assertEqual((record["event"], record["status"], record["key"], record["tenant"]),
                         ("request", "200", "of-one", "one"))
        self.assertTrue(record["complete"])
        self.assertGreater(record["completion_tokens"], 100)

    def test_a_file_with_a_mistake_changes_nothing(self):
        self.write("tenants: nobody\n")
        self.hang_up("reload: .*tenants.*nothing of it has changed")
        self.assertEqual(self.status(self.OLD), 200)
        self.server.process.send_signal(signal.SIGUSR1)
        self.server.process.send_signal(signal.SIGTERM)
        self.assertEqual(self.server.process.wait(PATIENCE), 0)
        for line in self.server.log:
            self.assertIn("time", json.loads(line), line)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
