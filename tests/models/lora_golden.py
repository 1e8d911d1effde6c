"""Computes logits of random tiny models under random adapters with PEFT in f32, and trains one adapter for 50 steps.

    TESSERA_ADAPTERS_OUT=DIR lora_test && python lora_golden.py DIR ../golden/lora.json ../golden/lora_trained
    python lora_golden.py --real FILE.gguf OUT      of a real checkpoint, with a random and a trained adapter of all modules
"""

import json
import shutil
import sys
from pathlib import Path

import torch
import transformers
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM

TOKENS, STORED, STEPS = 101, (30, 100), 50
REAL_TOKENS = 24  # of the text that a real checkpoint learns, so that 50 steps take a minute or two


def digits(tensor) -> list:
    return [float(f"{x:.9g}") for x in tensor.tolist()]


ALL = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def load(directory: Path, **more):
    return AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32, attn_implementation="eager",
                                                **more).eval()


def ids_of(model) -> list:
    return [(7 * i * i + 3 * i + 1) % model.config.vocab_size for i in range(TOKENS)]


def golden(base: Path, adapter: Path, dtype=torch.float32) -> dict:
    model = load(base)
    ids = ids_of(model)
    plain = model(torch.tensor([ids])).logits[0]
    adapted = PeftModel.from_pretrained(model, adapter).eval().to(dtype)
    logits = adapted(torch.tensor([ids])).logits[0]
    print(f"{base.name}: the adapter changes logits by up to {(logits - plain).abs().max():.2f}")
    return dict(ids=ids, logits=[dict(position=p, values=digits(logits[p])) for p in STORED])


def train(base: Path, out: Path, rate: float, steps: int, tokens: int = TOKENS, **config):
    """Teaches the model to repeat the first tokens of a sequence, and saves the adapter as a user of PEFT does."""
    torch.manual_seed(1)
    model = get_peft_model(load(base), LoraConfig(task_type="CAUSAL_LM", **config))
    optimiser = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=rate)
    ids = torch.tensor([ids_of(model)[:tokens]])
    for step in range(steps):
        loss = model(ids, labels=ids).loss
        loss.backward()
        optimiser.step()
        optimiser.zero_grad()
        if step in (0, steps - 1):
            print(f"step {step}: loss {loss.item():.3f}", flush=True)
    shutil.rmtree(out, ignore_errors=True)
    model.save_pretrained(out)
    (out / "README.md").unlink()
    (out / "adapter_model.safetensors").chmod(0o644)


def write(out: Path, found: dict):
    out.write_text("{\n" + ",\n".join(f'"{n}":{json.dumps(g, separators=(",", ":"))}' for n, g in found.items()) + "\n}\n")


def real(gguf: Path, out: Path):
    base = out / "model"
    load(gguf.parent, gguf_file=gguf.name).save_pretrained(base)
    train(base, out / "trained", 1e-3, STEPS, REAL_TOKENS, r=8, lora_alpha=16, target_modules=ALL)
    train(base, out / "random", 1e-3, 0, r=16, lora_alpha=1, use_rslora=True, target_modules=ALL,
          init_lora_weights=False)
    with torch.no_grad():
        # In f32, PEFT's own roundings are half of the bound.
        write(out / "golden.json", {name: golden(base, out / name, torch.float64) for name in ("trained", "random")})


def main():
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    if sys.argv[1] == "--real":
        return real(Path(sys.argv[2]), Path(sys.argv[3]))
    source, out, trained = (Path(p) for p in sys.argv[1:4])
    train(source / "llama" / "model", trained, 1e-2, STEPS, r=2, lora_alpha=8,
          target_modules=["q_proj", "v_proj", "down_proj"])
    with torch.no_grad():
        found = {d.name: golden(d / "model", d / "adapter") for d in sorted(source.iterdir())}
        found["trained"] = golden(source / "llama" / "model", trained)
    write(out, found)


if __name__ == "__main__":
    main()
