"""The documents as tests see them: links, anchors, prose, and fenced blocks of commands."""

import re
import shlex
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FENCE = re.compile(r"^ *```(.*)$")
WORD = re.compile(r"\w*[A-Za-z0-9]\S*")


def tracked(*suffixes):
    listing = subprocess.run(["git", "ls-files", "--cached", "--others", "--exclude-standard"],
                             cwd=ROOT, check=True, capture_output=True, text=True).stdout.split("\n")
    return sorted(path for path in set(listing) if path.endswith(suffixes) and (ROOT / path).exists())


class Document:
    """One Markdown file, cut into lines of text and fenced blocks."""

    def __init__(self, path):
        self.path = path
        self.text = (ROOT / path).read_text()
        self.lines = []   # outside of fenced blocks
        self.blocks = []  # (info, line number, text)
        info = None
        for number, line in enumerate(self.text.split("\n"), 1):
            fence = FENCE.match(line)
            if fence and info is None:
                info, start, block = fence[1].strip(), number, []
            elif fence:
                self.blocks.append((info, start, "\n".join(block)))
                info = None
            elif info is not None:
                block.append(line)
            else:
                self.lines.append(line)

    def anchors(self):
        """Returns: the anchors that a forge makes of the headings."""
        found = set()
        for line in self.lines:
            if heading := re.match(r"#+ (.*)", line):
                plain = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading[1]).replace("`", "")
                anchor = re.sub(r"[^\w\- ]", "", plain.strip().lower()).replace(" ", "-")
                again = 1
                while anchor in found:
                    anchor = f"{re.sub(r'-[0-9]+$', '', anchor)}-{again}"
                    again += 1
                found.add(anchor)
        return found

    def links(self):
        """Returns: the targets of links and pictures, those of other hosts left out."""
        text = re.sub(r"`[^`\n]*`", "", "\n".join(self.lines))
        return [target for target in re.findall(r"\]\(([^)\s]+)\)", text)
                if not re.match(r"[a-z]+:", target)]

    def sentences(self):
        """Returns: the number of words of each sentence, without headings, tables and code."""
        paragraphs, current = [], []
        for line in self.lines + [""]:
            if not line.strip() or re.match(r"\s*(\||#|!\[|<)", line):
                paragraphs.append(" ".join(current))
                current = []
            elif re.match(r"\s*([-*]|\d+\.) ", line):
                paragraphs.append(" ".join(current))
                current = [re.sub(r"^\s*([-*]|\d+\.) ", "", line)]
            else:
                current.append(line.strip())
        counts = []
        for paragraph in paragraphs:
            plain = re.sub(r"\]\([^)]*\)", "]", re.sub(r"`[^`]*`", "code", paragraph))
            for sentence in re.split(r"(?<=[.!?])[)*\]\"]* +(?=[*\[(\"]*[A-Za-z0-9])", plain):
                words = len(WORD.findall(sentence))
                if words:
                    counts.append(words)
        return counts

    def words(self):
        return len(WORD.findall(self.text))

    def commands(self):
        """Returns: (line number, [[word, ...], ...]) of each command line of the blocks of `sh`."""
        found = []
        for info, start, block in self.blocks:
            if info.split(" ")[:1] != ["sh"]:
                continue
            # A quoted argument may go over lines.
            joined = re.sub(r"'[^']*'", lambda quoted: quoted[0].replace("\n", " "),
                            block.replace("\\\n", " "))
            for line in joined.split("\n"):
                found += [(start, simple) for simple in simple_commands(line)]
        return found


def simple_commands(line):
    """Returns: the commands of a line as lists of words: without pipes, redirections, variables."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars="();<>|&")
    lexer.whitespace_split = True
    commands, redirected = [[]], False
    for token in lexer:
        if redirected:
            redirected = False
        elif set(token) <= set("();<>|&"):
            redirected = "<" in token or ">" in token
            commands += [] if redirected else [[]]
        elif commands[-1] or not re.fullmatch(r"\w+=.*|sudo", token):
            commands[-1].append(token)
    return [command for command in commands if command and command[0] != "cd"]


def documents():
    return [Document(path) for path in tracked(".md")]
