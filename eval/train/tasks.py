"""The other tasks: copying, counting, chat about stories, text. Each takes a token budget."""

import re

from material import KINDS, NOUN, Material
from samples import ANSWER, GIVEN, TEXT, Sample, begin, unit
from tokenizer import ASSISTANT, END, EOS, SYSTEM, USER

SYSTEM_LINES = ("You are a helpful assistant.", "Answer the question.", "You remember everything you read.")
SHOTS = (("Input", "Output"), ("Say", "Echo"), ("Text", "Copy"))
ALPHABETS = (8, 32, 256, 2048)
FIRST_PIECE = 263  # after the special tokens and the bytes
UNSURE = 3  # tokens until a repetition is recognisable


class Tasks:
    def __init__(self, material: Material):
        self.material, self.rng, self.tokenizer = material, material.rng, material.tokenizer

    def repeat(self, budget: int) -> Sample:
        """Returns random tokens, then the same again: pure exercise of an induction head."""
        length = self.rng.randint(4, max(8, budget // 2))
        alphabet = self.rng.sample(range(FIRST_PIECE, len(self.tokenizer.plain)), self.rng.choice(ALPHABETS))
        ids = self.rng.choices(alphabet, k=length) * (budget // length + 1)
        weights = [GIVEN] * (length + UNSURE) + [ANSWER] * len(ids)
        return Sample(ids[:budget], weights[:budget])

    def copy(self, budget: int) -> Sample:
        """Few-shot copying of lists; the first shot only demonstrates the task."""
        sample, rng = begin(), self.rng
        left, right = rng.choice(SHOTS)
        kind, separator = rng.choice(KINDS[:4]), rng.choice((" ", ", "))
        while len(sample) < budget:
            text = separator.join(self.material.draw(kind) for _ in range(rng.randint(1, 8)))
            clear = len(sample) > 1
            answer = (f" {text}\n", ANSWER if clear else GIVEN)
            sample.add(unit(self.tokenizer, (f"\n{left}: {text}\n{right}:", GIVEN), answer, answer=clear))
        return sample

    def count(self, budget: int) -> Sample:
        first = self.rng.choice((1, self.rng.randrange(100), self.rng.randrange(1000)))
        last = first + self.rng.randint(2, max(3, min(29, budget // 6)))
        numbers = ", ".join(map(str, range(first, last + 1))) + "."
        if self.rng.random() < 0.5:
            return self.chat(f"Count from {first} to {last}.", numbers)
        opening = (f" Count from {first} to {last}:", GIVEN)
        return begin().add(unit(self.tokenizer, opening, (f" {numbers}", ANSWER), answer=True))

    def chat(self, question: str, answer: str) -> Sample:
        system = f"{SYSTEM}\n{self.rng.choice(SYSTEM_LINES)}{END}\n" if self.rng.random() < 0.3 else ""
        opening = (f"{system}{USER}\n{question}{END}\n{ASSISTANT}\n", GIVEN)
        return begin().add(unit(self.tokenizer, opening, (answer + END, ANSWER), ("\n", GIVEN), answer=True))

    def story(self, budget: int) -> Sample:
        """Returns a whole story, for any budget; half answer a chat that names a word of it."""
        story = self.rng.choice(self.material.corpus.stories)
        if self.rng.random() < 0.5:
            topics = [noun for noun in re.findall(NOUN, story) if noun in self.material.words.topics]
            return self.chat(f"Tell me a story about {self.rng.choice(topics or ['friends'])}.", story)
        ids = self.tokenizer.encode(story) + [EOS]
        return begin().add(Sample(ids, [TEXT] * len(ids)))

    def text(self, budget: int) -> Sample:
        """Returns a range of one novel."""
        novel = self.rng.choice(self.material.corpus.novels)
        start = novel.find(" ", self.rng.randrange(len(novel) - 8 * budget)) + 1
        ids = self.tokenizer.encode(novel[start : start + 6 * budget])[: budget - 1]
        return begin().add(Sample(ids, [TEXT] * len(ids)))
