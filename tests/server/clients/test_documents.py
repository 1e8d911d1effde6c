"""Each example of docs/api-http.md is sent, and answered with 200. It fits the schema in /openapi.json."""

import json
import re
import subprocess

import httpx
import jsonschema
import pytest

from tessera_server import ROOT

EXAMPLES = re.findall(r"```sh\n(curl .*?)```", (ROOT / "docs/api-http.md").read_text(), re.DOTALL)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.split()[1].split("8080")[1])
def test_an_example_works(server, example):
    command = example.replace("curl ", "curl -sS --fail-with-body ", 1).replace("http://localhost:8080", server.http)
    run = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=60)
    assert run.returncode == 0, run.stdout + run.stderr
    assert '"error":{"message"' not in run.stdout


@pytest.mark.parametrize("example", [e for e in EXAMPLES if "-d '" in e],
                         ids=lambda example: example.split()[1].split("8080")[1])
def test_an_example_fits_the_schema(server, example):
    path = example.split()[1].split("8080")[1]
    body = json.loads(example.split("-d '")[1].rstrip().removesuffix("'"))
    paths = httpx.get(server.http + "/openapi.json").json()["paths"]
    schema = paths[path]["post"]["requestBody"]["content"]["application/json"]["schema"]
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(body, schema)


def test_there_are_examples():
    assert len(EXAMPLES) >= 9
