"""Converts llama2.c's stories260K (v0 checkpoint and tokenizer) to a Hugging Face directory.

    python stories260k.py IN OUT [--golden FILE]

IN holds stories260K.bin and tok512.bin. With --golden, 200 greedy tokens for two prompts are
written, after checking that transformers on the converted files agrees with an f64 reading of
llama2.c's own definition.
"""

import argparse
import json
import struct
from pathlib import Path

import numpy as np
import sentencepiece as spm
import torch
from safetensors.torch import save_file
from sentencepiece import sentencepiece_model_pb2 as spm_proto
from transformers import AutoModelForCausalLM

HEADER = ("dim", "hidden", "layers", "heads", "kv_heads", "vocab", "length")
PROMPTS = ("", "Once upon a time")
GREEDY = 200
EPS = 1e-5


def read_checkpoint(path: Path) -> tuple[dict, dict]:
    """Returns (header, tensors): f32 arrays with a leading layer axis, in the order of the file."""
    raw = path.read_bytes()
    h = dict(zip(HEADER, struct.unpack("7i", raw[:28])))
    dim, hidden, layers, head = h["dim"], h["hidden"], h["layers"], h["dim"] // h["heads"]
    kv = head * h["kv_heads"]
    assert h["vocab"] > 0, "a negative vocabulary size would mean an untied head"
    shapes = dict(
        embed=(h["vocab"], dim),
        norm_attention=(layers, dim),
        q=(layers, dim, dim),
        k=(layers, kv, dim),
        v=(layers, kv, dim),
        o=(layers, dim, dim),
        norm_ffn=(layers, dim),
        gate=(layers, hidden, dim),
        down=(layers, dim, hidden),
        up=(layers, hidden, dim),
        norm=(dim,),
    )
    tensors, at = {}, 28
    for name, shape in shapes.items():
        count = int(np.prod(shape))
        tensors[name] = np.frombuffer(raw, np.float32, count, at).reshape(shape)
        at += 4 * count
    assert len(raw) - at == 2 * 4 * h["length"] * head // 2, "two rotary tables and nothing else should follow"
    return h, tensors


def read_vocabulary(path: Path, count: int) -> list[tuple[bytes, float]]:
    raw, at, pieces = path.read_bytes(), 4, []
    for _ in range(count):
        score, size = struct.unpack_from("fi", raw, at)
        pieces.append((raw[at + 8 : at + 8 + size], score))
        at += 8 + size
    return pieces


def half_split(rows: np.ndarray, heads: int) -> np.ndarray:
    """Reorders rows: llama2.c rotates (2i, 2i+1) of a head, Hugging Face (i, i + half)."""
    out, columns = rows.shape
    return rows.reshape(heads, out // heads // 2, 2, columns).swapaxes(1, 2).reshape(out, columns)


def named_tensors(h: dict, t: dict) -> dict[str, torch.Tensor]:
    named = {"model.embed_tokens.weight": t["embed"], "model.norm.weight": t["norm"]}
    for i in range(h["layers"]):
        layer = {
            "self_attn.q_proj": half_split(t["q"][i], h["heads"]),
            "self_attn.k_proj": half_split(t["k"][i], h["kv_heads"]),
            "self_attn.v_proj": t["v"][i],
            "self_attn.o_proj": t["o"][i],
            "mlp.gate_proj": t["gate"][i],
            "mlp.down_proj": t["down"][i],
            "mlp.up_proj": t["up"][i],
            "input_layernorm": t["norm_attention"][i],
            "post_attention_layernorm": t["norm_ffn"][i],
        }
        named |= {f"model.layers.{i}.{name}.weight": tensor for name, tensor in layer.items()}
    return {name: torch.from_numpy(np.array(tensor, order="C")) for name, tensor in named.items()}


def config(h: dict) -> dict:
    return dict(
        architectures=["LlamaForCausalLM"],
        model_type="llama",
        vocab_size=h["vocab"],
        hidden_size=h["dim"],
        intermediate_size=h["hidden"],
        num_hidden_layers=h["layers"],
        num_attention_heads=h["heads"],
        num_key_value_heads=h["kv_heads"],
        head_dim=h["dim"] // h["heads"],
        max_position_embeddings=h["length"],
        rms_norm_eps=EPS,
        rope_theta=10000.0,
        hidden_act="silu",
        attention_bias=False,
        mlp_bias=False,
        tie_word_embeddings=True,
        bos_token_id=1,
        eos_token_id=2,
        torch_dtype="float32",
    )


def sentencepiece_model(vocabulary: list[tuple[bytes, float]]) -> spm_proto.ModelProto:
    """Derives from ids and text the piece types and space symbols that tok512.bin lacks."""
    kinds = spm_proto.ModelProto.SentencePiece
    special = {0: ("<unk>", kinds.UNKNOWN), 1: ("<s>", kinds.CONTROL), 2: ("</s>", kinds.CONTROL)}
    model = spm_proto.ModelProto()
    for i, (text, score) in enumerate(vocabulary):
        if i in special:
            piece, kind = special[i]
        elif i < 259:
            piece, kind = f"<0x{i - 3:02X}>", kinds.BYTE
        else:
            piece, kind = text.decode().replace(" ", "\u2581"), kinds.NORMAL
        model.pieces.add(piece=piece, score=score, type=kind)
    model.trainer_spec.model_type = spm_proto.TrainerSpec.BPE
    model.trainer_spec.vocab_size = len(vocabulary)
    model.trainer_spec.byte_fallback = True
    model.trainer_spec.pad_id = -1
    model.normalizer_spec.name = "identity"
    model.normalizer_spec.add_dummy_prefix = True
    model.normalizer_spec.remove_extra_whitespaces = False
    model.normalizer_spec.escape_whitespaces = True
    return model


def convert(source: Path, out: Path):
    h, tensors = read_checkpoint(source / "stories260K.bin")
    out.mkdir(parents=True, exist_ok=True)
    save_file(named_tensors(h, tensors), out / "model.safetensors", metadata={"format": "pt"})
    vocabulary = read_vocabulary(source / "tok512.bin", h["vocab"])
    (out / "tokenizer.model").write_bytes(sentencepiece_model(vocabulary).SerializeToString())
    tokenizer = dict(tokenizer_class="LlamaTokenizer", legacy=False, add_bos_token=True, add_eos_token=False)
    tokenizer |= dict(unk_token="<unk>", bos_token="<s>", eos_token="</s>", model_max_length=h["length"])
    generation = dict(bos_token_id=1, eos_token_id=2, do_sample=False)
    files = {"config": config(h), "tokenizer_config": tokenizer, "generation_config": generation}
    for name, content in files.items():
        (out / f"{name}.json").write_text(json.dumps(content, indent=2) + "\n")


# --- the reference: llama2.c's run.c in f64, without a cache ------------------------------------------


def rms_norm(x, weight):
    return weight * x / np.sqrt((x * x).mean(-1, keepdims=True) + EPS)


def rope_pairs(x, head: int):
    """Rotates neighbouring pairs of x [length, heads, head]."""
    angles = np.arange(len(x))[:, None] * 10000.0 ** -(np.arange(0, head, 2) / head)
    cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]
    even, odd = x[..., 0::2], x[..., 1::2]
    return np.stack((even * cos - odd * sin, even * sin + odd * cos), -1).reshape(x.shape)


