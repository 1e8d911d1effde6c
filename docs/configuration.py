#!/usr/bin/env python3
"""Writes docs/configuration.md from configs/default.yaml, which the server's settings table prints.

    configuration.py           writes it
    configuration.py --check   exits with 1 if it is not current
"""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs/configuration.md"
# A heading stands before the setting of this name; settings keep the order of the table.
HEADINGS = {
    "model": "Model",
    "host": "Who may ask, and how much",
    "http-port": "HTTP",
    "grpc-port": "gRPC",
    "device": "Computation",
    "kv": "KV cache",
    "context": "Steps and queue",
    "grammar-time": "Process",
}
INTRODUCTION = """# Configuration

Every setting of `tessera-server`, with its default. A setting is a flag (`--kv k4v2`) or a line of a YAML file
(`kv: k4v2`, read by `--config FILE`); flags win. Wrong names and values end the start and are named.

```sh run
build/release/bin/tessera-server --print-config --kv k4v2
```

prints all settings as YAML. [default.yaml](../configs/default.yaml) has the same descriptions as comments. `--plan`
says how many sequences fit into memory, for each value of `--kv`, and loads nothing. This page is written by
`docs/configuration.py` from the settings table.
"""


def settings():
    """Returns: (name, kind of value, meaning, default or None) of each setting."""
    return [(name, kind, meaning, None if comment else default)
            for kind, meaning, comment, name, default in re.findall(
                r"^# ([^:\n]+(?::FIELD=VALUE\.\.\.\])?): (.*)\n(# )?([a-z0-9-]+):[ ]?(.*)$",
                (ROOT / "configs/default.yaml").read_text(), re.MULTILINE)]


def cell(text):
    return text.replace("|", "\\|").replace("*", "\\*")


def generate():
    lines = [INTRODUCTION]
    for name, kind, meaning, default in settings():
        if name in HEADINGS:
            lines += ["" if len(lines) > 1 else None, f"## {HEADINGS[name]}\n",
                      "| setting | value | default | meaning |", "|---|---|---|---|"]
        shown = f"`{default}`" if default not in (None, "") else ""
        lines.append(f"| `{name}` | {cell(kind)} | {shown} | {cell(meaning)} |")
    return "\n".join(line for line in lines if line is not None) + "\n"


if __name__ == "__main__":
    if sys.argv[1:] == ["--check"]:
        if not PAGE.exists() or PAGE.read_text() != generate():
            sys.exit("docs/configuration.md is not current: run docs/configuration.py")
    else:
        PAGE.write_text(generate())
