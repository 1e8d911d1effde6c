#!/usr/bin/env python3
"""Throughput of continuous batching in Hugging Face transformers, for bench/gpu.

    hf_continuous.py                         # Llama-3-8B's shape with random weights, f16, a KV pool of 4 GiB
    hf_continuous.py --layers 2 --hidden 64 --requests 4 --prompt 16 --generated 8 --kv-gib 0.01   # small

Prints one row of the table that tessera-throughput prints, the program it is compared with.
"""

import argparse
import time


def pool(options):
    """Returns the blocks of 32 tokens that fit into the pool: keys and values in f16."""
    token = 2 * 2 * options.layers * options.kv_heads * options.head_dim
    return max(1, int(options.kv_gib * 2**30) // token // 32)


def generate(model, prompts, options):
    """Calls generate_batch in either version of its interface; returns the number of new tokens."""
    from transformers import GenerationConfig
    settings = dict(num_blocks=pool(options), block_size=32, max_batch_tokens=options.step_tokens)
    config = GenerationConfig(max_new_tokens=options.generated, do_sample=False, eos_token_id=-1, pad_token_id=0)
    try:
        from transformers.generation import ContinuousBatchingConfig
        arguments = {"continuous_batching_config": ContinuousBatchingConfig(**settings)}
    except ImportError:
        for name, value in settings.items():
            setattr(config, name, value)
        arguments = {}
    outputs = model.generate_batch(inputs=prompts, generation_config=config, progress_bar=False, **arguments)
    return sum(len(output.generated_tokens) for output in outputs.values())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in (("layers", 32), ("hidden", 4096), ("heads", 32), ("kv-heads", 8), ("head-dim", 128),
                        ("ffn", 14336), ("vocab", 128256), ("requests", 64), ("prompt", 1024), ("generated", 1024),
                        ("step-tokens", 2048)):
        parser.add_argument("--" + name, type=int, default=value)
    parser.add_argument("--kv-gib", type=float, default=4)
    parser.add_argument("--attention", default="sdpa_paged", help="attn_implementation, as flash_attention_2")
    parser.add_argument("--device", default="cuda")
    options = parser.parse_args()

    import torch
    import transformers
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        num_hidden_layers=options.layers, hidden_size=options.hidden, num_attention_heads=options.heads,
        num_key_value_heads=options.kv_heads, head_dim=options.head_dim, intermediate_size=options.ffn,
        vocab_size=options.vocab, max_position_embeddings=options.prompt + options.generated)
    torch.set_default_dtype(torch.float16)
    with torch.device(options.device):
        model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation=options.attention)
    model.eval()
    prompts = torch.randint(3, options.vocab, (options.requests, options.prompt)).tolist()
    warm = argparse.Namespace(**{**vars(options), "generated": 8})
    generate(model, prompts[:2], warm)
    begin = time.monotonic()
    generated = generate(model, prompts, options)
    seconds = time.monotonic() - begin
    assert generated == options.requests * options.generated, f"{generated} tokens came back"
    tokens = generated + options.requests * options.prompt
    print(f"| transformers {transformers.__version__} ({options.attention}), f16 | {options.requests} | "
          f"{seconds:.1f} | {generated / seconds:.0f} | {tokens / seconds:.0f} | - | - |")


if __name__ == "__main__":
    main()
