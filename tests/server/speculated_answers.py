"""Answers with and without drafted tokens, byte for byte, on a real checkpoint.

Each prompt is answered greedily, sampled with a seed, under a schema, and as a chat with tools. Half of the prompts ask
for text that they hold, so that drafts are right; the others ask for prose, so that most are wrong. Eight requests run
at once, some with drafts and some without.

  python3 tests/server/speculated_answers.py SERVER MODEL.gguf [PROMPTS [SEED [DRAFT_MODEL.gguf]]]
"""

import concurrent.futures
import json
import pathlib
import random
import re
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent / "attack"))
from attacked_server import Server

FORMATS = ("f16", "k8v4", "leankv", "replay-31")
AT_ONCE = 8
WORDS = "amber basil cedar delta ember fjord grove harbor island jungle kettle lantern meadow north orchid".split()
SCHEMA = {"type": "object", "additionalProperties": False, "required": ["people"], "properties": {"people": {
    "type": "array", "minItems": 2, "maxItems": 3, "items": {
        "type": "object", "additionalProperties": False, "required": ["name", "city", "age"],
        "properties": {"name": {"type": "string", "maxLength": 12}, "city": {"enum": ["Paris", "Oslo", "Rome"]},
                       "age": {"type": "integer", "minimum": 0, "maximum": 99}}}}}}
TOOL = {"type": "function", "function": {"name": "note", "parameters": {
    "type": "object", "required": ["text"], "properties": {"text": {"type": "string", "maxLength": 40}}}}}


def prompt(draw, repeats):
    words = draw.sample(WORDS, 8)
    if not repeats:
        return f"Write a story about a {words[0]} {words[1]} and a {words[2]} in the {words[3]}."
    lines = "".join(f"def {word}(value):\n    return value + {draw.randrange(100)}\n\n" for word in words)
    return f"Repeat this file, with {words[2]} renamed to {words[2]}_new:\n\n{lines}"


def body(mode, text, number):
    asked = {"messages": [{"role": "user", "content": text}], "max_tokens": 48, "temperature": 0, "seed": number,
             "deterministic": True}
    more = {"greedy": {}, "sampled": {"temperature": 0.8, "top_p": 0.95, "logprobs": True},
            "schema": {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA, "strict": True}}},
            "tools": {"tools": [TOOL], "tool_choice": draw_of(number).choice(["auto", "required"])}}
    return asked | more[mode]


def draw_of(number):
    return random.Random(SEED * 100_003 + number)


def answer(server, asked, speculation):
    status, _, reply = server.ask("POST", "/v1/chat/completions", asked | {"speculation": speculation}, timeout=600)
    assert status == 200, reply
    choices = json.loads(reply)["choices"]
    for call in choices[0]["message"].get("tool_calls") or []:
        del call["id"]  # random
    return choices


def differences(server, prompts):
    """Returns what differs, and the number of requests."""
    asked = [(mode, number) for number in range(prompts) for mode in ("greedy", "sampled", "schema", "tools")]

    def differs(one):
        mode, number = one
        request = body(mode, prompt(draw_of(number), number % 2 == 0), number)
        plain, drafted = answer(server, request, False), answer(server, request, True)
        return None if plain == drafted else f"{mode} {number}:\n  {plain}\n  {drafted}"

    with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as threads:
        return [found for found in threads.map(differs, asked) if found], len(asked)


def drafted(server):
    metrics = server.ask("GET", "/metrics")[2].decode()
    return [int(float(re.search(rf"^vllm:spec_decode_num_{name}_tokens_total\S* (\S+)", metrics, re.M)[1]))
            for name in ("draft", "accepted")]


def main():
    failed = 0
    for kv in FORMATS:
        with Server(PROGRAM, "--speculation", "on", "--kv", kv, "--kv-check", "off", "--context", "2048", "--max-sequences",
                    AT_ONCE, *DRAFT_MODEL, model=MODEL) as server:
            found, requests = differences(server, PROMPTS)
            tokens, accepted = drafted(server)
        print(f"{kv}: {len(found)} of {requests} answers differ; {tokens} tokens were drafted, {accepted} accepted", flush=True)
        print(*found[:3], sep="\n", end="\n" if found else "")
        failed += bool(found) or (accepted == 0) != (kv == "leankv")  # whose scores a draft would change
    print(f"seed {SEED}: {len(FORMATS) - failed} passed, {failed} failed")
    return failed > 0


if __name__ == "__main__":
    PROGRAM, MODEL = sys.argv[1:3]
    PROMPTS = int(sys.argv[3]) if len(sys.argv) > 3 else 200
    SEED = int(sys.argv[4]) if len(sys.argv) > 4 else 1
    DRAFT_MODEL = ["--draft-model", sys.argv[5]] if len(sys.argv) > 5 else []
    sys.exit(main())
