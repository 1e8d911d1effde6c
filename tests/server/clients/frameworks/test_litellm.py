"""LiteLLM, as OpenAI's API, as its Responses API and as Anthropic's."""

import math

import litellm
import pytest

from client_document import SECTIONS, check_example
from told import CHAT, MODEL, QUESTION, TEXTS, Dog, Sum

TOOL = {"type": "function", "function": {"name": "add", "description": "adds two numbers",
                                         "parameters": Sum.model_json_schema(), "strict": True}}


@pytest.fixture
def asked(openai_url):
    return {"model": "openai/" + MODEL, "api_base": openai_url, "api_key": "none", "num_retries": 0}


def test_an_answer_and_its_stream_are_the_same(asked):
    asked |= {"messages": CHAT, "temperature": 0, "max_tokens": 12}
    whole = litellm.completion(**asked)
    chunks = list(litellm.completion(**asked, stream=True, stream_options={"include_usage": True}))
    text = whole.choices[0].message.content
    assert text and "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == text
    built = litellm.stream_chunk_builder(chunks, messages=CHAT)
    assert built.choices[0].message.content == text and built.choices[0].finish_reason == "length"
    assert whole.usage.completion_tokens == built.usage.completion_tokens == 12
    assert whole.usage.prompt_tokens == built.usage.prompt_tokens > 0


@pytest.mark.parametrize("stream", [False, True])
def test_a_step_of_an_agent(asked, stream):
    asked |= {"tools": [TOOL], "temperature": 0}
    answer = litellm.completion(**asked, messages=CHAT, tool_choice="required", parallel_tool_calls=False, max_tokens=200,
                                stream=stream)
    if stream:
        answer = litellm.stream_chunk_builder(list(answer))
    (call,) = answer.choices[0].message.tool_calls
    numbers = Sum.model_validate_json(call.function.arguments)
    history = [*CHAT, answer.choices[0].message,
               {"role": "tool", "tool_call_id": call.id, "content": str(numbers.a + numbers.b)}]
    last = litellm.completion(**asked, messages=history, tool_choice="none", max_tokens=8)
    assert last.choices[0].message.content and not last.choices[0].message.tool_calls


def test_a_model_of_data_is_the_response_format(asked):
    answer = litellm.completion(**asked, messages=CHAT, response_format=Dog, max_tokens=200, temperature=0)
    assert Dog.model_validate_json(answer.choices[0].message.content)


def test_responses(asked):
    answer = litellm.responses(**asked, input=QUESTION, max_output_tokens=16, temperature=0)
    assert answer.usage.output_tokens == 16
    events = list(litellm.responses(**asked, input=QUESTION, max_output_tokens=16, temperature=0, stream=True))
    streamed = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert streamed == answer.output[0].content[0].text


def test_anthropics_api(server):
    asked = {"model": "anthropic/" + MODEL, "api_base": server.http, "api_key": "none", "messages": CHAT, "temperature": 0}
    answer = litellm.completion(**asked, max_tokens=12)
    streamed = litellm.completion(**asked, max_tokens=12, stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in streamed) == answer.choices[0].message.content
    called = litellm.completion(**asked, max_tokens=200, tools=[TOOL], tool_choice="required", parallel_tool_calls=False)
    assert Sum.model_validate_json(called.choices[0].message.tool_calls[0].function.arguments)


def test_embeddings(asked):
    answer = litellm.embedding(**asked, input=TEXTS)
    for one in answer.data:
        assert math.isclose(math.hypot(*one["embedding"]), 1, rel_tol=1e-5)


def test_a_wrong_model_is_litellms_own_error(asked):
    with pytest.raises(litellm.NotFoundError):
        litellm.completion(**asked | {"model": "openai/other"}, messages=CHAT)


@pytest.mark.parametrize("example", SECTIONS["LiteLLM"])
def test_an_example_of_the_document_prints_an_answer(server, example):
    check_example(server, example)
