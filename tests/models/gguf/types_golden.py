"""Writes gguf_types.json: random blocks of each GGUF tensor type and their values, from PyPI's gguf.

    pip install gguf==0.19.0; python tests/models/gguf/types_golden.py

Values are bits of f32. Scales include zeros, subnormal, negative and the largest finite ones.
"""

import json
import struct
from pathlib import Path

import gguf
import numpy as np

TYPES = ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K"]
# Offsets of the f16 scales in a block.
SCALES = {"Q8_0": [0], "Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q4_K": [0, 2],
          "Q5_K": [0, 2], "Q6_K": [208]}
HALVES = [0x0000, 0x8000, 0x0001, 0x83FF, 0x7BFF, 0xFBFF, 0x2E66, 0xA123, 0x1A01]


def random_blocks(name, generator):
    values, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[name]]
    count = 8 if values == 1 else 4 if values == 256 else 9
    blocks = generator.integers(0, 256, (count, size), dtype=np.uint8)
    for row, block in enumerate(blocks):
        for index, offset in enumerate(SCALES.get(name, [])):
            half = HALVES[(row + 4 + 3 * index) % len(HALVES)]
            block[offset:offset + 2] = np.frombuffer(struct.pack("<H", half), np.uint8)
    if name in ("F32", "F16", "BF16"):
        blocks[:, -1] &= 0xBF  # finite ones
    return blocks


def main():
    generator = np.random.default_rng(19)
    golden = {}
    for name in TYPES:
        blocks = random_blocks(name, generator)
        values = gguf.dequantize(blocks, gguf.GGMLQuantizationType[name])
        bits = values.astype(np.float32).reshape(-1).view(np.uint32)
        golden[name] = {"blocks": blocks.tobytes().hex(), "values": bits.tobytes().hex()}
    path = Path(__file__).resolve().parents[2] / "golden" / "gguf_types.json"
    path.write_text(json.dumps(golden, indent=0) + "\n")


main()
