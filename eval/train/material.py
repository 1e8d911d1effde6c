"""Material of tasks: words, names, numbers, hex, prose. Training and held-out share none."""

import random
import re
import zlib
from collections import Counter
from dataclasses import dataclass

from corpus import Corpus
from samples import TEXT, Sample
from tokenizer import Tokenizer

KINDS = ("word", "name", "number", "hex", "uuid")
# the novels are of their time; their prose is unchanged, but tasks never pick such words
SLURS = "nigg"
NOUN = r"\b(?:a|an|the) ([a-z]{3,9})\b"


def is_held_out(material: str) -> bool:
    """True for 1/8 of words, names, numbers and hex strings; training has them in no pair."""
    return zlib.crc32(material.encode()) % 8 == 0


@dataclass(frozen=True)
class Vocabulary:
    """Always from the training part, so that it is the same for both parts."""

    common: list[str]
    names: list[str]  # words that are nearly always capitalised
    topics: frozenset[str]  # topics of stories: nouns after an article that are not in every story

    @staticmethod
    def of(corpus: Corpus) -> "Vocabulary":
        text = "\n".join(corpus.stories) + "\n".join(novel[:100_000] for novel in corpus.novels)
        counts = Counter(w for w in re.findall(r"\b[A-Za-z][a-z]{2,8}\b", text) if SLURS not in w.lower())
        common = [w for w, n in counts.items() if w.islower() and n >= 20]
        names = [w for w, n in counts.items() if w[0].isupper() and n >= 8 and n > 4 * counts[w.lower()]]
        nouns = Counter(noun for story in corpus.stories for noun in set(re.findall(NOUN, story)))
        topics = frozenset(w for w, n in nouns.items() if 3 <= n < len(corpus.stories) // 10)
        return Vocabulary(sorted(common), sorted(names), topics)


class Material:
    def __init__(self, tokenizer: Tokenizer, corpus: Corpus, words: Vocabulary, held_out: bool, seed: int):
        self.tokenizer, self.corpus, self.words, self.held_out = tokenizer, corpus, words, held_out
        self.rng = random.Random(seed)

    def draw(self, kind: str) -> str:
        while True:
            drawn = self._draw_any(kind)
            if is_held_out(drawn) == self.held_out:
                return drawn

    def _draw_any(self, kind: str) -> str:
        rng = self.rng
        if kind == "word":
            return rng.choice(self.words.common)
        if kind == "name":
            return rng.choice(self.words.names)
        if kind == "number":
            return "".join(rng.choices("0123456789", k=rng.randint(4, 6)))
        groups = (rng.choice((4, 8)),) if kind == "hex" else (8, 4)
        return "-".join("".join(rng.choices("0123456789abcdef", k=size)) for size in groups)

    def prose(self, size: int) -> str:
        """Returns about `size` characters of a novel or a story, from a random word on."""
        text = self.rng.choice(self.corpus.novels if self.rng.random() < 0.6 else self.corpus.stories)
        start = self.rng.randrange(max(1, len(text) - size))
        start = text.find(" ", start) + 1
        return text[start : start + size]

    def filler(self, limit: int) -> Sample:
        """Returns a sentence or two of prose as one unit, at most `limit` tokens."""
        sentences = re.split(r"(?<=[.!?]) ", self.prose(self.rng.choice((300, 600))))
        ids = self.tokenizer.encode(" " + " ".join(sentences[1:3] or sentences), prefix=False)[:limit]
        return Sample(ids, [TEXT] * len(ids))
