#!/usr/bin/env python3
"""Bounds the divergence of each weight format from f32 on SmolLM2-135M-Instruct, a real model.

    compare_smollm2.py TESSERA_COMPARE

The file is that of the quick start (deploy/smollm2.sh), or $TESSERA_SMOLLM2. Without it: exit status 77.
Its weights are blocks of 32 inputs (Q4_1, the embedding Q8_0). They are served as they are: cpu:stored, which
cpu:int4 also chooses for this file.
"""

import os
import pathlib
import subprocess
import sys

MOST_DIVERGENCE = {"cpu:f16": 1e-5, "cpu:bf16": 4e-4, "cpu:int8": 6e-3, "cpu:int4": 6e-3,
                   "cpu:stored": 6e-3}


def main():
    cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME", pathlib.Path.home() / ".cache"))
    model = os.environ.get("TESSERA_SMOLLM2", cache / "tessera/SmolLM2-135M-Instruct.Q4_1.gguf")
    if not pathlib.Path(model).exists():
        print(f"skipped: no {model}; sh deploy/smollm2.sh gets it")
        sys.exit(77)
    few = ["--model", model, "--prompts", "4", "--tokens", "96", "--with", ",".join(MOST_DIVERGENCE)]
    done = subprocess.run([sys.argv[1], *few], capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    print(done.stdout)
    rows = [[cell.strip() for cell in line.split("|")] for line in done.stdout.splitlines()]
    divergence = {cells[1]: float(cells[2]) for cells in rows if len(cells) > 5 and cells[1] in MOST_DIVERGENCE}
    assert divergence.keys() == MOST_DIVERGENCE.keys(), done.stdout
    for way, most in MOST_DIVERGENCE.items():
        assert divergence[way] < most, f"{way}: {divergence[way]}, at most {most}"


if __name__ == "__main__":
    main()
