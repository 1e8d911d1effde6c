"""Computes logits of the random tiny models of tiny_models.h with transformers in f32. Models with room for it get a
prompt of 480 tokens and 24 greedy tokens after it.

    TESSERA_MODELS_OUT=DIR architectures_test && python architectures_golden.py DIR ../golden/architectures.json
    python architectures_golden.py DIR OUT.json --live      logits of all positions instead of two
"""

import json
import sys
from pathlib import Path
from unittest import mock

import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

SHORT, LONG, GREEDY = 101, 480, 24
FAR = 100_000  # from this many positions on, a prompt is at the last of them
ANGLES = (0, 1, 8191, 32768, 65537, 131071)


def digits(tensor) -> list:
    return [float(f"{x:.9g}") for x in tensor.tolist()]


def load(directory: Path):
    config = AutoConfig.from_pretrained(directory)
    text = config.get_text_config()
    kind = AutoModelForCausalLM if text is config else AutoModelForImageTextToText
    return kind.from_pretrained(directory, dtype=torch.float32, attn_implementation="eager").eval(), text


def use_exact_angles(model):
    """At position 131,071 an f32 angle is wrong by up to 0.004 radians. So the formulas of transformers run in f64."""
    rope = next(m for n, m in model.named_modules() if n.endswith("rotary_emb"))
    kind = rope.config.rope_parameters["rope_type"]
    formula = rope.compute_default_rope_parameters if kind == "default" else ROPE_INIT_FUNCTIONS[kind]
    with mock.patch.multiple(torch, float=torch.float64, float32=torch.float64):
        frequencies, factor = formula(rope.config, device=None)
    assert frequencies.dtype == torch.float64

    def angles(x, position_ids):
        turns = position_ids[..., None].double() * frequencies
        both = torch.cat((turns, turns), dim=-1)
        return tuple((of(both) * factor).to(x.dtype) for of in (torch.cos, torch.sin))

    rope.forward = angles
    return angles


def logits_of(model, ids: list, first: int):
    positions = torch.arange(first, first + len(ids))[None] if first else None
    with torch.no_grad():
        return model(torch.tensor([ids]), position_ids=positions, use_cache=False).logits[0]


def greedy_tokens(model, ids: list, first: int) -> list:
    tokens, cache = [], None
    with torch.no_grad():
        while len(tokens) < GREEDY:
            new = [tokens[-1]] if tokens else ids
            start = first + len(ids) + len(tokens) - len(new)
            out = model(torch.tensor([new]), position_ids=torch.arange(start, start + len(new))[None],
                        past_key_values=cache, use_cache=True)
            cache = out.past_key_values
            tokens.append(int(out.logits[0, -1].argmax()))
    return tokens


def golden(directory: Path, live: bool) -> dict:
    model, text = load(directory)
    context = text.max_position_embeddings
    long = context >= LONG + GREEDY
    first = context - LONG - GREEDY + 1 if context > FAR else 0  # the last greedy token comes from the last position
    ids = [(7 * i * i + 3 * i + 1) % text.vocab_size for i in range(LONG if long else SHORT)]
    found = dict(ids=ids)
    if first:
        plain = logits_of(model, ids, first)
        angles = use_exact_angles(model)
        rows = [angles(torch.zeros(1, dtype=torch.float64), torch.tensor([p])) for p in ANGLES]
        found["first"] = first
        found["angles"] = [dict(position=p, cos=digits(c[0, :c.shape[-1] // 2]), sin=digits(s[0, :s.shape[-1] // 2]))
                           for p, (c, s) in zip(ANGLES, rows)]
        difference = (logits_of(model, ids, first) - plain).abs().max()
        print(f"{directory.name}: f32 angles change transformers' own logits by up to {difference:.1e}")
    logits = logits_of(model, ids, first)
    stored = range(len(ids)) if live else (30, len(ids) - 1)
    found["logits"] = [dict(position=p, values=digits(logits[p])) for p in stored]
    return dict(found, **(dict(greedy=greedy_tokens(model, ids, first)) if long else {}))


def main():
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()  # it lists the encoder of images, which the checkpoints lack
    source, out, live = Path(sys.argv[1]), Path(sys.argv[2]), "--live" in sys.argv
    found = {directory.name: golden(directory, live) for directory in sorted(source.iterdir())}
    out.write_text("{\n" + ",\n".join(f'"{n}":{json.dumps(g, separators=(",", ":"))}' for n, g in found.items()) + "\n}\n")


if __name__ == "__main__":
    main()
