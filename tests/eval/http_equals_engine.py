#!/usr/bin/env python3
"""tessera-eval through a running server must find the same scores as with its own engine.

    http_equals_engine.py TESSERA_EVAL TESSERA_SERVER

Both use f16 pages on the shipped model, so scores differ only by the decimals on the wire.
"""

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MODEL = ROOT / "models" / "checkpoints" / "tessera-tiny"
CHOICES = [
    {"id": "sky", "prompt": "At night we look at the", "choices": [" stars.", " soup.", " sky"], "answer": 0},
    {"id": "dog", "prompt": "The little dog wanted to", "choices": [" play", " be a king of trains"], "answer": " play"},
    {"id": "space", "prompt": "Once upon a ", "choices": ["time", "table"], "answer": "time"},
    {"id": "long", "prompt": "The key of apple is 48213. " * 30 + "The key of apple is",
     "choices": [" 48213.", " 90177."], "answer": 0},
]
KV_RECORDS = [
    {"ordered_kv_records": [["3f9c", "a07be241"], ["88b1", "0d12"]], "key": "88b1", "value": "0d12"},
]
TOLERANCE = 2e-4  # nats, of a sum of log probabilities


def evaluate(program, folder, *flags):
    out = folder / "scores.json"
    subprocess.run([program, "--model", str(MODEL), "--json", str(out), *flags],
                   check=True, stdout=subprocess.DEVNULL)
    return json.loads(out.read_text())


def start(program):
    server = subprocess.Popen(
        [program, "--model", str(MODEL), "--http-port", "0", "--grpc-port", "0", "--drain-delay", "0", "--kv", "f16",
         "--access-log", "off"],
        stderr=subprocess.PIPE, text=True)
    url = None
    for line in server.stderr:
        if match := re.search(r"listening (http://\S+)", line):
            url = match.group(1)
        if " ready after " in line:
            return server, url
    sys.exit("the server did not start")


def only(values):
    (value,) = values.values()
    return value


def compare(engine, server):
    assert [task["name"] for task in engine["tasks"]] == [task["name"] for task in server["tasks"]]
    compared = 0
    for ours, theirs in zip(engine["tasks"], server["tasks"]):
        for own, other in zip(ours.get("choices", []), theirs.get("choices", [])):
            for a, b in zip(only(own["log_likelihoods"]), only(other["log_likelihoods"]), strict=True):
                assert abs(a - b) < TOLERANCE, f"{ours['name']} {own['id']}: {a} and {b}"
                compared += 1
        for own, other in zip(ours["metrics"], theirs["metrics"], strict=True):
            a, b = only(own["scores"]), only(other["scores"])
            if a is None:
                assert b is None, own
                continue
            assert abs(a["value"] - b["value"]) < 1e-3, f"{ours['name']} {own['name']}: {a} and {b}"
            compared += 1
    print(f"{compared} scores are equal")
    assert compared > 15


def main():
    evaluator, server_program = sys.argv[1:]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "choices.jsonl").write_text("".join(json.dumps(line) + "\n" for line in CHOICES))
        (folder / "records.jsonl").write_text("".join(json.dumps(line) + "\n" for line in KV_RECORDS))
        tasks = f"{folder}/choices.jsonl,{folder}/records.jsonl,text,copy,multikey"
        flags = ["--tasks", tasks, "--lengths", "128,384", "--samples", "2"]
        engine = evaluate(evaluator, folder, "--kv", "f16", "--weights", "bf16", *flags)
        server, url = start(server_program)
        try:
            compare(engine, evaluate(evaluator, folder, "--url", url, *flags))
            refused = subprocess.run([evaluator, "--model", str(MODEL), "--url", url, "--tasks", "generation"],
                                     capture_output=True, text=True)
            assert refused.returncode != 0 and "generation" in refused.stderr, refused
        finally:
            server.terminate()
            server.stderr.read()
            server.wait(30)


if __name__ == "__main__":
    main()
