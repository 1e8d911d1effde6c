"""Constrained decoding: what a grammar ended is valid by PyPI's jsonschema."""

import concurrent.futures
import enum
import json
import os
import pathlib
import random
import re

import jsonschema
import openai
import pydantic
import pytest

from tessera_server import TesseraServer

MODEL = "tessera-tiny"
SMOLLM2 = pathlib.Path(os.environ.get("XDG_CACHE_HOME", pathlib.Path.home() / ".cache"),
                       "tessera/SmolLM2-135M-Instruct.Q4_1.gguf")
CHAT = [{"role": "user", "content": "Tell me a story about a dog, as JSON."}]


def random_schema(rng, depth=0):
    """A schema of the keywords that the server takes."""
    kinds = ["string", "integer", "number", "boolean", "null", "enum", "const", "format", "pattern"]
    if depth < 3:
        kinds += ["object"] * 4 + ["array"] * 3 + ["anyOf"] * 2 + ["types"]
    kind = rng.choice(kinds) if depth else rng.choice(["object", "object", "array"])
    sub = lambda: random_schema(rng, depth + 1)
    if kind == "string":
        low = rng.randint(0, 3)
        return {"type": "string"} | rng.choice(
            [{}, {"minLength": low}, {"minLength": low, "maxLength": low + rng.randint(0, 6)}])
    if kind in ("integer", "number"):
        low = rng.randint(-50, 50)
        return {"type": kind} | rng.choice(
            [{}, {"minimum": low}, {"maximum": low}, {"exclusiveMinimum": low},
             {"minimum": low, "maximum": low + rng.randint(1, 400)}])
    if kind == "enum":
        return {"enum": rng.sample(["a", "b\"c", "d\\e", "ü", 5, -1.5, True, None, [1, "x"], {"k": 0}], 3)}
    if kind == "const":
        return {"const": rng.choice(["x", 17, False, None, ["y"]])}
    if kind == "format":
        return {"type": "string", "format": rng.choice(["date", "date-time", "time", "uuid", "ipv4", "email"])}
    if kind == "pattern":
        return {"type": "string", "pattern": rng.choice(["^[a-z]{2,4}$", "^(ab|c)+$", "^\\d{3}-[xy]$", "^.{1,3}$"])}
    if kind == "object":
        names = rng.sample(["name", "age", "größe", "a b", "x\"y", "list", "next"], rng.randint(0, 4))
        schema = {"type": "object", "properties": {name: sub() for name in names},
                  "required": [name for name in names if rng.random() < 0.6]}
        if rng.random() < 0.2:
            return {"type": "object", "required": names[:2], "additionalProperties": {"type": "integer"}}
        return schema | rng.choice([{}, {"additionalProperties": False}, {"additionalProperties": {"type": "null"}}])
    if kind == "array":
        low = rng.randint(0, 2)
        return {"type": "array", "items": sub()} | rng.choice([{}, {"minItems": low, "maxItems": low + rng.randint(0, 2)}])
    if kind == "anyOf":
        return {"anyOf": [sub() for _ in range(rng.randint(1, 3))]}
    return {"type": rng.sample(["string", "integer", "null", "boolean"], 2)}


def answer_validates(client, seed, model):
    """Returns: "valid", or "truncated" or "refused", which are counted."""
    schema = random_schema(random.Random(seed))
    try:
        choice = client.chat.completions.create(
            model=model, messages=CHAT, temperature=1.5, seed=seed, max_tokens=400,
            response_format={"type": "json_schema",
                             "json_schema": {"name": "x", "strict": True, "schema": schema}}).choices[0]
    except openai.BadRequestError as error:
        assert error.param == "response_format.json_schema.schema", (seed, schema, error)
        return "refused"
    if choice.finish_reason == "length":
        return "truncated"
    assert choice.finish_reason == "stop", (seed, schema)
    try:
        jsonschema.validate(json.loads(choice.message.content), schema)
    except Exception as error:
        raise AssertionError(f"seed {seed}: {schema} gave {choice.message.content!r}") from error
    return "valid"


