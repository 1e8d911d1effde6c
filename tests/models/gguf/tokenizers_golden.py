"""Writes gguf_tokenizers.json: two small vocabularies, and ids that other implementations give texts.

    pip install tokenizers==0.23.3 sentencepiece==0.2.1
    python tests/models/gguf/tokenizers_golden.py

Byte-level: PyPI's tokenizers, with the pre-tokenizer that the models behind each `pre` have in their
tokenizer.json or their class of transformers, and NFC where those have it. With scores: PyPI's sentencepiece.
"""

import io
import json
from pathlib import Path

import sentencepiece
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers, trainers

ROOT = Path(__file__).resolve().parents[3]
BYTE_LEVEL = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
GPT2 = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
          r"|\s*[\r\n]+|\s+(?!\S)|\s+")
TEKKEN = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
          r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
          r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
# No tokenizer.json has llama.cpp's default; this is Falcon's, spelled as expressions.
DEFAULT = [r"[\p{P}\$\+<=>\^~\|]+",
           r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)", r"\p{N}+",
           r"[0-9][0-9][0-9]"]


def split(*patterns):
    steps = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in patterns]
    return pre_tokenizers.Sequence([*steps, BYTE_LEVEL])


DIGITS = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), GPT2])
QWEN2 = split(LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}"))
# pre-tokenizer, ignore_merges, NFC first
KINDS = {
    "gpt-2": (GPT2, False, False),
    "olmo": (GPT2, False, True),
    "smollm": (DIGITS, False, False),
    "command-r": (DIGITS, False, True),
    "llama-bpe": (split(LLAMA3), True, False),
    "qwen2": (QWEN2, False, True),
    "stablelm2": (QWEN2, False, False),
    "tekken": (split(TEKKEN), True, False),
    "default": (split(*DEFAULT), False, False),
}

TEXTS = [
    "Hello world", " leading and trailing ", "I'm sure they'll say WE'LL, it'S 'd", "2024-11-23 and 1234567",
    "tabs\tand\n\nnew lines \n  end\n", "caf\u00e9 na\u00efve \u4f60\u597d \u0645\u0631\u062d\u0628\u0627 \U0001F600!",
    "CamelCaseWords andHTTPServer", "a+b=c; x^2 ~ $5 <tag> |pipe| `tick` http://a.b/c/",
    "<|im_start|>user\nHi<|im_end|>", "<tool>x</tool>", "   ", "\u00bd \u0663\u0664 \u00b2", "e\u0301 combining",
    "don't  stop...really?!\r\nok",
    # Marks to compose: across a special token, two of one letter in either order, Hangul, and letters that NFC takes apart.
    "caf<|im_end|>\u0301e\u0301<tool>\u0301", "Vie\u0323\u0302t Vie\u0302\u0323t", "\u1112\u1161\u11ab\u1100\u1173\u11af",
    "\u212b \u0958 \u2126 \ufb01",
]


def byte_level(corpus):
    trainer = trainers.BpeTrainer(vocab_size=800, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
                                  special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<tool>"])
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = GPT2
    trained.train_from_iterator(corpus, trainer)
    model = json.loads(trained.to_str())["model"]
    merges = [tuple(merge) for merge in model["merges"]]
    # A token that no merges lead to shows ignore_merges.
    vocabulary = model["vocab"] | {"\u0120CamelCaseWords": len(model["vocab"])}
    ids = {}
    for name, (pre_tokenizer, ignore_merges, composes) in KINDS.items():
        tokenizer = Tokenizer(models.BPE(vocabulary, merges, ignore_merges=ignore_merges))
        if composes:
            tokenizer.normalizer = normalizers.NFC()
        tokenizer.pre_tokenizer = pre_tokenizer
        tokenizer.add_special_tokens(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
        tokenizer.add_tokens([AddedToken("<tool>", normalized=False)])
        ids[name] = [tokenizer.encode(text).ids for text in TEXTS + [" CamelCaseWords"]]
    tokens = sorted(vocabulary, key=vocabulary.get)
    types = [3, 3, 3, 4] + [1] * (len(tokens) - 4)
    return dict(tokens=tokens, types=types, merges=[" ".join(merge) for merge in merges],
                texts=TEXTS + [" CamelCaseWords"], ids=ids, composed=[n for n, kind in KINDS.items() if kind[2]])


def scored(corpus):
    written = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(corpus), model_writer=written, vocab_size=600, model_type="bpe", byte_fallback=True,
        normalization_rule_name="identity", remove_extra_whitespaces=False, minloglevel=2)
    processor = sentencepiece.SentencePieceProcessor(model_proto=written.getvalue())
    count = processor.get_piece_size()
    types = [2 if processor.is_unknown(i) else 3 if processor.is_control(i) else 6 if processor.is_byte(i) else 1
             for i in range(count)]
    texts = [text for text in TEXTS if "<|" not in text]
    return dict(tokens=[processor.id_to_piece(i) for i in range(count)], types=types,
                scores=[processor.get_score(i) for i in range(count)], texts=texts,
                ids=[processor.encode(text) for text in texts])


def main():
    corpus = [line for name in ("README.md", "docs/architecture.md", "docs/kv-cache.md") for line in (ROOT / name).read_text().splitlines() if line]
    corpus += ["1234567 2024 12345 and WE'LL, it'S, I'M camelCase CamelCase HTTPServer a.b/c/ ?!/\r\nok\r\n /x"] * 60
    golden = dict(byte_level=byte_level(corpus), scored=scored(corpus))
    path = ROOT / "tests/golden/gguf_tokenizers.json"
    path.write_text(json.dumps(golden, ensure_ascii=True, separators=(",", ":")) + "\n")


main()
