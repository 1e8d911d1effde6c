"""A sample: token ids, a loss weight for each, and the ranges of its answers.

Samples are built from *units*: lines or sentences that begin with a newline or a space. Pieces
never cross the border of a unit. Tokenizing unit by unit therefore gives the ids of the whole text,
and a sample can be filled to a token budget exactly. Unpredictable tokens (random keys and values
when they first occur) have weight 0.
"""

from dataclasses import dataclass, field

from tokenizer import BOS, Tokenizer

GIVEN, TEXT, ANSWER = 0.0, 1.0, 1.0
FOUND = 3.0  # the first token of an answer: it must be retrieved, the others only follow


@dataclass
class Sample:
    ids: list[int] = field(default_factory=list)
    weights: list[float] = field(default_factory=list)
    answers: list[tuple[int, int]] = field(default_factory=list)  # [begin, end) of each answer

    def add(self, other: "Sample") -> "Sample":
        self.answers += [(begin + len(self), end + len(self)) for begin, end in other.answers]
        self.ids += other.ids
        self.weights += other.weights
        return self

    def tail(self, start: int) -> "Sample":
        answers = [(begin - start, end - start) for begin, end in self.answers]
        return Sample(self.ids[start:], self.weights[start:], answers)

    def __len__(self):
        return len(self.ids)


def begin() -> Sample:
    return Sample([BOS], [GIVEN])


def unit(tokenizer: Tokenizer, *parts: tuple[str, float], answer: bool = False) -> Sample:
    """Tokenizes the parts as one text; a token has the weight of the part in which it ends.

    With `answer`, everything from the first token of weight ANSWER on is an answer to score.
    """
    ends, total = [], 0
    for text, weight in parts:
        total += len(text.encode())
        ends.append((total, weight))
    sample, part = Sample(), 0
    for token, end in tokenizer.pieces("".join(text for text, _ in parts), prefix=False):
        while end > ends[part][0]:
            part += 1
        sample.ids.append(token)
        sample.weights.append(ends[part][1])
    if answer:
        first = sample.weights.index(ANSWER)
        sample.weights[first] = FOUND
        sample.answers = [(first, len(sample))]
    return sample
