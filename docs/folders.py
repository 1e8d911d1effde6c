#!/usr/bin/env python3
"""Draws docs/folders.md: which folder includes which, from the #include lines.

    folders.py           writes it
    folders.py --check   exits with 1 if it is not current, or if an arrow leads up or in a circle
"""

import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))
import tidy  # noqa: E402

PAGE = ROOT / "docs/folders.md"
INTRODUCTION = """# Folders

Which folder includes which. An arrow leads from a folder to one that it includes; an arrow that follows from others is
left out. Every arrow leads down, and none closes a circle ([layers](architecture.md#layers)). This page is drawn by
`docs/folders.py` from the sources, and `tests/tidy.py` refuses other arrows.
"""


def reduced(arrows):
    """Returns: the arrows (from, to) without those that a longer way replaces."""
    return sorted((folder, other) for folder, others in arrows.items() for other in others
                  if not any(other in tidy.reached_from(between, arrows) for between in others - {other}))


def chart(arrows):
    names = sorted({name for folder, others in arrows.items() for name in {folder, *others}}, key=str)
    ids = {name: f"n{number}" for number, name in enumerate(names)}
    lines = ["```mermaid", "flowchart TB"]
    lines += [f'  {ids[name]}["{name}"]' for name in names]
    lines += [f"  {ids[folder]} --> {ids[other]}" for folder, other in reduced(arrows)]
    return "\n".join(lines + ["```"])


def tops(arrows):
    """Returns: the arrows between layers and tools."""
    merged = {}
    for folder, others in arrows.items():
        merged.setdefault(folder.parts[0], set()).update(
            other.parts[0] for other in others if other.parts[0] != folder.parts[0])
    return merged


def within(arrows, top):
    """Returns: the arrows between the folders of a layer or tool."""
    return {folder: {other for other in others if other.parts[0] == top}
            for folder, others in arrows.items() if folder.parts[0] == top}


def generate():
    arrows = tidy.folder_arrows(tidy.all_includes())
    parts = [INTRODUCTION, "## Layers and tools\n", chart(tops(arrows)) + "\n"]
    for top in reversed(tidy.LAYERS + sorted(tidy.TOOLS)):
        own = within(arrows, top)
        if len(own) > 1:
            parts += [f"## {top}\n", chart(own) + "\n"]
    return "\n".join(parts)


def main():
    if "--check" not in sys.argv:
        PAGE.write_text(generate())
    elif not PAGE.exists() or PAGE.read_text() != generate():
        sys.exit("docs/folders.md is not current; run docs/folders.py")


if __name__ == "__main__":
    main()