def counts(client, seeds, model=MODEL):
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda seed: answer_validates(client, seed, model), seeds))
    return {kind: found.count(kind) for kind in ("valid", "truncated", "refused")}


def test_a_few_random_schemas(client):
    found = counts(client, range(25))
    print(found)
    assert found["valid"] >= 8


@pytest.mark.long
def test_a_thousand_random_schemas(client):
    found = counts(client, range(1000))
    print(found)
    assert found["valid"] >= 300


@pytest.mark.long
def test_a_thousand_random_schemas_with_a_large_vocabulary():
    if not SMOLLM2.exists():
        pytest.skip(f"{SMOLLM2} is not there: deploy/smollm2.sh")
    with TesseraServer("--model", str(SMOLLM2), "--context", "1024") as server:
        client = openai.OpenAI(base_url=server.http + "/v1", api_key="none", max_retries=0, timeout=1200)
        found = counts(client, range(1000), SMOLLM2.stem)
    print(found)
    assert found["valid"] >= 300


def test_pydantic_models_are_parsed(client):
    class Kind(str, enum.Enum):
        good = "good"
        bad = "bad"

    class Dog(pydantic.BaseModel):
        kind: Kind
        legs: int = pydantic.Field(ge=0, le=4)
        friend: "Dog | None"

    for seed in range(5):
        choice = client.chat.completions.parse(
            model=MODEL, messages=CHAT, response_format=Dog, seed=seed, max_tokens=400).choices[0]
        assert isinstance(choice.message.parsed, Dog)


def test_each_sample_and_each_stream_follows_the_grammar(client):
    digits = {"extra_body": {"guided_regex": "[0-9]{3}-[a-f]{2}"}}
    whole = client.chat.completions.create(
        model=MODEL, messages=CHAT, n=4, temperature=1.5, seed=1, logprobs=True, **digits)
    texts = [choice.message.content for choice in whole.choices]
    assert all(re.fullmatch("[0-9]{3}-[a-f]{2}", text) for text in texts) and len(set(texts)) > 1
    for choice in whole.choices:
        assert "".join(token.token for token in choice.logprobs.content) == choice.message.content
    streamed = client.chat.completions.create(
        model=MODEL, messages=CHAT, temperature=1.5, seed=1, stream=True, **digits)
    assert "".join(c.choices[0].delta.content or "" for c in streamed if c.choices) == texts[0]


@pytest.mark.parametrize("fields, pattern", [
    ({"response_format": {"type": "json_object"}}, r"\{(.|\n)*"),
    ({"extra_body": {"guided_choice": ["cat", "dog"]}}, "cat|dog"),
    ({"extra_body": {"structured_outputs": {"choice": ["cat", "dog"]}}}, "cat|dog"),
    ({"extra_body": {"grammar": 'root ::= "yes" | "no"'}}, "yes|no"),
    ({"extra_body": {"json_schema": {"enum": ["a", "b"]}}}, '"a"|"b"'),
])
def test_the_names_of_other_servers(client, fields, pattern):
    text = client.chat.completions.create(
        model=MODEL, messages=CHAT, max_tokens=60, **fields).choices[0].message.content
    assert re.fullmatch(pattern, text)


@pytest.mark.parametrize("schema", [
    {"$defs": {"a": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"},
    {"enum": list(range(100_000))},
    {"type": "string", "pattern": "(((a{1,30}){1,30}){1,30}){1,30}"},
    {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(500)}},
])
def test_hostile_schemas_are_a_400(client, schema):
    with pytest.raises(openai.BadRequestError):
        client.chat.completions.create(model=MODEL, messages=CHAT, max_tokens=20, response_format={
            "type": "json_schema", "json_schema": {"name": "x", "schema": schema}})
