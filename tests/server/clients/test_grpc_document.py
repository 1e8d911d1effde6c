"""The Python examples of docs/api-grpc.md, in their order, and the example of the Python package."""

import contextlib
import io
import re
import runpy

from tessera_server import ROOT

EXAMPLES = re.findall(r"```python\n(.*?)```", (ROOT / "docs/api-grpc.md").read_text(), re.DOTALL)


def test_every_example_works(server, wire):
    names = {}
    for example in EXAMPLES:
        exec(compile(example.replace("localhost:50051", server.grpc), "docs/api-grpc.md", "exec"), names)
    assert len(EXAMPLES) >= 8


def test_the_examples_use_every_call(wire):
    for method in wire[0].DESCRIPTOR.services_by_name["Inference"].methods:
        assert any(f"stub.{method.name}(" in example for example in EXAMPLES), method.name


def test_the_package_s_example(server, wire):
    example = runpy.run_path(str(ROOT / "clients/python/example.py"))
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        example["main"](server.grpc)
    assert "get_weather({'city': " in printed.getvalue() and "tokens]" in printed.getvalue()
