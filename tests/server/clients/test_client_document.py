"""Each Python example of docs/howto/clients.md runs against the server."""

import pytest

from client_document import SECTIONS, check_example
from tessera_server import ROOT

OURS = ["OpenAI's", "Anthropic's"]
EXAMPLES = [example for section in OURS for example in SECTIONS[section]]


@pytest.mark.parametrize("example", EXAMPLES, ids=range(len(EXAMPLES)))
def test_an_example_prints_an_answer(server, example):
    check_example(server, example)


def test_there_are_examples_and_each_is_run_by_a_test():
    assert len(EXAMPLES) >= 4
    frameworks = ROOT / "tests/server/clients/frameworks"
    tests = "".join(path.read_text() for path in frameworks.glob("test_*.py"))
    for section, examples in SECTIONS.items():
        assert not examples or section in OURS or f'SECTIONS["{section}"]' in tests, section
