"""aider, the program, with a real checkpoint: one turn about a file."""

import os
import re
import subprocess
import sys

import pytest

from tessera_server import SMOLLM2, TesseraServer


def test_a_turn_about_a_file(tmp_path):
    if not SMOLLM2.exists():
        pytest.skip(f"{SMOLLM2} is not there: deploy/smollm2.sh")
    (tmp_path / "hello.py").write_text("def hello():\n    print('hello')\n")
    with TesseraServer("--model", str(SMOLLM2), "--context", "8192") as server:
        # Small models write no edits, so it only asks.
        command = [sys.executable, "-m", "aider", "--model", "openai/" + SMOLLM2.stem, "--edit-format", "ask", "--no-git",
                   "--map-tokens", "0", "--no-show-model-warnings", "--no-check-update", "--analytics-disable", "--yes-always",
                   "--no-suggest-shell-commands", "--message", "What does this function do?", "hello.py"]
        environment = os.environ | {"OPENAI_API_BASE": server.http + "/v1", "OPENAI_API_KEY": "none", "HOME": str(tmp_path)}
        run = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    received = re.search(r"Tokens: .* sent, ([\d.]+)k? received", run.stdout)
    assert received and float(received[1]) > 0, run.stdout
