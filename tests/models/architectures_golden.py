"""Computes logits of the random tiny models of tiny_models.h with transformers in f32. Models with room for it get a
prompt of 480 tokens and 24 greedy tokens after it.

    TESSERA_MODELS_OUT=DIR architectures_test && python architectures_golden.py DIR ../golden/architectures.json
"""

import json
import sys
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText

SHORT, LONG, GREEDY = 101, 480, 24


def golden(directory: Path) -> dict:
    config = AutoConfig.from_pretrained(directory)
    text = config.get_text_config()
    kind = AutoModelForCausalLM if text is config else AutoModelForImageTextToText
    model = kind.from_pretrained(directory, dtype=torch.float32, attn_implementation="eager").eval()
    long = text.max_position_embeddings >= LONG + GREEDY
    ids = [(7 * i * i + 3 * i + 1) % text.vocab_size for i in range(LONG if long else SHORT)]
    with torch.no_grad():
        logits = model(torch.tensor([ids]), use_cache=False).logits[0]
        greedy = []
        while long and len(greedy) < GREEDY:
            greedy.append(int(model(torch.tensor([ids + greedy]), use_cache=False).logits[0, -1].argmax()))
    rows = [dict(position=p, values=[float(f"{x:.8g}") for x in logits[p].tolist()]) for p in (30, len(ids) - 1)]
    return dict(ids=ids, logits=rows, **(dict(greedy=greedy) if long else {}))


def main():
    source, out = Path(sys.argv[1]), Path(sys.argv[2])
    found = {directory.name: golden(directory) for directory in sorted(source.iterdir())}
    out.write_text("{\n" + ",\n".join(f'"{n}":{json.dumps(g, separators=(",", ":"))}' for n, g in found.items()) + "\n}\n")


if __name__ == "__main__":
    main()
