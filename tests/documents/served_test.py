#!/usr/bin/env python3
"""Documents against the built server: metrics, presets, settings, and the blocks of `sh run`.

    served_test.py BIN    BIN: the folder of the built programs
"""

import re
import subprocess
import sys
import tempfile
import unittest
import urllib.request

from markdown import ROOT, Document, documents

MODEL = "models/checkpoints/tessera-tiny"
KEY = "sk-0123456789abcdef-documents"
TENANTS = f"tenants:\n  - name: documents\n    keys: [{{name: documents, key: {KEY}}}]\n"
BIN = None
unittest.TestCase.maxDiff = None


class Server:
    """A server with the shipped model on a free port. `flags`: further settings."""

    def __init__(self, *flags):
        self.process = subprocess.Popen(
            [BIN / "tessera-server", "--model", MODEL, "--http-port", "0", "--grpc-port", "0", "--threads", "1",
             "--kv-memory", "32MiB", "--max-sequences", "4", "--drain-delay", "0", *flags],
            cwd=ROOT, stderr=subprocess.PIPE, text=True)
        log = []
        for line in self.process.stderr:
            log.append(line)
            if address := re.search(r"listening (http://\S+)", line):
                self.http = address[1]
            if " ready after " in line:
                return
        raise AssertionError("".join(log))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.communicate(timeout=30)

    def metrics(self):
        """Returns: the type of each metric."""
        with urllib.request.urlopen(self.http + "/metrics") as reply:
            return dict(re.findall(r"^# TYPE (\S+) (\w+)$", reply.read().decode(), re.MULTILINE))


def rows(path, cells):
    """Returns: the first cells of the tables' rows that begin with a name in backquotes."""
    found = []
    for line in Document(path).lines:
        row = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if row and re.fullmatch(r"`[^`]+`", row[0]):
            found.append([row[0].strip("`"), *row[1:cells]])
    return found


class Blocks(unittest.TestCase):
    def test_each_block_that_is_marked_so_runs(self):
        blocks = [(f"{document.path}:{line}", text) for document in documents()
                  for info, line, text in document.blocks if info == "sh run"]
        self.assertGreaterEqual(len(blocks), 3)
        with Server() as server:
            for place, text in blocks:
                with self.subTest(place):
                    command = text.replace("http://localhost:8080", server.http).replace("build/release/bin", str(BIN))
                    done = subprocess.run(["sh", "-ec", re.sub(r"\bcurl ", "curl -sS --fail-with-body ", command)],
                                          cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
                    self.assertEqual(done.returncode, 0, done.stdout + done.stderr)


class Metrics(unittest.TestCase):
    def test_the_page_has_the_metrics_of_the_server(self):
        # Metrics without a value yet are in the source alone.
        source = "".join((ROOT / path).read_text() for path in ("server/telemetry/metrics.cpp",))
        with tempfile.NamedTemporaryFile("w", suffix=".yaml") as tenants:
            tenants.write(TENANTS)
            tenants.flush()
            with Server("--tenants", tenants.name) as server:
                urllib.request.urlopen(urllib.request.Request(
                    server.http + "/v1/completions", b'{"prompt": "Once", "max_tokens": 2}',
                    {"Content-Type": "application/json", "Authorization": f"Bearer {KEY}"})).read()
                served = server.metrics()
        page = rows("docs/api-metrics.md", 2)
        documented = [name for name, _ in page]
        self.assertEqual(sorted(set(documented)), sorted(documented), "a metric stands twice")
        self.assertEqual(sorted(set(served) - set(documented)), [], "the page lacks these")
        self.assertEqual([name for name in documented if name not in served and f'"{name}"' not in source], [],
                         "no server has these")
        wrong = [(name, kind, served[name]) for name, kind in page
                 if kind in ("gauge", "counter") and served.get(name, kind) != kind]
        self.assertEqual(wrong, [])


class Presets(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        plan = subprocess.run(
            [BIN / "tessera-server", "--plan", "--model", MODEL, "--context", "2048", "--memory", "4GiB", "--kv", "f16"],
            cwd=ROOT, capture_output=True, text=True, check=True).stdout
        cls.planned = dict(re.findall(r"^([\w-]+) +\d+ +([\d.]+ MiB) ", plan, re.MULTILINE))
        assert "leankv" in cls.planned, plan

    def test_each_preset_stands_on_the_page_with_its_bytes(self):
        documented = {row[0]: row[2] for row in rows("docs/kv-presets.md", 3)
                      if len(row) == 3 and (row[0] in self.planned or "MiB" in row[2])}
        self.assertEqual(documented, self.planned)

    def test_each_preset_has_a_sentence_on_the_chat_page(self):
        written = set(re.findall(r'^  "([\w-]+)": "', (ROOT / "server/web/scripts/presets.js").read_text(), re.MULTILINE))
        # Formats are described by their names.
        formats = {name for name in written | set(self.planned) if re.fullmatch(r"f16|fp8|k\dv\dr?", name)}
        self.assertEqual(written - formats, set(self.planned) - formats)

    def test_a_reader_has_at_most_twelve_choices_on_two_screens(self):
        self.assertLessEqual(len(self.planned), 12)
        self.assertLessEqual(len((ROOT / "docs/kv-presets.md").read_text().splitlines()), 90)


class Settings(unittest.TestCase):
    def test_the_page_is_current(self):
        done = subprocess.run([sys.executable, ROOT / "docs/configuration.py", "--check"], capture_output=True, text=True,
                              check=False)
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_the_page_has_each_setting_of_the_server(self):
        printed = subprocess.run([BIN / "tessera-server", "--print-config"], capture_output=True, text=True, check=True)
        names = re.findall(r"^(?:# )?([a-z0-9-]+):(?: \S.*|)$", re.sub(r"^# \S+: .*\n", "", printed.stdout, flags=re.M),
                           re.MULTILINE)
        documented = [name for name, _ in rows("docs/configuration.md", 2)]
        self.assertEqual(documented, names)


if __name__ == "__main__":
    BIN = (ROOT / sys.argv.pop(1)).resolve()
    unittest.main()
