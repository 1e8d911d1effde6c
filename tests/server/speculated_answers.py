"""Answers with and without drafted tokens, byte for byte, on a real checkpoint.

Each prompt is answered greedily, sampled with a seed, under a schema, and as a chat with tools. Half of the prompts ask
for text that they hold, so that drafts are right; the others ask for prose, so that most are wrong. Eight requests run
at once, some with drafts and some without. With a draft model each answer comes a third time, from a second server
that has it; there four requests run at once, because a step's rows are shared by the drafts of all.

  python3 tests/server/speculated_answers.py SERVER MODEL.gguf [--prompts 200] [--seed 1] [--draft-model SMALLER.gguf]
"""

import argparse
import concurrent.futures
import json
import pathlib
import random
import re
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent / "attack"))
from attacked_server import Server

FORMATS = ("f16", "k8v4", "leankv", "replay-31")
MODES = ("greedy", "sampled", "schema", "tools")
AT_ONCE = 8
AT_ONCE_WITH_MODEL = 4
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


def body(mode, number):
    draw = draw_of(number)
    asked = {"messages": [{"role": "user", "content": prompt(draw, number % 2 == 0)}], "max_tokens": 48, "temperature": 0,
             "seed": number, "deterministic": True}
    more = {"greedy": {}, "sampled": {"temperature": 0.8, "top_p": 0.95, "logprobs": True},
            "schema": {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA, "strict": True}}},
            "tools": {"tools": [TOOL], "tool_choice": draw.choice(["auto", "required"])}}
    return asked | more[mode]


def draw_of(number):
    return random.Random(SET.seed * 100_003 + number)


def answer(server, asked, speculation):
    status, _, reply = server.ask("POST", "/v1/chat/completions", asked | {"speculation": speculation},
                                  {"x-queue-timeout": "3600"}, timeout=600)
    assert status == 200, reply
    choices = json.loads(reply)["choices"]
    for call in choices[0]["message"].get("tool_calls") or []:
        del call["id"]  # random
    return choices


def in_threads(count, function, items):
    with concurrent.futures.ThreadPoolExecutor(count) as threads:
        return list(threads.map(function, items))


def count_of(server, name):
    metrics = server.ask("GET", "/metrics")[2].decode()
    return int(float(re.search(rf"^vllm:spec_decode_num_{name}_total\S* (\S+)", metrics, re.M)[1]))


def report(title, server, plain, drafted):
    """Prints what differs, and what was drafted. Returns true if nothing differs and drafts were as they should be."""
    found = [f"{mode} {number}:\n  {plain[mode, number]}\n  {text}" for (mode, number), text in drafted.items()
             if text != plain[mode, number]]
    accepted = count_of(server, "accepted_tokens")
    print(f"{title}: {len(found)} of {len(drafted)} answers differ; {count_of(server, 'draft_tokens')} tokens were drafted, "
          f"{accepted} accepted", flush=True)
    print(*found[:3], sep="\n", end="\n" if found else "")
    return not found and (accepted > 0) == ("leankv" not in title)  # whose scores a draft would change


def run(kv):
    flags = ("--speculation", "on", "--kv", kv, "--kv-check", "off", "--context", "2048", "--max-sequences", AT_ONCE)
    asked = [(mode, number) for number in range(SET.prompts) for mode in MODES]

    def both(one):
        request = body(*one)
        return answer(server, request, False), answer(server, request, True)

    with Server(SET.server, *flags, model=SET.model) as server:
        answers = in_threads(AT_ONCE, both, asked)
        plain = dict(zip(asked, (one for one, _ in answers)))
        passed = [report(kv, server, plain, dict(zip(asked, (one for _, one in answers))))]
    if SET.draft_model:
        with Server(SET.server, *flags, "--draft-model", SET.draft_model, model=SET.model) as server:
            drafted = in_threads(AT_ONCE_WITH_MODEL, lambda one: answer(server, body(*one), True), asked)
            passed.append(report(f"{kv} with a draft model", server, plain, dict(zip(asked, drafted))))
    return passed


def main():
    passed = [one for kv in SET.kv.split(",") for one in run(kv)]
    print(f"seed {SET.seed}: {sum(passed)} passed, {len(passed) - sum(passed)} failed")
    return not all(passed)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("server")
    parser.add_argument("model")
    parser.add_argument("--prompts", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--draft-model")
    parser.add_argument("--kv", default=",".join(FORMATS))
    SET = parser.parse_args()
    sys.exit(main())
