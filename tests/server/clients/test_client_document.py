"""Each Python example of docs/howto/clients.md runs against the server."""

import re
import subprocess
import sys

import pytest

from tessera_server import ROOT

EXAMPLES = re.findall(r"```python\n(.*?)```", (ROOT / "docs/howto/clients.md").read_text(), re.DOTALL)


@pytest.mark.parametrize("example", EXAMPLES, ids=range(len(EXAMPLES)))
def test_an_example_prints_an_answer(server, example):
    run = subprocess.run([sys.executable, "-c", example.replace("http://localhost:8080", server.http)],
                         capture_output=True, text=True, timeout=60, check=False)
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip()


def test_there_are_examples():
    assert len(EXAMPLES) >= 3
