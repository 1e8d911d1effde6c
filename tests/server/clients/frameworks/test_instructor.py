"""instructor: models of data by each of its modes, whole, streamed in parts, and a list."""

import instructor
import openai
import pytest

from client_document import SECTIONS, check_example
from told import CHAT, MODEL, Dog

MODES = ["TOOLS", "TOOLS_STRICT", "JSON_SCHEMA", "RESPONSES_TOOLS"]


@pytest.fixture(params=MODES)
def client(request, openai_url):
    return instructor.from_openai(openai.OpenAI(base_url=openai_url, api_key="none", max_retries=0),
                                  mode=getattr(instructor.Mode, request.param))


def test_a_model_is_the_answer(client):
    asked = {"model": MODEL, "messages": CHAT, "max_tokens": 200, "temperature": 0, "max_retries": 0}
    dog, answer = client.create_with_completion(response_model=Dog, **asked)
    assert isinstance(dog, Dog) and answer.id


@pytest.mark.parametrize("client", ["TOOLS", "JSON_SCHEMA"], indirect=True)
def test_a_streamed_model_grows(client):
    parts = list(client.create_partial(response_model=Dog, model=MODEL, messages=CHAT, max_tokens=200, temperature=0, max_retries=0))
    assert Dog.model_validate(parts[-1].model_dump())


def test_a_provider_by_its_name(openai_url):
    client = instructor.from_provider("openai/" + MODEL, base_url=openai_url, api_key="none")
    assert isinstance(client.create(response_model=Dog, messages=CHAT, max_tokens=200, temperature=0, max_retries=0), Dog)


@pytest.mark.parametrize("example", SECTIONS["instructor"])
def test_an_example_of_the_document_prints_an_answer(server, example):
    check_example(server, example)
