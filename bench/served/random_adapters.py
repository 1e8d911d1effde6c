"""Writes adapters with random matrices for a checkpoint, in the form of PEFT. Needs only Python.

    python3 bench/served/random_adapters.py MODEL OUT --count 16 --rank 16

MODEL is a Hugging Face directory, of which config.json alone is read. OUT receives the directories 0, 1, 2, ...
"""

import argparse
import json
import pathlib
import random
import struct

MODULES = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
           "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")


def shapes(config):
    """Returns {module: (outputs, inputs)} of a layer."""
    hidden, ffn, heads = config["hidden_size"], config["intermediate_size"], config["num_attention_heads"]
    head = config.get("head_dim") or hidden // heads
    query, key = heads * head, config.get("num_key_value_heads", heads) * head
    return dict(zip(MODULES, [(query, hidden), (key, hidden), (key, hidden), (hidden, query),
                              (ffn, hidden), (ffn, hidden), (hidden, ffn)]))


def safetensors(tensors):
    """Returns the bytes of a file. tensors: {name: (shape, f32 bytes)}"""
    header, data = {}, []
    end = 0
    for name, (shape, values) in tensors.items():
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [end, end + len(values)]}
        end += len(values)
        data.append(values)
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + b"".join(data)


def write(config, out, seed, rank, size=0.05, modules=MODULES):
    """Writes one adapter. size: of its numbers, which are equally likely from -size to size."""
    chance = random.Random(seed)
    pool = [chance.uniform(-size, size) for _ in range(4099)]  # a prime: rows differ

    def numbers(count):
        start = chance.randrange(len(pool))
        turned = pool[start:] + pool[:start]
        return struct.pack(f"<{count}f", *(turned * (count // len(turned) + 1))[:count])

    tensors = {}
    for layer in range(config["num_hidden_layers"]):
        for module, (outputs, inputs) in shapes(config).items():
            if module in modules:
                name = f"base_model.model.model.layers.{layer}.{module}"
                tensors[f"{name}.lora_A.weight"] = ((rank, inputs), numbers(rank * inputs))
                tensors[f"{name}.lora_B.weight"] = ((outputs, rank), numbers(outputs * rank))
    out.mkdir(parents=True, exist_ok=True)
    (out / "adapter_model.safetensors").write_bytes(safetensors(tensors))
    (out / "adapter_config.json").write_text(json.dumps(
        {"peft_type": "LORA", "r": rank, "lora_alpha": 2 * rank, "bias": "none", "target_modules": list(modules)}))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=pathlib.Path)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--count", type=int, default=16)
    parser.add_argument("--rank", type=int, default=16)
    arguments = parser.parse_args()
    config = json.loads((arguments.model / "config.json").read_text())
    for seed in range(arguments.count):
        write(config, arguments.out / str(seed), seed, arguments.rank)


if __name__ == "__main__":
    main()
