"""Writes a copy of a GGUF checkpoint whose keys are hard to quantise: the same model, in other channels.

In each layer and KV head, some pairs of key channels that RoPE rotates together are multiplied by a
power of 2, and the same channels of the queries are divided by it. Products of queries and keys stay.
The scales of Q4_1 blocks are multiplied, so the stored integers stay too.

  pip install gguf numpy
  python3 eval/probes/hard_keys.py FROM.gguf TO.gguf [--factor 16] [--pairs 4] [--seed 7]
"""

import argparse
import shutil

import gguf
import numpy

BLOCK = 32  # weights of a Q4_1 block: f16 step, f16 minimum, 16 bytes of integers


def scale_rows(tensor, rows, factor):
    if tensor.tensor_type != gguf.GGMLQuantizationType.Q4_1:
        raise SystemExit(f"{tensor.name} is {tensor.tensor_type.name}, only Q4_1 is scaled")
    row_blocks = int(tensor.shape[0]) // BLOCK
    blocks = tensor.data.reshape(int(tensor.shape[1]), row_blocks, 20)
    for row in rows:
        halves = numpy.ascontiguousarray(blocks[row, :, :4]).view(numpy.float16)
        scaled = halves.astype(numpy.float32) * factor
        if numpy.abs(scaled).max() > 65504:
            raise SystemExit(f"{tensor.name}: factor {factor} leaves the range of f16")
        blocks[row, :, :4] = scaled.astype(numpy.float16).view(numpy.uint8)


def number(reader, name):
    field = reader.fields[name]
    return int(field.parts[field.data[0]][0])


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("source")
    parser.add_argument("target")
    parser.add_argument("--factor", type=float, default=16, help="a power of 2 [16]")
    parser.add_argument("--pairs", type=int, default=4, help="pairs of channels of each KV head [4]")
    parser.add_argument("--seed", type=int, default=7)
    arguments = parser.parse_args()

    shutil.copyfile(arguments.source, arguments.target)
    reader = gguf.GGUFReader(arguments.target, "r+")
    heads = number(reader, "llama.attention.head_count")
    kv_heads = number(reader, "llama.attention.head_count_kv")
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    random = numpy.random.default_rng(arguments.seed)
    for layer in range(number(reader, "llama.block_count")):
        keys = tensors[f"blk.{layer}.attn_k.weight"]
        queries = tensors[f"blk.{layer}.attn_q.weight"]
        head_dim = int(keys.shape[1]) // kv_heads
        for kv_head in range(kv_heads):
            # GGUF has the two channels of a pair beside each other.
            pairs = random.choice(head_dim // 2, arguments.pairs, replace=False)
            channels = [2 * pair + half for pair in pairs for half in (0, 1)]
            scale_rows(keys, [kv_head * head_dim + c for c in channels], arguments.factor)
            group = heads // kv_heads
            for head in range(kv_head * group, (kv_head + 1) * group):
                scale_rows(queries, [head * head_dim + c for c in channels], 1 / arguments.factor)
    reader.data.flush()


if __name__ == "__main__":
    main()
