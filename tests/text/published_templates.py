#!/usr/bin/env python3
"""Renders published chat templates with jinja2 and with Tessera, and compares the prompts.

  published_templates.py RENDER_TEMPLATE FOLDER

FOLDER holds the templates (*.jinja). Each is rendered with several conversations. Equal means: the
same text, or an error in both. Exit status 1 if any differs that KNOWN does not name.
"""

import datetime
import functools
import json
import os
import pathlib
import subprocess
import sys

import jinja2
import jinja2.ext
import jinja2.sandbox

NOW = 1_700_000_000

# Templates that differ with tools, and why.
KNOWN = {
    "llama-cpp-deepseek-r1.jinja": "prints the generator that map returns, which jinja2 cannot print as JSON",
    "meetkai-functionary-medium-v3.1.jinja": "adds to a text that `safe` made: jinja2 then escapes HTML",
}

TOOLS = [
    {"type": "function", "function": {
        "name": "get_weather", "description": "Current weather of a \"city\" & its region",
        "parameters": {"type": "object", "properties": {
            "city": {"type": "string", "description": "Its name"},
            "days": {"type": "integer", "enum": [1, 2, 3], "default": 1},
            "where": {"type": "object", "properties": {"lat": {"type": "number"}}, "required": ["lat"]},
            "tags": {"type": "array", "items": {"type": "string"}}},
            "required": ["city"]}}},
    {"type": "function", "function": {
        "name": "now", "description": "The time",
        "parameters": {"type": "object", "properties": {}}}},
]

SYSTEM = {"role": "system", "content": "You are brief."}
USER = {"role": "user", "content": "How is the weather in São Tomé?  "}


def call(arguments, **more):
    return {"role": "assistant", "content": "", "tool_calls": [
        {"id": "abcdef123", "type": "function",
         "function": {"name": "get_weather", "arguments": arguments}}]} | more


RESULT = {"role": "tool", "tool_call_id": "abcdef123", "name": "get_weather",
          "content": "{\"degrees\": 28}"}
FINAL = {"role": "assistant", "content": "It is 28 degrees.", "reasoning_content": "Hot, then."}
ARGUMENTS = {"city": "São Tomé", "days": 2, "where": {"lat": 0.3}, "tags": ["a", "b"]}


def conversations():
    """(name, variables)"""
    plain = {
        "a question": [USER],
        "a system message": [SYSTEM, USER],
        "several turns": [SYSTEM, USER, {"role": "assistant", "content": "Fine."}, USER],
        "a thought": [USER, FINAL, USER],
        "a thought written out": [
            USER, {"role": "assistant", "content": "<think>\nHm.\n</think>\n\nFine."}, USER],
        "roles that do not alternate": [SYSTEM, USER, USER],
        "an answer at the end": [USER, {"role": "assistant", "content": "Fine."}],
        "parts of text": [{"role": "user", "content": [{"type": "text", "text": "one"},
                                                       {"type": "text", "text": "two"}]}],
    }
    for name, messages in plain.items():
        yield name, {"messages": messages}
    yield "no turn begun", {"messages": [SYSTEM, USER], "add_generation_prompt": False}
    yield "no thinking", {"messages": [USER], "enable_thinking": False, "thinking": False}
    yield "thinking", {"messages": [SYSTEM, USER], "enable_thinking": True, "thinking": True,
                       "reasoning_effort": "high"}
    for style, arguments in (("object", ARGUMENTS), ("text", json.dumps(ARGUMENTS, ensure_ascii=False))):
        called = call(arguments)
        tools = {
            "tools": [SYSTEM, USER],
            "tools without a system message": [USER],
            "a call": [USER, called],
            "a result": [SYSTEM, USER, called, RESULT],
            "a result and an answer": [USER, called, RESULT, FINAL, USER],
            "content beside a call": [USER, call(arguments, content="Let me look."), RESULT],
            "null beside a call": [USER, call(arguments, content=None), RESULT],
            "a thought before a call": [
                USER, call(arguments, reasoning_content="I must look."), RESULT],
            "two calls": [USER, {"role": "assistant", "content": "", "tool_calls": [
                *called["tool_calls"],
                {"id": "abcdef124", "type": "function",
                 "function": {"name": "now", "arguments": {} if style == "object" else "{}"}}]},
                RESULT, {"role": "tool", "tool_call_id": "abcdef124", "name": "now", "content": "12:00"}],
        }
        for name, messages in tools.items():
            if "call" in json.dumps(messages) or style == "object":
                yield f"{name}, arguments as {style}", {"messages": messages, "tools": TOOLS}


class Raised(Exception):
    pass


def raise_exception(message):
    raise Raised(message)


def strftime_now(form):
    return datetime.datetime.fromtimestamp(NOW, datetime.timezone.utc).strftime(form)


def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators,
                      sort_keys=sort_keys)


class Generation(jinja2.ext.Extension):
    """{% generation %} of transformers, whose body is printed."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.Scope(body, lineno=line)


def environment():
    """As in transformers, but lists may grow: templates that llama.cpp serves append to them."""
    made = jinja2.sandbox.SandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols])
    made.filters["tojson"] = tojson
    made.filters["from_json"] = json.loads
    made.globals["raise_exception"] = raise_exception
    made.globals["strftime_now"] = strftime_now
    return made


@functools.cache
def compiled(source):
    return environment().from_string(source)


def expected(source, variables):
    """The prompt, or None and the error."""
    try:
        return compiled(source).render(**variables), None
    except Exception as error:  # any error of the template
        return None, f"{type(error).__name__}: {error}"


def main():
    renderer, folder = sys.argv[1:3]
    only = sys.argv[3:]
    process = subprocess.Popen([renderer], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                               env={**os.environ, "TZ": "UTC"})
    defaults = {"bos_token": "<s>", "eos_token": "</s>", "add_generation_prompt": True, "tools": None,
                "documents": None}
    equal, templates, wrong = 0, [], {}
    for path in sorted(pathlib.Path(folder).glob("*.jinja")):
        if only and path.name not in only:
            continue
        source = path.read_text()
        templates.append(path.name)
        for name, given in conversations():
            variables = {**defaults, **given}
            process.stdin.write(json.dumps({"template": str(path), "variables": json.dumps(variables)}) + "\n")
            process.stdin.flush()
            ours = json.loads(process.stdout.readline())
            text, error = expected(source, variables)
            same = ours.get("text") == text if error is None else "error" in ours
            equal += same
            if not same:
                wrong.setdefault(path.name, []).append((name, ours, text, error))
    for template, cases in wrong.items():
        if template in KNOWN:
            continue
        name, ours, text, error = cases[0]
        print(f"{template}: {len(cases)} differ; {name}:")
        print(f"  ours:   {ours.get('error') or repr(ours['text'])}")
        print(f"  jinja2: {error or repr(text)}")
    total = equal + sum(map(len, wrong.values()))
    print(f"{len(templates) - len(wrong)} of {len(templates)} templates are equal in every conversation; "
          f"{equal} of {total} prompts are equal")
    process.stdin.close()
    process.wait()
    unknown = sorted(set(wrong) - set(KNOWN))
    for template in sorted(set(wrong) & set(KNOWN)):
        print(f"known: {template} {KNOWN[template]}")
    return 1 if unknown or len(templates) < 65 and not only else 0


if __name__ == "__main__":
    sys.exit(main())
