#!/usr/bin/env python3
"""tessera-load against tessera-server with the shipped model: served_test.py LOAD SERVER.

Needs only Python. Checked answers must be correct under load and faults, over HTTP and gRPC, and
the server must hold nothing afterwards.
"""

import json
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
LOAD, SERVER = sys.argv[1:3]


class Served(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = subprocess.Popen(
            [SERVER, "--model", str(ROOT / "models/checkpoints/tessera-tiny"), "--http-port", "0",
             "--grpc-port", "0", "--drain-delay", "0", "--access-log", "off"], stderr=subprocess.PIPE, text=True)
        log = ""
        for line in cls.server.stderr:
            log += line
            if " ready after " in line:
                break
        cls.url = re.search(r"listening (http://\S+)", log)[1]
        cls.grpc = re.search(r"listening (grpc://\S+)", log)[1]

    @classmethod
    def tearDownClass(cls):
        cls.server.send_signal(signal.SIGTERM)
        cls.server.communicate(timeout=60)

    def load(self, *flags, url=None):
        """Returns the report of a run that must pass."""
        with tempfile.TemporaryDirectory() as folder:
            out = pathlib.Path(folder) / "report.json"
            done = subprocess.run([LOAD, "--url", url or self.url, "--json", str(out), *flags],
                                  capture_output=True, text=True, timeout=120)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            return json.loads(out.read_text())

    def check(self, report):
        answers, requests = report["answers"], report["requests"]
        self.assertEqual(requests["errors"], {})
        self.assertEqual(answers["correct"], answers["checked"])
        self.assertTrue(report["server"]["idle_again"])

    # Few pairs in a short text: the model card has at least 96 % for those, so misses are allowed.
    def test_answers_are_correct_under_load_and_faults(self):
        report = self.load("repeat:prompts=6:prefix=100:groups=2", "--concurrency", "8", "--requests",
                           "80", "--flush-every", "0.3", "--faults", "close@first=0.1,close@head=0.05,slow=0.05,garbage=0.05")
        self.check(report)
        self.assertGreater(report["requests"]["injected_faults"], 5)
        self.assertGreater(report["tokens"]["cached"], 0)
        recalled = self.load("recall", "--rate", "40", "--requests", "40", "--min-correct", "0.9")
        self.assertGreaterEqual(recalled["answers"]["correct"], 36)
        self.assertEqual(recalled["answers"]["wrong"], 0)

    def test_grpc_alone_counts_the_same_tokens(self):
        flags = ["repeat:prompts=4", "agent:turns=2:input=100:followup=50:output=8:temperature=0",
                 "--concurrency", "1", "--requests", "20"]
        over_http, over_grpc = self.load(*flags), self.load(*flags, url=self.grpc)
        self.check(over_http)
        self.check(over_grpc)
        for name in ("prompt", "output"):
            self.assertEqual(over_http["tokens"][name], over_grpc["tokens"][name])
        self.assertGreater(over_grpc["server"]["most_kv_bytes"], 0)
        self.assertGreater(over_grpc["server"]["prefix_hit_rate"], 0)

    def test_an_interrupted_run_reports(self):
        running = subprocess.Popen([LOAD, "--url", self.url, "chat:output=4", "--rate", "20",
                                    "--duration", "60"], stdout=subprocess.PIPE, text=True)
        time.sleep(1.5)
        running.send_signal(signal.SIGINT)
        text = running.communicate(timeout=30)[0]
        self.assertEqual(running.returncode, 0, text)
        self.assertIn("throughput", text)

    def test_turns_and_agents_find_their_prefix(self):
        report = self.load("turns:think=0.05:input=300", "agent:turns=3:input=200:followup=50",
                           "--concurrency", "2", "--requests", "30")
        self.check(report)
        self.assertGreater(report["server"]["prefix_hit_rate"], 0.3)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
