#!/usr/bin/env python3
"""Documents as tests: links, lengths, and the names in commands.

    documents_test.py [BIN]    BIN: the folder of the built programs, whose flags are compared
"""

import json
import os
import re
import statistics
import subprocess
import sys
import unittest
from pathlib import Path

from markdown import ROOT, Document, documents, tracked

sys.path.insert(0, str(ROOT / "tests"))
import tidy  # noqa: E402

BIN = None
unittest.TestCase.maxDiff = None
DOCUMENTS = documents()
# Programs of others that commands may start.
OTHERS = set("""aider apt apt-get buildah cat chmod claude cmake codex ctest curl debootstrap docker echo export
    gdb git grep groupadd head helm install journalctl jq kill kubectl llama-server lm_eval ls mkdir mpirun nvidia-smi openssl pidof pip
    pre-commit printf promtool python3 sh sha256sum systemctl tar taskset torchrun wait python cp rm pytest
    sed tail""".split())


class Links(unittest.TestCase):
    def test_every_link_leads_to_a_file_and_a_heading(self):
        anchors = {document.path: document.anchors() for document in DOCUMENTS}
        broken = []
        for document in DOCUMENTS:
            for link in document.links():
                path, _, anchor = link.partition("#")
                target = os.path.normpath(os.path.join(os.path.dirname(document.path), path)) if path else document.path
                if not (ROOT / target).exists():
                    broken.append(f"{document.path}: {link}: there is no such file")
                elif anchor and anchor not in anchors.get(target, {anchor}):
                    broken.append(f"{document.path}: {link}: there is no such heading")
        self.assertEqual(broken, [])

    def test_documents_that_sources_name_exist(self):
        broken = []
        known = {document.path: document.anchors() for document in DOCUMENTS}
        for path in tracked(".h", ".cpp", ".cu", ".py", ".sh", ".txt", ".yaml", ".proto", ".js", ".html", ".tpl"):
            for name, anchor in re.findall(r"(?<![\w./-])((?:[\w.-]+/)+[\w.-]+\.md)(?:#([\w-]+))?",
                                           (ROOT / path).read_text(errors="replace")):
                if name.split("/")[0] in ("docs", "eval", "bench", "base", "kernels", "files", "text", "models", "tests", "load"):
                    if name not in known or (anchor and anchor not in known[name]):
                        broken.append(f"{path}: {name}{'#' + anchor if anchor else ''}")
        self.assertEqual(broken, [])

    def test_the_index_leads_to_every_document(self):
        index = Document("docs/README.md")
        measurements = Document("docs/measurements/README.md")
        reached = {os.path.normpath(os.path.join(os.path.dirname(page.path), link.split("#")[0]))
                   for page in (index, measurements) for link in page.links()}
        missing = [document.path for document in DOCUMENTS if document.path.startswith("docs/")
                   and document.path not in reached and document.path != "docs/README.md"]
        self.assertEqual(missing, [])


class Claims(unittest.TestCase):
    # Pages that say how a verdict is made may use its name.
    DEFINITIONS = ("docs/glossary.md", "docs/howto/evaluate.md")

    def test_a_page_that_says_lossless_names_the_models(self):
        unnamed = []
        for document in DOCUMENTS:
            if document.path.startswith("docs/measurements/") or document.path in self.DEFINITIONS:
                continue
            for paragraph in re.split(r"\n\s*\n", document.text):
                if re.search("lossless", paragraph, re.I) and not re.search("SmolLM2|Qwen|shipped model", paragraph):
                    unnamed.append(f"{document.path}: {paragraph.strip()[:80]}")
        self.assertEqual(unnamed, [])


    def test_the_readme_counts_the_presets_that_drop_or_demote(self):
        table = Document("docs/kv-presets.md").text.partition("## The choices")[2].partition("\n## ")[0]
        names = re.findall(r"^\| `([^`]+)` \|", table, re.MULTILINE)
        # A format, or one that is read in part, keeps every token.
        dropping = [name for name in names if not re.match(r"f\d+$|k\dv\d", name)]
        count = int(re.search(r"drops or demotes single tokens \| yes, (\d+) presets",
                              Document("README.md").text)[1])
        self.assertEqual(count, len(dropping), dropping)


