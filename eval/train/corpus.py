"""Corpora: 93 novels and a sample of TinyStories, cleaned and split by whole documents."""

import lzma
import re
import tarfile
from dataclasses import dataclass
from pathlib import Path

# Whole books are held out, some by authors with other books in the training part and some without.
HELD_OUT_NOVELS = ("Burnett_Garden_1911", "Doyle_Hound_1902", "Woolf_Lighthouse_1927")
HELD_OUT_STORIES = 150  # the last ones of the sample
STORY_END = "<|endoftext|>"


@dataclass
class Corpus:
    novels: list[str]
    stories: list[str]


def tidy(raw: str) -> str:
    """Returns one line per paragraph: hard line breaks and runs of spaces are typesetting."""
    text = raw.lstrip("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
    paragraphs = re.split(r"\n\s*\n|\n(?=[ \t]+\S)", text)
    lines = (re.sub(r"\s+", " ", p).strip() for p in paragraphs)
    return "\n".join(line for line in lines if line)


def strip_front_matter(text: str) -> str:
    """Drops title page and table of contents: everything before the first long paragraph."""
    lines = text.split("\n")
    start = next((i for i, line in enumerate(lines) if len(line) > 200), 0)
    return "\n".join(lines[start:])


def read_novels(data: Path) -> dict[str, str]:
    novels = {}
    with tarfile.open(data / "corpora" / "novels.tar.xz") as archive:
        for member in sorted(archive.getmembers(), key=lambda m: m.name):
            if member.isfile():
                raw = archive.extractfile(member).read().decode("utf-8", "replace")
                novels[Path(member.name).stem] = strip_front_matter(tidy(raw))
    return novels


def read_stories(data: Path) -> list[str]:
    with lzma.open(data / "corpora" / "tinystories_sample.txt.xz") as stream:
        text = stream.read().decode("utf-8", "ignore")
    stories = [tidy(story) for story in text.split(STORY_END)]
    return [story for story in stories[:-1] if story]  # the last one is cut off mid-sentence


def read_corpus(data: Path) -> tuple[Corpus, Corpus]:
    """Returns (training, held-out)."""
    novels, stories = read_novels(data), read_stories(data)
    held_out = Corpus([novels.pop(name) for name in HELD_OUT_NOVELS], stories[-HELD_OUT_STORIES:])
    return Corpus(list(novels.values()), stories[:-HELD_OUT_STORIES]), held_out
