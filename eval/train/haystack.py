"""Recall: key-value pairs hidden among filler and other pairs, and questions about them."""

from collections.abc import Iterator
from dataclasses import dataclass

from material import KINDS, Material
from samples import ANSWER, GIVEN, Sample, begin, unit
from tokenizer import ASSISTANT, END, SYSTEM, USER

STYLES = ("plain", "question", "chat")
ECHO = 0.5  # weight of those words of an answer that repeat the question
SMALLEST_HAY = 8  # tokens; less room than this stays empty


@dataclass(frozen=True)
class Form:
    """Wording of a pair and of its question. The answer repeats the wording of the pair."""

    told: str
    question: str


FORMS = {
    "key": Form(" The key of {k} is {v}.", "What is the key of {k}?"),
    "code": Form(" The code of {k} is {v}.", "What is the code of {k}?"),
    "pass key of": Form(" The pass key of {k} is {v}.", "What is the pass key of {k}?"),
    "list": Form("\n{k}: {v}", "What is the value of {k}?"),
    "assignment": Form("\n{k} = {v}", "What is {k}?"),
    "arrow": Form("\n{k} -> {v}", "Where does {k} lead?"),
    "json": Form('\n"{k}": "{v}",', 'What is the value of "{k}"?'),
}
# only one fits in a context
PASS_KEY = Form(" The pass key is {v}. Remember it.", "What is the pass key?")


@dataclass(frozen=True)
class Recall:
    """One kind of retrieval: its form and style, and the material of keys, values and hay."""

    form: Form
    style: str
    key_kind: str
    value_kind: str
    filler: float  # share of the hay that is prose; the rest is pairs without a question
    depth: float | None = None  # position of the needles in the context; None: anywhere


class Haystack:
    def __init__(self, material: Material):
        self.material, self.rng, self.tokenizer = material, material.rng, material.tokenizer

    def random(self, budget: int, asked: float, filler: float) -> Sample:
        """Returns a recall sample of any form; `asked` and `filler` are upper bounds of shares."""
        rng = self.rng
        form = PASS_KEY if filler and rng.random() < 0.2 else rng.choice(list(FORMS.values()))
        filler = 1.0 if form is PASS_KEY else filler * rng.random()
        recall = Recall(form, rng.choice(STYLES), rng.choice(KINDS), rng.choice(KINDS), filler)
        return self.sample(budget, recall, asked * rng.uniform(0.6, 1.0))

    def sample(self, budget: int, recall: Recall, asked: float = 0.0) -> Sample:
        """Returns the context, then queries for the share `asked` of the budget, at least one."""
        pairs, needles, queries = self.pairs(recall), [], []
        opening, closing, same_turn = self.frame(recall.style)
        room = budget - len(opening) - len(closing)
        share = room * asked
        while not queries or (share > 0 and recall.form is not PASS_KEY):
            pair = next(pairs)
            needles.append(self.told(recall.form, *pair))
            queries.append(self.asked(recall, *pair))
            share -= len(queries[-1])
            room -= len(queries[-1]) + len(needles[-1])
        context = self.bury(needles, recall, room, pairs)
        self.rng.shuffle(queries)
        if same_turn:
            queries[0] = queries[0].tail(1)  # the question continues the open turn of the context
        sample = Sample()
        for part in (opening, *context, closing, *queries):
            sample.add(part)
        return sample

    def bury(self, needles: list[Sample], recall: Recall, room: int, pairs: Iterator) -> list[Sample]:
        """Returns hay of `room` tokens, with the needles in it."""
        hay = []
        while room > SMALLEST_HAY:
            prose = self.rng.random() < recall.filler
            hay.append(self.material.filler(room) if prose else self.told(recall.form, *next(pairs)))
            room -= len(hay[-1])
        for needle in needles:
            depth = self.rng.random() if recall.depth is None else recall.depth
            hay.insert(round(depth * len(hay)), needle)
        return hay

    def pairs(self, recall: Recall) -> Iterator[tuple[str, str]]:
        """Yields endless pairs; no key comes twice."""
        seen = set()
        while True:
            key = self.material.draw(recall.key_kind)
            if key not in seen:
                seen.add(key)
                yield key, self.material.draw(recall.value_kind)

    def told(self, form: Form, key: str, value: str) -> Sample:
        return unit(self.tokenizer, (form.told.format(k=key, v=value), GIVEN))

    def asked(self, recall: Recall, key: str, value: str) -> Sample:
        """Returns the query for a pair, and its answer."""
        before, after = recall.form.told.split("{v}")
        before, question = before.format(k=key), recall.form.question.format(k=key)
        answer = value + (after if len(after) < 3 else after[0])
        if recall.style == "plain":
            return unit(self.tokenizer, (before, GIVEN), (answer, ANSWER), answer=True)
        opening = f"\nQuestion: {question}\nAnswer: "
        if recall.style == "chat":
            opening, answer = f"{USER}\n{question}{END}\n{ASSISTANT}\n", answer + END
        query = unit(self.tokenizer, (opening, GIVEN), (before.lstrip(), ECHO), (answer, ANSWER), answer=True)
        return query.add(unit(self.tokenizer, ("\n", GIVEN))) if recall.style == "chat" else query

    def frame(self, style: str) -> tuple[Sample, Sample, bool]:
        """Returns (text before, text after the context, True if a question is in its turn)."""
        if style != "chat":
            return begin(), Sample(), False
        role = self.rng.choice((SYSTEM, USER))
        closing = unit(self.tokenizer, (f"{END}\n", GIVEN)) if role == SYSTEM else Sample()
        return begin().add(unit(self.tokenizer, (f"{role}\n", GIVEN))), closing, role == USER
