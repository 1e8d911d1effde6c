"""The tokenizer: a sentencepiece BPE of 4096 pieces in the manner of Llama 2, and its chat format.

    python tokenizer.py --data DATA --out RUN/tokenizer.model
"""

import argparse
import io
import re
import string
from pathlib import Path

import sentencepiece as spm
from sentencepiece import sentencepiece_model_pb2 as spm_proto

from corpus import read_corpus

VOCAB = 4096
UNK, BOS, EOS = 0, 1, 2
SYSTEM, USER, ASSISTANT, END = "<|system|>", "<|user|>", "<|assistant|>", "<|end|>"
CONTROLS = (SYSTEM, USER, ASSISTANT, END)
CHAT_TEMPLATE = (
    "{{ bos_token }}"
    "{% for message in messages %}"
    "{{ '<|' + message['role'] + '|>\n' + message['content'] + '<|end|>\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}"
)


def train(data: Path, out: Path):
    """Stories count more than their size, so that short everyday words get pieces of their own."""
    corpus, _ = read_corpus(data)
    texts = corpus.stories * 3 + [novel[50_000:250_000] for novel in corpus.novels]
    lines = (line[i : i + 2000] for text in texts for line in text.split("\n") for i in range(0, len(line), 2000))
    model = io.BytesIO()
    spm.SentencePieceTrainer.train(
        sentence_iterator=lines,
        model_writer=model,
        model_type="bpe",
        vocab_size=VOCAB,
        byte_fallback=True,
        split_digits=True,
        character_coverage=0.9997,
        required_chars=string.punctuation + string.digits + string.ascii_letters,
        allow_whitespace_only_pieces=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        add_dummy_prefix=True,
        unk_id=UNK,
        bos_id=BOS,
        eos_id=EOS,
        pad_id=-1,
        control_symbols=list(CONTROLS),
        num_threads=2,
        minloglevel=1,
    )
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_bytes(model.getvalue())


class Tokenizer:
    """Encodes text with special tokens as transformers' LlamaTokenizer does with legacy=false.

    The dummy prefix is added before the text's first word only, never after a special token.
    """

    def __init__(self, path: Path):
        proto = spm_proto.ModelProto.FromString(Path(path).read_bytes())
        self.with_prefix = spm.SentencePieceProcessor(model_proto=proto.SerializeToString())
        proto.normalizer_spec.add_dummy_prefix = False
        self.plain = spm.SentencePieceProcessor(model_proto=proto.SerializeToString())
        self.special = {name: self.plain.piece_to_id(name) for name in ("<s>", "</s>", *CONTROLS)}
        self.pattern = re.compile("(" + "|".join(map(re.escape, self.special)) + ")")

    def pieces(self, text: str, prefix: bool = True) -> list[tuple[int, int]]:
        """Returns (id, end offset in UTF-8 bytes of `text`) of every token; no BOS is added.

        `prefix` false: the text continues another one, and so gets no dummy prefix.
        """
        found, start = [], 0
        for part in self.pattern.split(text):
            size = len(part.encode())
            if part in self.special:
                found.append((self.special[part], start + size))
            elif part:
                encoder = self.with_prefix if prefix and start == 0 else self.plain
                encoded = encoder.encode(part, return_type="proto")
                found.extend((piece.id, start + piece.end) for piece in encoded.pieces)
            start += size
        return found

    def encode(self, text: str, prefix: bool = True) -> list[int]:
        return [token for token, _ in self.pieces(text, prefix)]

    def decode(self, ids: list[int]) -> str:
        return self.with_prefix.decode(ids)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    train(args.data, args.out)


if __name__ == "__main__":
    main()
