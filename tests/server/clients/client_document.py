"""The Python examples of docs/howto/clients.md, by section."""

import re
import subprocess
import sys

from tessera_server import ROOT

TEXT = (ROOT / "docs/howto/clients.md").read_text()
SECTIONS = {section.split("\n", 1)[0]: re.findall(r"```python\n(.*?)```", section, re.DOTALL)
            for section in TEXT.split("\n## ")[1:]}


def check_example(server, example):
    run = subprocess.run([sys.executable, "-c", example.replace("http://localhost:8080", server.http)],
                         capture_output=True, text=True, timeout=300, check=False)
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip()
