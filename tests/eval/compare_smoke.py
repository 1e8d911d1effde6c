#!/usr/bin/env python3
"""Runs tessera-compare on few short prompts; every variant must be close to the CPU's f32.

    compare_smoke.py TESSERA_COMPARE MODEL DEVICE[/ISA]:WEIGHTS,...
"""

import subprocess
import sys

MOST_DIVERGENCE = {"f32": 1e-5, "bf16": 1e-2, "int8": 0.005, "fp8": 0.2, "int4": 0.2}


def main():
    tool, model, ways = sys.argv[1:]
    few = ["--model", model, "--prompts", "2", "--tokens", "40", "--threads", "2"]
    done = subprocess.run([tool, *few, "--with", ways], capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    print(done.stdout)
    rows = {cells[1]: cells for cells in
            ([cell.strip() for cell in line.split("|")] for line in done.stdout.splitlines()) if len(cells) > 5}
    for way in ways.split(","):
        weights = way.split(":")[1]
        assert float(rows[way][2]) < MOST_DIVERGENCE[weights], rows[way]
        assert weights != "f32" or not rows[way][8].startswith("0 of"), rows[way]
        assert rows[way][9] == "0", rows[way]
    for wrong in ["cpu", "cpu:f12", "abacus:f32", "cpu/mmx:f32"]:
        done = subprocess.run([tool, *few, "--with", wrong], capture_output=True, text=True, timeout=60)
        assert done.returncode != 0 and wrong.split(":")[0] in done.stderr, done.stderr


if __name__ == "__main__":
    main()