def attention(h: dict, t: dict, layer: int, x):
    length, head = len(x), h["dim"] // h["heads"]
    q = rope_pairs((x @ t["q"][layer].T).reshape(length, h["heads"], head), head)
    k = rope_pairs((x @ t["k"][layer].T).reshape(length, h["kv_heads"], head), head)
    v = (x @ t["v"][layer].T).reshape(length, h["kv_heads"], head)
    k, v = (np.repeat(a, h["heads"] // h["kv_heads"], axis=1) for a in (k, v))
    scores = np.einsum("ihd,jhd->hij", q, k) / np.sqrt(head)
    scores = np.where(np.tri(length, dtype=bool), scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    return np.einsum("hij,jhd->ihd", weights, v).reshape(length, -1) @ t["o"][layer].T


def reference_logits(h: dict, t: dict, ids: list[int]):
    """Returns the logits after the last token."""
    x = t["embed"][ids]
    for i in range(h["layers"]):
        x = x + attention(h, t, i, rms_norm(x, t["norm_attention"][i]))
        y = rms_norm(x, t["norm_ffn"][i])
        gate = y @ t["gate"][i].T
        x = x + (gate / (1 + np.exp(-gate)) * (y @ t["up"][i].T)) @ t["down"][i].T
    return t["embed"] @ rms_norm(x[-1], t["norm"])


def golden(source: Path, out: Path) -> dict:
    h, tensors = read_checkpoint(source / "stories260K.bin")
    tensors = {name: tensor.astype(np.float64) for name, tensor in tensors.items()}
    tokenizer = spm.SentencePieceProcessor(model_file=str(out / "tokenizer.model"))
    model = AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32, attn_implementation="eager").eval()
    cases = []
    for prompt in PROMPTS:
        ids = [1] + tokenizer.encode(prompt)
        path, margins, difference = list(ids), [], 0.0
        for _ in range(GREEDY):
            with torch.no_grad():
                ours = model(torch.tensor([path])).logits[0, -1].double().numpy()
            theirs = reference_logits(h, tensors, path)
            difference = max(difference, float(abs(ours - theirs).max()))
            margins.append(float(np.diff(np.sort(theirs)[-2:])[0]))
            path.append(int(theirs.argmax()))
            assert ours.argmax() == path[-1], "the converted model takes another way than llama2.c"
        cases.append(dict(prompt=prompt, prompt_ids=ids, greedy_ids=path[len(ids) :], text=tokenizer.decode(path)))
        print(f"{prompt!r}: largest logit difference {difference:.2e}, smallest margin {min(margins):.2e}")
        print(cases[-1]["text"])
    return dict(model="stories260K", greedy_tokens=GREEDY, cases=cases)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("source", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--golden", type=Path)
    args = parser.parse_args()
    convert(args.source, args.out)
    if args.golden:
        args.golden.parent.mkdir(parents=True, exist_ok=True)
        args.golden.write_text(json.dumps(golden(args.source, args.out), indent=1) + "\n")


if __name__ == "__main__":
    main()
