"""Constrained decoding: text that a grammar ended is valid by PyPI's jsonschema."""

import collections
import concurrent.futures
import enum
import json
import random
import re

import jsonschema
import openai
import pydantic
import pytest

from random_schemas import random_schema
from tessera_server import SMOLLM2, TesseraServer

MODEL = "tessera-tiny"
MAX_TOKENS = 300
AT_ONCE = 64  # answers of the long tests
CHAT = [{"role": "user", "content": "Tell me a story about a dog, as JSON."}]


def answer_validates(client, seed, model):
    """Returns: "valid", or "truncated" or "refused", which are counted."""
    schema = random_schema(random.Random(seed))
    try:
        choice = client.chat.completions.create(
            model=model, messages=CHAT, temperature=1.5, seed=seed, max_tokens=MAX_TOKENS,
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


def answer_schemas(client, wanted, model=MODEL, at_once=8):
    """Draws schemas until a grammar has ended `wanted` answers. Returns how many answers are of each kind."""
    found = collections.Counter()
    with concurrent.futures.ThreadPoolExecutor(at_once) as pool:
        for first in range(0, 10 * wanted, 4 * at_once):
            seeds = range(first, first + 4 * at_once)
            found.update(pool.map(lambda seed: answer_validates(client, seed, model), seeds))
            if found["valid"] >= wanted:
                break
    print(dict(found))
    assert found["valid"] >= wanted
    assert found["refused"] <= wanted / 20  # a busy machine takes too long to compile one at times
    return found


def test_a_few_random_schemas(client):
    answer_schemas(client, 20)


# tests/server/clients/random_schemas.py draws from the schemas that the server takes. Results stand in
# docs/measurements/2026-11-23-constrained-decoding.md.
@pytest.mark.long
def test_a_thousand_random_schemas():
    with TesseraServer("--max-sequences", str(AT_ONCE)) as server:
        client = openai.OpenAI(base_url=server.http + "/v1", api_key="none", max_retries=0, timeout=1200)
        answer_schemas(client, 1000, at_once=AT_ONCE)


@pytest.mark.long
def test_a_thousand_random_schemas_with_a_large_vocabulary():
    if not SMOLLM2.exists():
        pytest.skip(f"{SMOLLM2} is not there: deploy/smollm2.sh")
    with TesseraServer("--model", str(SMOLLM2), "--context", "1024", "--max-sequences", str(AT_ONCE)) as server:
        client = openai.OpenAI(base_url=server.http + "/v1", api_key="none", max_retries=0, timeout=1200)
        answer_schemas(client, 1000, SMOLLM2.stem, AT_ONCE)


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


def nested(levels):
    return {"type": "array", "items": nested(levels - 1)} if levels else {"type": "null"}


@pytest.mark.parametrize("schema", [
    {"$defs": {"a": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"},
    {"enum": list(range(100_000))},
    nested(200),
    {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(2000)}},
], ids=["loop", "values", "levels", "properties"])
def test_hostile_schemas_are_a_400(client, schema):
    with pytest.raises(openai.BadRequestError):
        client.chat.completions.create(model=MODEL, messages=CHAT, max_tokens=20, response_format={
            "type": "json_schema", "json_schema": {"name": "x", "schema": schema}})


@pytest.mark.parametrize("schema", [
    {"type": "string", "maxLength": 10_000},
    {"type": "string", "minLength": 2, "maxLength": 12},
    {"type": "array", "items": {"type": "string", "maxLength": 300}, "maxItems": 2},
], ids=["10,000 characters", "2 to 12 characters", "bounded texts in a list"])
def test_large_bounds_are_followed(client, schema):
    choices = client.chat.completions.create(
        model=MODEL, messages=CHAT, max_tokens=100, temperature=1.5, seed=1, n=8, response_format={
            "type": "json_schema", "json_schema": {"name": "x", "schema": schema}}).choices
    ended = [choice.message.content for choice in choices if choice.finish_reason == "stop"]
    assert ended
    for text in ended:
        jsonschema.validate(json.loads(text), schema)
