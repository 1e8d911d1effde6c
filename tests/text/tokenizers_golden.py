"""Writes tokenizers and texts with their ids, computed by tiktoken, mistral-common and tokenizers.

    python tokenizers_golden.py OUT.json              small vocabularies and 120 texts each: tests/golden/tokenizers.json
    python tokenizers_golden.py OUT.json --live       whole vocabularies of mistral-common, 5,000 texts each
"""

import base64
import io
import json
import random
import re
import sys
import unicodedata
from pathlib import Path

import sentencepiece
import tiktoken
from mistral_common.tokens.tokenizers.sentencepiece import SentencePieceTokenizer
from mistral_common.tokens.tokenizers.tekken import Tekkenizer
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

SEED = 20261123
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
          r"|\s+(?!\S)|\s+")
QWEN = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
PARTS = [" ", "  ", "\n", "\t", "\r\n", "the", " Once upon", "ing", "aaaaaaa", "0", "48213", "I'LL", "don't", ".", ',"',
         "e\u0301", "A\u030a", "\u1100\u1161\u11a8", "\u212b", "q\u0323\u0307", "ß", "北京", "👩‍👩‍👧", "नमस्ते", "\u00a0",
         "</s>", "[INST]", "[/INST]", "[TOOL_CALLS]", "<|eot_id|>", "<|begin_of_text|>", "<|im_end|>", "def f(x):\n    return"]
MARKS = ["[INST]", "[/INST]", "[TOOL_CALLS]", "</s>"]  # special tokens of Mistral's that PARTS has, and others
KIND = Path(sys.modules["mistral_common"].__file__).parent / "data"


def assigned(code: int) -> bool:
    # PCRE2's tables are older than those of the Rust libraries, so characters of later Unicodes may differ.
    return not 0xD800 <= code < 0xE000 and unicodedata.category(chr(code)) not in ("Cn", "Co")


def texts(count: int) -> list:
    draw = random.Random(SEED)
    codes = [code for code in range(1, 0x30000) if assigned(code)]
    one = lambda: draw.choice(PARTS) if draw.random() < 0.6 else chr(draw.choice(codes))
    return ["".join(one() for _ in range(draw.randrange(1, 24))) for _ in range(count)]


def cases(count: int, encode, decode, special: bool, kept: bool = True) -> list:
    """kept: decode() gives the texts of special tokens too."""
    found = []
    for text in texts(count):
        ids = encode(text)
        found.append(dict(text=text, ids=ids, decoded=decode(ids), special=special, kept=kept))
    return found


def with_marks(encode, mark_id):
    """Mistral's tokenizers never read a special token in a text: its id stands between the texts around it."""
    def whole(text: str) -> list:
        ids = []
        for i, part in enumerate(re.split("(" + "|".join(map(re.escape, MARKS)) + ")", text)):
            ids += [mark_id(part)] if i % 2 else encode(part) if part else []
        return ids
    return whole


def tekken_file(live: bool) -> dict:
    file = json.loads((KIND / "tekken_240911.json").read_text())
    if not live:
        ranks = 900
        file["vocab"] = [dict(t, token_str=None) for t in file["vocab"][:ranks]]
        file["config"].update(default_num_special_tokens=30, default_vocab_size=ranks + 30)
        file = {k: v for k, v in file.items() if k in ("config", "vocab", "special_tokens", "version", "type")}
    return file


def tekken(live: bool, count: int, folder: Path) -> dict:
    text = json.dumps(tekken_file(live))
    path = folder / "tekken.json"
    path.write_text(text)
    model = Tekkenizer.from_file(path)
    encode = lambda t: model.encode(t, bos=False, eos=False)
    found = cases(count, encode, model.decode, False)
    found += cases(count // 4, with_marks(encode, model.get_special_token), model.decode, True, kept=False)
    return dict(file="tekken.json", content=text, cases=found)


def llama3(live: bool, count: int) -> dict:
    vocab = tekken_file(live)["vocab"][:128000]
    ranks = {base64.b64decode(t["token_bytes"]): t["rank"] for t in vocab}
    names = ["<|begin_of_text|>", "<|end_of_text|>", "<|reserved_special_token_0|>", "<|reserved_special_token_1|>",
             "<|finetune_right_pad_id|>", "<|reserved_special_token_2|>", "<|start_header_id|>", "<|end_header_id|>",
             "<|eom_id|>", "<|eot_id|>", "<|python_tag|>"]
    names += [f"<|reserved_special_token_{i}|>" for i in range(3, 256 - len(names) + 3)]
    model = tiktoken.Encoding("llama3", pat_str=LLAMA3, mergeable_ranks=ranks,
                              special_tokens={n: len(ranks) + i for i, n in enumerate(names)})
    content = "".join(f'{t["token_bytes"]} {t["rank"]}\n' for t in vocab)
    found = cases(count, lambda t: model.encode(t, allowed_special="all"), model.decode, True)
    found += cases(count // 4, lambda t: model.encode(t, disallowed_special=()), model.decode, False)
    return dict(file="tokenizer.model", content=content, cases=found)


def qwen(count: int) -> dict:
    model = Tokenizer(models.BPE())
    model.normalizer = normalizers.NFC()
    model.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(QWEN), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    model.decoder = decoders.ByteLevel()
    model.train_from_iterator(texts(400), trainers.BpeTrainer(
        vocab_size=700, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    model.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    return dict(file="tokenizer.json", content=model.to_str(), cases=cases(
        count, lambda t: model.encode(t).ids, lambda ids: model.decode(ids, skip_special_tokens=False), True))


def small_v3() -> bytes:
    model, draw = io.BytesIO(), random.Random(SEED)
    sentences = ["".join(draw.choices(PARTS, k=12)) for _ in range(400)]
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(sentences), model_writer=model, vocab_size=700, model_type="bpe", byte_fallback=True,
        character_coverage=0.98, split_digits=True, normalization_rule_name="identity", remove_extra_whitespaces=False,
        control_symbols=MARKS[:-1], minloglevel=2)
    return model.getvalue()


def v3(live: bool, count: int, folder: Path) -> dict:
    name = "tokenizer.model.v3"
    content = (KIND / "mistral_instruct_tokenizer_240323.model.v3").read_bytes() if live else small_v3()
    path = folder / name
    path.write_bytes(content)
    model = SentencePieceTokenizer(path)
    path.unlink()
    encode = lambda t: model.encode(t, bos=False, eos=False)
    found = cases(count, encode, model.decode, False, kept=False)
    found += cases(count // 4, with_marks(encode, model.get_special_token), model.decode, True, kept=False)
    return dict(file=name, base64=base64.b64encode(content).decode(), cases=found)


def main():
    out, live = Path(sys.argv[1]), "--live" in sys.argv
    count = 5000 if live else 120
    found = dict(tekken=tekken(live, count, out.parent), llama3=llama3(live, count), qwen=qwen(count),
                 v3=v3(live, count, out.parent))
    (out.parent / "tekken.json").unlink()
    out.write_text(json.dumps(found, ensure_ascii=False, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
