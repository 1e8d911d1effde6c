"""OpenAI's /v1/responses, with the openai package."""

import json

import jsonschema
import openai
import pydantic
import pytest

MODEL = "tessera-tiny"
QUESTION = "Tell me a story about a dog."
ADD = {"type": "object", "additionalProperties": False, "required": ["a", "b"],
       "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 99}, "b": {"type": "integer", "minimum": 0, "maximum": 99}}}
TOOLS = [{"type": "function", "name": "add", "description": "adds two numbers", "parameters": ADD, "strict": True}]


def test_an_answer_and_its_stream_are_the_same(client):
    asked = dict(model=MODEL, input=QUESTION, instructions="Be brief.", max_output_tokens=24, temperature=0)
    whole = client.responses.create(**asked)
    assert whole.status == "incomplete" and whole.incomplete_details.reason == "max_output_tokens"
    assert whole.usage.output_tokens == 24 and whole.output_text
    with client.responses.stream(**asked) as stream:
        events = list(stream)
        final = stream.get_final_response() if events[-1].type == "response.completed" else events[-1].response
    assert [event.sequence_number for event in events] == list(range(len(events)))
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert text == whole.output_text == final.output_text
    assert final.usage.input_tokens == whole.usage.input_tokens
    assert final.usage.input_tokens_details.cached_tokens >= 0


def test_a_stored_response_is_continued_fetched_and_deleted(client):
    first = client.responses.create(model=MODEL, input=QUESTION, max_output_tokens=8, temperature=0)
    second = client.responses.create(model=MODEL, input="Go on.", previous_response_id=first.id, max_output_tokens=8, temperature=0)
    resent = client.responses.create(
        model=MODEL, max_output_tokens=8, temperature=0, store=False,
        input=[{"role": "user", "content": QUESTION}, *[item.model_dump(exclude_none=True) for item in first.output],
               {"role": "user", "content": "Go on."}])
    assert second.output_text == resent.output_text
    assert second.usage.input_tokens == resent.usage.input_tokens
    assert client.responses.retrieve(second.id).output_text == second.output_text
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(resent.id)
    client.responses.delete(second.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(second.id)


class Dog(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid")
    age: int = pydantic.Field(ge=0, le=20)
    good: bool


def test_a_pydantic_model_is_parsed(client):
    parsed = client.responses.parse(model=MODEL, input="Invent a dog.", text_format=Dog, max_output_tokens=200)
    assert isinstance(parsed.output_parsed, Dog)


def test_a_loop_of_forced_calls_streams_and_ends_in_text(client):
    history = [{"role": "user", "content": "What is 1 + 2?"}]
    for turn in range(3):
        with client.responses.stream(model=MODEL, input=history, tools=TOOLS, tool_choice={"type": "function", "name": "add"},
                                     parallel_tool_calls=False, max_output_tokens=200, store=False) as stream:
            streamed = "".join(event.delta for event in stream if event.type == "response.function_call_arguments.delta")
            final = stream.get_final_response()
        (call,) = final.output
        assert call.type == "function_call" and call.name == "add" and call.arguments == streamed
        arguments = json.loads(call.arguments)
        jsonschema.validate(arguments, ADD)
        history += [call.model_dump(include={"type", "call_id", "name", "arguments"}),
                    {"type": "function_call_output", "call_id": call.call_id, "output": str(arguments["a"] + arguments["b"])}]
    assert final.usage.input_tokens_details.cached_tokens > 0, "the prefix of the turns before is cached"
    answer = client.responses.create(model=MODEL, input=history, tools=TOOLS, tool_choice="none", max_output_tokens=8)
    assert answer.output[0].type == "message"


def test_log_probabilities_are_those_of_the_text(client):
    shown = client.responses.create(model=MODEL, input=QUESTION, max_output_tokens=5, temperature=0, top_logprobs=2,
                                    include=["message.output_text.logprobs"])
    (part,) = shown.output[0].content
    assert "".join(token.token for token in part.logprobs) == part.text
    assert all(len(token.top_logprobs) == 2 and token.logprob <= 0 for token in part.logprobs)


def test_an_unknown_previous_response_is_named(client):
    with pytest.raises(openai.BadRequestError) as refused:
        client.responses.create(model=MODEL, input="x", previous_response_id="resp_none")
    assert refused.value.code == "previous_response_not_found" and refused.value.param == "previous_response_id"
