"""pydantic-ai: agents over both of OpenAI's APIs, that answer in text, in data, and that call tools."""

import math

import pytest
from pydantic_ai import Agent, Embedder, ModelRequest, NativeOutput, ToolDefinition, ToolOutput, ToolReturnPart
from pydantic_ai.direct import model_request_sync
from pydantic_ai.embeddings.openai import OpenAIEmbeddingModel
from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

from client_document import SECTIONS, check_example
from told import MODEL, QUESTION, TEXTS, Dog, Sum


@pytest.fixture(params=[OpenAIChatModel, OpenAIResponsesModel])
def model(request, openai_url):
    return request.param(MODEL, provider=OpenAIProvider(base_url=openai_url, api_key="none"))


def test_an_answer_and_its_stream_are_the_same(model):
    agent = Agent(model, instructions="Be brief.", model_settings={"max_tokens": 16, "temperature": 0})
    whole = agent.run_sync(QUESTION)
    streamed = agent.run_stream_sync(QUESTION)
    assert streamed.get_output() == whole.output
    assert whole.usage.output_tokens == 16


@pytest.mark.parametrize("output", [ToolOutput, NativeOutput])
def test_a_model_of_data_is_the_output(model, output):
    agent = Agent(model, output_type=output(Dog), retries=0, model_settings={"max_tokens": 200, "temperature": 0})
    assert isinstance(agent.run_sync("Invent a dog.").output, Dog)


ADD = ToolDefinition(name="add", description="adds two numbers", parameters_json_schema=Sum.model_json_schema(), strict=True)


def test_a_step_of_an_agent(model):
    tools = ModelRequestParameters(function_tools=[ADD], allow_text_output=False)  # tool_choice is required
    history = [ModelRequest.user_text_prompt("What is 3 + 4?")]
    answer = model_request_sync(model, history, model_request_parameters=tools,
                                model_settings={"max_tokens": 200, "temperature": 0, "parallel_tool_calls": False})
    (call,) = answer.tool_calls
    numbers = Sum(**call.args_as_dict())
    history += [answer, ModelRequest(parts=[ToolReturnPart(call.tool_name, numbers.a + numbers.b, call.tool_call_id)])]
    last = model_request_sync(model, history, model_settings={"max_tokens": 16})
    assert last.text and not last.tool_calls


def test_embeddings(openai_url):
    embedder = Embedder(OpenAIEmbeddingModel(MODEL, provider=OpenAIProvider(base_url=openai_url, api_key="none")))
    for one in embedder.embed_documents_sync(TEXTS).embeddings:
        assert math.isclose(math.hypot(*one), 1, rel_tol=1e-5)


@pytest.mark.parametrize("example", SECTIONS["pydantic-ai"])
def test_an_example_of_the_document_prints_an_answer(server, example):
    check_example(server, example)
