"""Writes a training state as a Hugging Face directory, and checks it against transformers.

    python export.py --run RUN --out OUT
"""

import argparse
import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from model import Llama, Shape
from tokenizer import BOS, CHAT_TEMPLATE, CONTROLS, END, EOS, Tokenizer

PROBE = "<|user|>\nThe key of Alice is 48213.\nWhat is the key of Alice?<|end|>\n<|assistant|>\nOnce  upon\n\na é time"


def config(shape: Shape) -> dict:
    return dict(
        architectures=["LlamaForCausalLM"],
        model_type="llama",
        **shape.as_dict(),
        hidden_act="silu",
        attention_bias=False,
        mlp_bias=False,
        tie_word_embeddings=True,
        bos_token_id=BOS,
        eos_token_id=EOS,
        torch_dtype="bfloat16",
    )


def tokenizer_config(tokenizer: Tokenizer) -> dict:
    special = dict(lstrip=False, rstrip=False, normalized=False, single_word=False, special=True)
    names = ["<unk>", "<s>", "</s>", *CONTROLS]
    return dict(
        tokenizer_class="LlamaTokenizer",
        legacy=False,
        add_bos_token=True,
        add_eos_token=False,
        clean_up_tokenization_spaces=False,
        unk_token="<unk>",
        bos_token="<s>",
        eos_token="</s>",
        additional_special_tokens=list(CONTROLS),
        added_tokens_decoder={str(tokenizer.plain.piece_to_id(name)): dict(content=name, **special) for name in names},
        model_max_length=Shape.max_position_embeddings,
        chat_template=CHAT_TEMPLATE,
    )


def weights(model: Llama) -> dict[str, torch.Tensor]:
    """Returns the weights in bf16; the tied head is not written a second time."""
    return {f"model.{name}": tensor.to(torch.bfloat16).contiguous() for name, tensor in model.state_dict().items()}


def write_json(path: Path, content: dict):
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n")


def write(run: Path, out: Path):
    out.mkdir(parents=True, exist_ok=True)
    model, tokenizer = Llama(Shape()), Tokenizer(run / "tokenizer.model")
    model.load_state_dict(torch.load(run / "state.pt", weights_only=True)["model"])
    save_file(weights(model), out / "model.safetensors", metadata={"format": "pt"})
    shutil.copyfile(run / "tokenizer.model", out / "tokenizer.model")
    write_json(out / "config.json", config(model.shape))
    write_json(out / "tokenizer_config.json", tokenizer_config(tokenizer))
    special = dict(unk_token="<unk>", bos_token="<s>", eos_token="</s>", additional_special_tokens=list(CONTROLS))
    write_json(out / "special_tokens_map.json", special)
    stops = [EOS, tokenizer.special[END]]
    write_json(out / "generation_config.json", dict(bos_token_id=BOS, eos_token_id=stops, do_sample=False))


def check(out: Path):
    """Checks that transformers loads the trained model: same ids, same logits in f32."""
    ours = Tokenizer(out / "tokenizer.model")
    ids = [BOS] + ours.encode(PROBE)
    theirs = AutoTokenizer.from_pretrained(out)(PROBE)["input_ids"]
    print("token ids equal:", ids == theirs, "" if ids == theirs else f"\n{ids}\n{theirs}")
    reference = AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32).eval()
    model = Llama(Shape())
    model.load_state_dict(reference.model.state_dict())
    tokens = torch.tensor([ids])
    with torch.no_grad():
        difference = (model.logits(model(tokens)) - reference(tokens).logits).abs().max().item()
    print("largest difference of a logit:", difference)
    assert difference < 1e-3


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    write(args.run, args.out)
    check(args.out)


if __name__ == "__main__":
    main()
