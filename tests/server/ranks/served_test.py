"""A server of two ranks, its clients and launcher: python3 served_test.py SERVER MPIRUN.

Needs only Python: chats are streamed over plain HTTP from the shipped model, which has two KV
heads. Texts must equal those of a server with the whole model, and SIGTERM to the launcher drains.
"""

import contextlib
import http.client
import json
import pathlib
import re
import signal
import subprocess
import sys
import threading
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[3]
PATIENCE = 120  # seconds; the awaited events take a moment at most
SERVER, MPIRUN = sys.argv[1:3]
FLAGS = ["--model", ROOT / "models/checkpoints/tessera-tiny", "--http-port", "0", "--grpc-port", "0",
         "--drain-delay", "0", "--threads", "1", "--max-sequences", "8",
         "--kv", "f16", "--kv-also", "k8v4"]
CHAT = {"messages": [{"role": "user", "content": "Tell me a story about a cat and a boat."}],
        "max_tokens": 40, "temperature": 0, "stream": True,
        "stream_options": {"include_usage": True}}


def command(processes, *flags):
    launcher = [MPIRUN, "-n", str(processes)] if processes else []
    return [str(part) for part in [*launcher, SERVER, *FLAGS, *flags]]


class Server:
    def __init__(self, processes, *flags):
        self.process = subprocess.Popen(command(processes, *flags), stderr=subprocess.PIPE, text=True)
        self.log = []
        threading.Thread(target=self._read, daemon=True).start()
        end = time.monotonic() + PATIENCE
        while not any(" ready after " in line for line in self.log):
            assert time.monotonic() < end and self.process.poll() is None, self.log
            time.sleep(0.01)
        self.port = int(re.search(r"listening http://\S+:(\d+)", "\n".join(self.log))[1])

    def _read(self):
        for line in self.process.stderr:
            self.log.append(line.rstrip())

    def connect(self):
        return contextlib.closing(
            http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE))

    def get(self, path):
        with self.connect() as connection:
            connection.request("GET", path)
            return connection.getresponse().read().decode()

    def kv_bytes(self):
        """Returns bytes by format and state, without tables: each rank has its own prefix tree."""
        lines = re.findall(r"^tessera:kv_bytes.*$", self.get("/metrics"), re.M)
        return [line for line in lines if "tables" not in line]

    def stream(self, body):
        """Yields each event of a chat."""
        with self.connect() as connection:
            connection.request("POST", "/v1/chat/completions", json.dumps(body),
                               {"Content-Type": "application/json"})
            with connection.getresponse() as answer:
                assert answer.status == 200, answer.read()
                for line in answer:
                    if line.startswith(b"data: ") and line.strip() != b"data: [DONE]":
                        yield json.loads(line[6:])

    def chat(self, **changes):
        """Returns the text of a chat, and its usage."""
        text, usage = "", None
        for event in self.stream({**CHAT, **changes}):
            usage = event.get("usage") or usage
            for choice in event["choices"]:
                text += choice["delta"].get("content") or ""
        return text, usage

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(PATIENCE)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.terminate()
            self.process.wait(PATIENCE)
        self.process.stderr.close()


def refusal(processes, *flags):
    done = subprocess.run(command(processes, *flags), capture_output=True, text=True,
                          timeout=PATIENCE)
    assert done.returncode != 0
    return done.stderr


class TwoRanks(unittest.TestCase):
    def test_write_what_the_whole_model_writes_and_drain(self):
        with Server(0) as whole, Server(2, "--tensor-parallel", "2") as split:
            for policy in ("f16", "k8v4", "f16"):  # the last one has the first one's prefix cached
                text, usage = split.chat(kv_cache=policy)
                self.assertGreater(len(text), 40)
                expected, expected_usage = whole.chat(kv_cache=policy)
                self.assertEqual(usage, expected_usage)  # bytes of both ranks together
                if policy == "f16":  # codes may be rounded differently
                    self.assertEqual(text, expected)
            self.assertEqual(split.kv_bytes(), whole.kv_bytes())

            # One client disconnects, while SIGTERM lets another one finish.
            gone = split.stream({**CHAT, "max_tokens": 1500, "ignore_eos": True})
            next(gone)
            gone.close()
            stays = split.stream({**CHAT, "max_tokens": 200, "ignore_eos": True})
            events = [next(stays)]
            split.process.send_signal(signal.SIGTERM)
            events += stays
            reasons = [choice["finish_reason"] for event in events for choice in event["choices"]]
            self.assertEqual([reason for reason in reasons if reason], ["length"])
            self.assertEqual(split.process.wait(PATIENCE), 0)
            self.assertEqual(whole.stop(), 0)
            self.assertTrue(any("rank 1: stopped" in line for line in split.log), split.log)

    def test_are_refused_by_name_where_they_cannot_be(self):
        self.assertIn("tensor-parallel is 2, but the launcher has started 1 process",
                      refusal(0, "--tensor-parallel", "2"))
        self.assertIn("tensor-parallel is 1, but the launcher has started 2 processes", refusal(2))
        self.assertIn("2 KV heads (num_key_value_heads) cannot be split evenly over 3 ranks",
                      refusal(3, "--tensor-parallel", "3"))
        self.assertIn("the allocator pages compares", refusal(2, "--tensor-parallel", "2",
                                                              "--kv", "kv-compress"))

    def test_end_together_when_one_dies(self):
        with Server(2, "--tensor-parallel", "2") as split:
            pids = subprocess.run(["pgrep", "-P", str(split.process.pid), "-f", "."],
                                  capture_output=True, text=True).stdout.split()
            followers = [pid for parent in pids for pid in subprocess.run(
                ["pgrep", "-P", parent], capture_output=True, text=True).stdout.split()]
            self.assertEqual(len(followers), 2)  # in order: the launcher's child started them
            subprocess.run(["kill", "-KILL", followers[-1]], check=True)
            self.assertNotEqual(split.process.wait(PATIENCE), 0)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
