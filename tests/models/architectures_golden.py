"""Computes logits of the random tiny models of tiny_models.h with transformers in f32.

    TESSERA_MODELS_OUT=DIR architectures_test && python architectures_golden.py DIR ../golden/architectures.json
"""

import json
import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

TOKENS, POSITIONS = 101, (30, 100)


def golden(directory: Path) -> dict:
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32, attn_implementation="eager").eval()
    ids = [(7 * i * i + 3 * i + 1) % model.config.vocab_size for i in range(TOKENS)]
    with torch.no_grad():
        logits = model(torch.tensor([ids])).logits[0]
    rows = [dict(position=p, values=[float(f"{x:.8g}") for x in logits[p].tolist()]) for p in POSITIONS]
    return dict(ids=ids, logits=rows)


def main():
    source, out = Path(sys.argv[1]), Path(sys.argv[2])
    found = {directory.name: golden(directory) for directory in sorted(source.iterdir())}
    out.write_text("{\n" + ",\n".join(f'"{n}":{json.dumps(g, separators=(",", ":"))}' for n, g in found.items()) + "\n}\n")


if __name__ == "__main__":
    main()
