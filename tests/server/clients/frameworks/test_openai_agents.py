"""openai-agents: a loop of an agent over both of OpenAI's APIs, with the settings that only it sends."""

import asyncio
from typing import Literal

import pytest
from agents import Agent, ModelSettings, OpenAIChatCompletionsModel, OpenAIResponsesModel, Runner, WebSearchTool
from agents import function_tool, set_tracing_disabled
from openai import AsyncOpenAI

from told import MODEL, QUESTION, Dog

set_tracing_disabled(True)
LOOP = asyncio.new_event_loop()  # of all calls of one client


@pytest.fixture(params=[OpenAIChatCompletionsModel, OpenAIResponsesModel])
def model(request, openai_url):
    return request.param(MODEL, AsyncOpenAI(base_url=openai_url, api_key="none", max_retries=0))


def settings(stop=".", **more):
    # An answer that ends at max_tokens is an error of this client.
    return ModelSettings(temperature=0, store=True, metadata={"run": "1"}, verbosity="low", max_tokens=200,
                         prompt_cache_retention="24h", extra_body={"stop": [stop]}, **more)


def run(*asked):
    return LOOP.run_until_complete(Runner.run(*asked, max_turns=3))


def test_a_call_and_its_result_lead_to_an_answer(model):
    @function_tool
    def add(a: Literal["three"], b: Literal["four"]) -> str:
        """Adds two numbers."""
        return "seven"

    caller = Agent("Adder", model=model, tools=[add], tool_use_behavior="stop_on_first_tool",
                   model_settings=settings(tool_choice="required", parallel_tool_calls=False))
    called = run(caller, "What is 3 + 4?")
    assert [type(item).__name__ for item in called.new_items] == ["ToolCallItem", "ToolCallOutputItem"]
    teller = Agent("Teller", instructions="Be brief.", model=model, model_settings=settings(stop=" "))
    assert len(run(teller, called.to_input_list()).raw_responses) == 1


def test_a_type_is_the_output(model):
    agent = Agent("Inventor", model=model, output_type=Dog, model_settings=settings())
    assert isinstance(run(agent, "Invent a dog.").final_output, Dog)


def test_a_hosted_tool_is_left_out(openai_url):
    model = OpenAIResponsesModel(MODEL, AsyncOpenAI(base_url=openai_url, api_key="none", max_retries=0))
    agent = Agent("Searcher", model=model, tools=[WebSearchTool()], model_settings=settings())
    assert run(agent, QUESTION).final_output
