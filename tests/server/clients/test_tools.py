"""Tool calls with the openai package: forced, streamed, and in an agent's loop."""

import json

import jsonschema
import openai
import pydantic
import pytest

from tessera_server import SMOLLM2, TesseraServer

MODEL = "tessera-tiny"
CHAT = [{"role": "user", "content": "What is the weather in Paris?"}]
WEATHER = {"type": "object", "additionalProperties": False, "required": ["city", "unit"],
           "properties": {"city": {"type": "string", "maxLength": 20}, "unit": {"enum": ["C", "F"]}}}
ADD = {"type": "object", "additionalProperties": False, "required": ["a", "b"],
       "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 99}, "b": {"type": "integer", "minimum": 0, "maximum": 99}}}
SCHEMAS = {"get_weather": WEATHER, "add": ADD}
TOOLS = [{"type": "function", "function": {"name": name, "description": f"calls {name}", "parameters": schema}}
         for name, schema in SCHEMAS.items()]


def named(name):
    return {"type": "function", "function": {"name": name}}


def check(call):
    jsonschema.validate(json.loads(call.function.arguments), SCHEMAS[call.function.name])
    assert call.id.startswith("call_") and call.type == "function"


def test_a_forced_call_streams(client):
    stream = client.chat.completions.create(
        model=MODEL, messages=CHAT, tools=TOOLS, tool_choice="required", parallel_tool_calls=False,
        seed=1, max_tokens=200, stream=True)
    calls, reasons = {}, []
    for chunk in stream:
        for part in chunk.choices[0].delta.tool_calls or []:
            known = calls.setdefault(part.index, part)
            if known is not part:
                assert part.id is None
                known.function.arguments += part.function.arguments
        reasons.append(chunk.choices[0].finish_reason)
    assert list(calls) == [0] and reasons[-1] == "tool_calls"
    check(calls[0])


def test_a_named_tool_is_called_once(client):
    for seed in range(5):
        choice = client.chat.completions.create(
            model=MODEL, messages=CHAT, tools=TOOLS, tool_choice=named("add"), seed=seed,
            temperature=1.5, max_tokens=300).choices[0]
        assert [call.function.name for call in choice.message.tool_calls] == ["add"]
        assert choice.finish_reason == "tool_calls" and choice.message.content is None
        check(choice.message.tool_calls[0])


def test_none_is_an_answer_in_text(client):
    message = client.chat.completions.create(
        model=MODEL, messages=CHAT, tools=TOOLS, tool_choice="none", max_tokens=20).choices[0].message
    assert message.tool_calls is None and message.content


def test_strict_tools_are_parsed_to_models(client):
    class Add(pydantic.BaseModel):
        a: int = pydantic.Field(ge=0, le=99)
        b: int = pydantic.Field(ge=0, le=99)

    tool = openai.pydantic_function_tool(Add)
    assert tool["function"]["strict"]
    choice = client.chat.completions.parse(
        model=MODEL, messages=CHAT, tools=[tool], tool_choice="required", parallel_tool_calls=False,
        seed=3, max_tokens=300).choices[0]
    assert isinstance(choice.message.tool_calls[0].function.parsed_arguments, Add)


def test_an_answer_in_json_and_tools_go_together(client):
    choice = client.chat.completions.create(
        model=MODEL, messages=CHAT, tools=TOOLS, seed=4, max_tokens=300,
        response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": ADD}}).choices[0]
    if choice.finish_reason == "stop":
        jsonschema.validate(json.loads(choice.message.content), ADD)
    elif choice.finish_reason == "tool_calls":
        check(choice.message.tool_calls[0])


def test_a_schema_that_no_grammar_enforces_is_refused_only_if_strict(client):
    loose = {"type": "object", "properties": {}, "not": {"required": ["x"]}}
    tool = {"type": "function", "function": {"name": "f", "parameters": loose}}
    choice = client.chat.completions.create(
        model=MODEL, messages=CHAT, tools=[tool], tool_choice="required", max_tokens=40).choices[0]
    assert choice.message.tool_calls[0].function.name == "f"
    tool["function"]["strict"] = True
    with pytest.raises(openai.BadRequestError, match="f.parameters"):
        client.chat.completions.create(model=MODEL, messages=CHAT, tools=[tool], tool_choice="required")


def test_template_variables_and_a_continued_answer(client):
    begun = CHAT + [{"role": "assistant", "content": "Once upon"}]
    choice = client.chat.completions.create(
        model=MODEL, messages=begun, temperature=0, max_tokens=8,
        extra_body={"continue_final_message": True, "chat_template_kwargs": {"enable_thinking": False}}).choices[0]
    assert choice.message.content
    with pytest.raises(openai.BadRequestError, match="last message"):
        client.chat.completions.create(model=MODEL, messages=CHAT, extra_body={"continue_final_message": True})


@pytest.fixture(scope="module")
def smollm2():
    if not SMOLLM2.exists():
        pytest.skip(f"{SMOLLM2} is not there: deploy/smollm2.sh")
    with TesseraServer("--model", str(SMOLLM2)) as started:
        yield started


UNIT = 64  # tokens of a unit of the prefix cache


def test_an_agents_loop_hits_the_prefix_cache(smollm2):
    """Eight turns: a call, its result, and the whole history again."""
    client = openai.OpenAI(base_url=smollm2.http + "/v1", api_key="none", max_retries=0)
    history = [{"role": "system", "content": "You are an agent that uses tools."},
               {"role": "user", "content": "What is the weather in Paris, and what is 3 plus 4?"}]
    turns = []  # prompt tokens, and those of them found in the cache
    for turn in range(8):
        answer = client.chat.completions.create(
            model=SMOLLM2.stem, messages=history, tools=TOOLS, temperature=0, max_tokens=120,
            tool_choice=named(["get_weather", "add"][turn % 2]))
        message = answer.choices[0].message
        assert answer.choices[0].finish_reason == "tool_calls"
        check(message.tool_calls[0])
        turns.append((answer.usage.prompt_tokens, answer.usage.prompt_tokens_details.cached_tokens))
        history += [message, {"role": "tool", "tool_call_id": message.tool_calls[0].id,
                              "content": json.dumps({"result": "21 degrees" if turn % 2 == 0 else 7})}]
    last = client.chat.completions.create(
        model=SMOLLM2.stem, messages=history, tools=TOOLS, tool_choice="none", temperature=0, max_tokens=40)
    assert last.choices[0].message.content
    turns.append((last.usage.prompt_tokens, last.usage.prompt_tokens_details.cached_tokens))
    print("\nturn  prompt  cached  share")
    for turn, (prompt, cached) in enumerate(turns, 1):
        print(f"{turn:4}  {prompt:6}  {cached:6}  {cached / prompt:.3f}")
    for (before, _), (prompt, cached) in zip(turns, turns[1:]):
        assert cached >= before // UNIT * UNIT, f"whole units of the prompt before are in the cache: {turns}"
        assert cached / prompt > 0.65, turns
    assert sum(cached for _, cached in turns[1:]) / sum(prompt for prompt, _ in turns[1:]) > 0.85, turns
