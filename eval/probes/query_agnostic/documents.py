"""Contexts with many questions, from novels and planted facts."""

import random
import re

ADJECTIVES = "amber brass copper coral crimson ebony golden ivory jade marble olive pearl ruby silver velvet".split()
THINGS = "anchor basket bell candle chest clock compass crown drum fiddle kettle ladder lantern mirror violin".split()
NAMES = "Adela Bruno Clara Dexter Edith Felix Greta Hugo Irene Jasper Leona Milo Nora Oscar Petra Rufus".split()
CITIES = "Athens Berlin Boston Cairo Dublin Geneva Lisbon London Madrid Moscow Oslo Paris Prague Rome Tokyo Vienna".split()


def facts(draw, count):
    """Numbers of things, and cities of people: each a sentence, its question and its answer."""
    things = draw.sample([f"{a} {t}" for a in ADJECTIVES for t in THINGS], count)
    people = draw.sample(NAMES, count)
    out = []
    for i in range(count):
        if i % 2 == 0:
            asked = f" The number of the {things[i]} is"
            answer = f" {draw.randrange(1000, 10000)}"
        else:
            asked = f" {people[i]} has moved to the city of"
            answer = f" {draw.choice(CITIES)}"
        out.append(("number" if i % 2 == 0 else "city", asked, answer))
    return out


def sentences(novel, draw):
    text = re.sub(r"\s+", " ", novel)
    start = draw.randrange(len(text) // 10, len(text) * 8 // 10)
    return re.findall(r"[A-Z][^.!?]*[.!?]+[\"']?", text[start : start + 60000])


def make_document(novel, tokenizer, tokens, seed, count=10, quotes=2):
    """Returns: ids of a context of at most `tokens` tokens, and questions (kind, ids, answer ids).

    A quote gives the first half of a sentence of the novel and asks for the next five tokens.
    """
    draw = random.Random(seed)
    length = lambda text: len(tokenizer.encode(text).ids)
    planted = facts(draw, count)
    hay, total = [], sum(length(a + b + ".") for _, a, b in planted) + 4
    for sentence in sentences(novel, draw):
        if total + length(" " + sentence) > tokens:
            break
        hay.append(" " + sentence)
        total += length(" " + sentence)
    pieces = list(hay)
    for _, asked, answer in planted:
        pieces.insert(draw.randrange(len(pieces) + 1), asked + answer + ".")
    context = "".join(pieces).lstrip()
    questions = [
        (kind, tokenizer.encode("\n\n" + asked.lstrip()).ids, tokenizer.encode(answer).ids)
        for kind, asked, answer in planted
    ]
    long = [s for s in hay if length(s) >= 18]
    for quote in draw.sample(long, min(quotes, len(long))):
        ids = tokenizer.encode(quote).ids
        questions.append(("quote", tokenizer.encode("\n\n").ids + ids[:12], ids[12:17]))
    return tokenizer.encode(context).ids, questions
