"""smolagents: an agent that calls tools, and one whose steps are code."""

import pytest
from smolagents import CodeAgent, LogLevel, OpenAIModel, ToolCallingAgent, tool

from told import CHAT, MODEL, QUESTION


@tool
def add(a: int, b: int) -> int:
    """Adds two numbers.

    Args:
        a: the first number
        b: the second number
    """
    return a + b


@pytest.fixture
def model(openai_url):
    return OpenAIModel(MODEL, api_base=openai_url, api_key="none", temperature=0, max_tokens=100)


def test_an_answer_and_its_stream_are_the_same(model):
    whole = model.generate(CHAT)
    streamed = "".join(delta.content or "" for delta in model.generate_stream(CHAT))
    assert whole.content and streamed == whole.content
    assert whole.token_usage.output_tokens > 0


def test_a_step_calls_a_tool(model):
    agent = ToolCallingAgent(tools=[add], model=model, max_steps=1, instructions="Be brief.", verbosity_level=LogLevel.OFF)
    agent.prompt_templates["system_prompt"] = "You call tools."  # its own is longer than this model's context
    result = agent.run(QUESTION, return_full_result=True)
    assert result.steps[1]["tool_calls"], result.steps


def test_a_step_that_is_code_ends_at_its_stop(model):
    agent = CodeAgent(tools=[add], model=model, max_steps=1, verbosity_level=LogLevel.OFF)
    agent.prompt_templates["system_prompt"] = "You write code."
    result = agent.run(QUESTION, return_full_result=True)
    assert result.token_usage.output_tokens > 0
