"""Anthropic's dialect, /v1/messages, with the anthropic package."""

import json

import anthropic
import jsonschema
import pytest

from tessera_server import TesseraServer

MODEL = "tessera-tiny"
CHAT = [{"role": "user", "content": "Tell me a story about a dog."}]
ADD = {"type": "object", "additionalProperties": False, "required": ["a", "b"],
       "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 99}, "b": {"type": "integer", "minimum": 0, "maximum": 99}}}
TOOLS = [{"name": "add", "description": "adds two numbers", "input_schema": ADD}]


@pytest.fixture
def claude(server):
    return anthropic.Anthropic(base_url=server.http, api_key="none", max_retries=0)


def test_an_answer_and_its_stream_are_the_same(claude):
    asked = dict(model=MODEL, max_tokens=24, system="Be brief.", messages=CHAT, extra_body={"temperature": 0})
    whole = claude.messages.create(**asked)
    assert whole.type == "message" and whole.role == "assistant" and whole.stop_reason == "max_tokens"
    assert whole.usage.output_tokens == 24
    with claude.messages.stream(**asked) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == whole.content[0].text == final.content[0].text
    assert final.stop_reason == "max_tokens" and final.usage.output_tokens == 24
    total = lambda usage: usage.input_tokens + usage.cache_read_input_tokens
    assert total(final.usage) == total(whole.usage) == claude.messages.count_tokens(
        model=MODEL, system="Be brief.", messages=CHAT).input_tokens


def test_a_stop_sequence_is_named(claude):
    text = claude.messages.create(model=MODEL, max_tokens=24, messages=CHAT, extra_body={"temperature": 0}).content[0].text
    word = text.split()[3]
    stopped = claude.messages.create(model=MODEL, max_tokens=24, messages=CHAT, extra_body={"temperature": 0}, stop_sequences=[word])
    assert stopped.stop_reason == "stop_sequence" and stopped.stop_sequence == word
    assert stopped.content[0].text == text[: text.index(word)]


@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "add"}])
def test_a_forced_tool_is_used_and_streamed(claude, choice):
    asked = dict(model=MODEL, max_tokens=200, messages=CHAT, tools=TOOLS,
                 tool_choice=choice | {"disable_parallel_tool_use": True})
    with claude.messages.stream(**asked) as stream:
        final = stream.get_final_message()
    assert final.stop_reason == "tool_use"
    (block,) = final.content
    assert block.type == "tool_use" and block.name == "add"
    jsonschema.validate(block.input, ADD)
    history = CHAT + [{"role": "assistant", "content": [block.model_dump(include={"type", "id", "name", "input"})]},
                      {"role": "user", "content": [{"type": "tool_result", "tool_use_id": block.id, "content": "7"},
                                                   {"type": "text", "text": "And now?"}]}]
    answer = claude.messages.create(model=MODEL, max_tokens=8, messages=history, tools=TOOLS, tool_choice={"type": "none"})
    assert answer.content[0].type == "text"


def test_the_assistants_last_message_is_continued(claude):
    begun = CHAT + [{"role": "assistant", "content": "Once upon a"}]
    counted = claude.messages.count_tokens(model=MODEL, messages=begun).input_tokens
    assert counted > claude.messages.count_tokens(model=MODEL, messages=CHAT).input_tokens
    assert claude.messages.create(model=MODEL, max_tokens=5, messages=begun).content


def test_errors_have_anthropics_types(claude, server):
    with pytest.raises(anthropic.BadRequestError) as refused:
        claude.messages.create(model=MODEL, max_tokens=5, messages=[{"role": "user", "content": [
            {"type": "image", "source": {"type": "url", "url": "http://x"}}]}])
    assert refused.value.body["error"]["type"] == "invalid_request_error"
    assert "messages[0].content[0]" in refused.value.body["error"]["message"]
    with pytest.raises(anthropic.NotFoundError):
        claude.messages.create(model="other", max_tokens=5, messages=CHAT)


def test_a_key_is_sent_as_x_api_key():
    with TesseraServer("--api-key", "secret") as locked:
        for key, opens in (("secret", True), ("wrong", False)):
            client = anthropic.Anthropic(base_url=locked.http, api_key=key, max_retries=0)
            if opens:
                assert client.messages.count_tokens(model=MODEL, messages=CHAT).input_tokens > 0
            else:
                with pytest.raises(anthropic.AuthenticationError):
                    client.messages.count_tokens(model=MODEL, messages=CHAT)