class Lengths(unittest.TestCase):
    def test_the_readme_has_at_most_900_words(self):
        self.assertLessEqual(len(Document("README.md").text.split()), 900)

    def test_the_architecture_has_at_most_1500_words(self):
        self.assertLessEqual(len(Document("docs/architecture.md").text.split()), 1500)

    def test_readmes_of_folders_have_at_most_400_words(self):
        long = [(document.path, document.words()) for document in DOCUMENTS
                if document.path.endswith("/README.md") and not document.path.startswith("docs/")
                and document.words() > 400]
        self.assertEqual(long, [])

    def test_sentences_are_short(self):
        counts = sorted(count for document in DOCUMENTS for count in document.sentences())
        median, p90 = statistics.median(counts), counts[len(counts) * 9 // 10]
        print(f"{len(counts)} sentences: median {median}, p90 {p90} words", file=sys.stderr)
        self.assertLessEqual(median, 16)
        self.assertLessEqual(p90, 27)


class Folders(unittest.TestCase):
    def test_the_drawn_folders_are_those_of_the_sources(self):
        check = subprocess.run([sys.executable, ROOT / "docs/folders.py", "--check"], capture_output=True, text=True)
        self.assertEqual(check.stderr, "")

    def test_a_circle_is_named_also_through_a_third_folder(self):
        arrows = {Path("models"): {Path("models/lora")}, Path("models/lora"): {Path("files")},
                  Path("files"): {Path("models"), Path("base")}, Path("base"): set()}
        named = [violation.partition(":")[0] for violation in tidy.circle_violations(arrows)]
        self.assertEqual(named, ["files", "models", "models/lora"])
        arrows[Path("files")] = {Path("base")}
        self.assertEqual(list(tidy.circle_violations(arrows)), [])


class Methods(unittest.TestCase):
    def test_the_page_has_the_table_of_the_laboratory(self):
        if BIN is None or not (BIN / "tessera-eval").exists():
            self.skipTest("tessera-eval is not built")
        check = subprocess.run([sys.executable, ROOT / "docs/kv-methods.py", BIN / "tessera-eval", "--check"],
                               capture_output=True, text=True)
        self.assertEqual(check.stderr, "")


class Commands(unittest.TestCase):
    """Names and flags in the blocks of `sh`. A block of `sh run` is run besides (served_test.py)."""

    @classmethod
    def setUpClass(cls):
        cmake = "\n".join((ROOT / path).read_text() for path in tracked("CMakeLists.txt", ".cmake"))
        cls.cmake = cmake
        cls.targets = set(re.findall(r"(?:add_executable|add_library|add_custom_target|tessera_test\w*)\(([\w-]+)", cmake))
        presets = json.loads((ROOT / "CMakePresets.json").read_text())
        cls.presets = {preset["name"] for preset in presets["configurePresets"]}
        cls.helps = {}

    def help_of(self, program):
        if program not in self.helps:
            text = subprocess.run([BIN / program, "--help"], capture_output=True, text=True, check=True).stdout
            for name in re.findall(r"^  (\w+) ", text.partition("Subcommands:")[2], re.MULTILINE):
                text += subprocess.run([BIN / program, name, "--help"], capture_output=True, text=True,
                                       check=True).stdout
            self.helps[program] = set(re.findall(r"(?<![\w-])--?[a-z][\w-]*", text))
        return self.helps[program]

    def wrong(self, words):
        """Yields the faults of one command."""
        program, arguments = words[0], words[1:]
        if program == "do":
            yield from self.wrong(arguments) if arguments else ()
            return
        if program in ("for", "done", ".") or "$" in program:
            return
        if program in ("sh", "python3", "python", "taskset", "mpirun") and arguments:
            skipped = {"taskset": 2, "mpirun": 2}.get(program, 0)
            inner = arguments[skipped:]
            if inner and not inner[0].startswith("-") and ("/" in inner[0] or "tessera" in inner[0]):
                yield from self.wrong(inner)
            return
        name = os.path.basename(program)
        flags = [argument.partition("=")[0] for argument in arguments if argument.startswith("--") and len(argument) > 2]
        if name.startswith("tessera-") or name == "load-stub":
            if name not in self.targets:
                yield f"{name} is no program of the build"
            elif BIN is not None and name.startswith("tessera-"):
                if not (BIN / name).exists():
                    yield f"{name} is not built"
                else:
                    yield from (f"{name} has no {flag}" for flag in flags if flag not in self.help_of(name))
        elif program == "cmake":
            for flag, value in zip(arguments, arguments[1:]):
                if flag == "--preset" and value not in self.presets:
                    yield f"there is no preset {value}"
            if "--target" in arguments:
                yield from (f"there is no target {target}" for target in arguments[arguments.index("--target") + 1:]
                            if not target.startswith("-") and not target.isdigit() and target not in self.targets)
            yield from (f"no CMakeLists.txt knows {option}" for option in
                        re.findall(r"-D(TESSERA_\w+)", " ".join(arguments)) if option not in self.cmake)
        elif program.startswith(("build/", "venv/", "bin/", "/", "./", "$")):
            if program.startswith("build/") and "/bin/" in program and name not in self.targets and \
                    f"({name} " not in self.cmake:
                yield f"{name} is no program of the build"
        elif (ROOT / program).is_file() or "/" in program:
            if not (ROOT / program).is_file():
                yield f"there is no {program}"
            else:
                source = (ROOT / program).read_text()
                yield from (f"{program} has no {flag}" for flag in flags if flag not in source)
        elif program not in OTHERS:
            yield f"{program} is an unknown program"

    def test_programs_flags_presets_and_targets_exist(self):
        faults = []
        for document in DOCUMENTS:
            for line, words in document.commands():
                if document.path.startswith("models/") and "/" not in words[0] and words[0].endswith(".py"):
                    continue
                faults += [f"{document.path}:{line}: {fault}: {' '.join(words)[:80]}" for fault in self.wrong(words)]
        self.assertEqual(faults, [])


if __name__ == "__main__":
    if len(sys.argv) > 1 and not sys.argv[1].startswith("-"):
        BIN = (ROOT / sys.argv.pop(1)).resolve()
    else:
        print("no folder of programs is given: flags are not compared with --help", file=sys.stderr)
    unittest.main()
