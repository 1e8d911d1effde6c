"""Frameworks for agents and retrieval, unchanged, against the server: each finds what it needs of OpenAI's API."""

import json

import pydantic
import pytest

pytestmark = pytest.mark.frameworks

MODEL = "tessera-tiny"
QUESTION = "Tell me a story about a dog."
CHAT = [{"role": "user", "content": QUESTION}]


class Dog(pydantic.BaseModel):
    """A dog."""

    model_config = pydantic.ConfigDict(extra="forbid")
    age: int = pydantic.Field(ge=0, le=20)
    good: bool


def test_litellm_completes_streams_and_calls_tools(server):
    import litellm

    asked = dict(model="openai/" + MODEL, api_base=server.http + "/v1", api_key="none", messages=CHAT, temperature=0, max_tokens=12)
    whole = litellm.completion(**asked)
    streamed = "".join(chunk.choices[0].delta.content or "" for chunk in litellm.completion(**asked, stream=True))
    assert whole.choices[0].message.content == streamed and whole.usage.completion_tokens == 12
    tool = {"type": "function", "function": {"name": "dog", "parameters": Dog.model_json_schema(), "strict": True}}
    called = litellm.completion(**asked | {"max_tokens": 200}, tools=[tool], tool_choice="required")
    assert Dog(**json.loads(called.choices[0].message.tool_calls[0].function.arguments))
    answer = litellm.responses(model="openai/" + MODEL, api_base=server.http + "/v1", api_key="none", input=QUESTION, max_output_tokens=12)
    assert answer.usage.output_tokens == 12


def test_langchain_completes_streams_and_structures(server):
    from langchain_openai import ChatOpenAI

    def chat(**more):
        return ChatOpenAI(model=MODEL, base_url=server.http + "/v1", api_key="none", temperature=0, max_retries=0, **more)

    whole = chat(max_tokens=12).invoke(QUESTION)
    assert "".join(part.text if isinstance(part.text, str) else part.text() for part in chat(max_tokens=12).stream(QUESTION)) == whole.content
    for method in ("json_schema", "function_calling"):
        assert isinstance(chat(max_tokens=200).with_structured_output(Dog, method=method).invoke("Invent a dog."), Dog)
    by_responses = chat(max_tokens=16, use_responses_api=True).invoke(QUESTION)
    assert by_responses.usage_metadata["output_tokens"] == 16


def test_llama_index_completes_and_streams(server):
    from llama_index.llms.openai_like import OpenAILike

    model = OpenAILike(model=MODEL, api_base=server.http + "/v1", api_key="none", is_chat_model=True, max_tokens=12, temperature=0,
                       max_retries=0)
    whole = model.complete(QUESTION).text
    assert whole and list(model.stream_complete(QUESTION))[-1].text == whole


@pytest.mark.parametrize("mode", ["TOOLS", "JSON_SCHEMA"])
def test_instructor_returns_a_model(server, mode):
    import instructor
    import openai

    client = instructor.from_openai(openai.OpenAI(base_url=server.http + "/v1", api_key="none", max_retries=0),
                                    mode=getattr(instructor.Mode, mode))
    assert isinstance(client.chat.completions.create(model=MODEL, response_model=Dog, messages=CHAT, max_tokens=200, max_retries=0), Dog)


@pytest.mark.parametrize("model_class", ["OpenAIChatModel", "OpenAIResponsesModel"])
def test_pydantic_ai_returns_a_model(server, model_class):
    from pydantic_ai import Agent, NativeOutput, ToolOutput
    from pydantic_ai.models import openai as models
    from pydantic_ai.providers.openai import OpenAIProvider

    model = getattr(models, model_class)(MODEL, provider=OpenAIProvider(base_url=server.http + "/v1", api_key="none"))
    for output in (ToolOutput(Dog), NativeOutput(Dog)):
        assert isinstance(Agent(model, output_type=output, retries=0).run_sync("Invent a dog.", model_settings={"max_tokens": 200}).output, Dog)
