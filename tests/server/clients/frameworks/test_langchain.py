"""LangChain: ChatOpenAI by both of OpenAI's APIs, an agent's step, and embeddings."""

import math

import pytest
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAIEmbeddings

from client_document import SECTIONS, check_example
from told import MODEL, QUESTION, TEXTS, Dog, Sum


@tool(args_schema=Sum)
def add(a, b):
    """Adds two numbers."""
    return a + b


@pytest.fixture
def chat(openai_url):
    def make(max_tokens, **more):
        return ChatOpenAI(model=MODEL, base_url=openai_url, api_key="none", temperature=0, max_retries=0,
                          max_tokens=max_tokens, stream_usage=True, **more)

    return make


@pytest.mark.parametrize("responses", [False, True])
def test_an_answer_and_its_stream_are_the_same(chat, responses):
    model = chat(16, use_responses_api=responses)
    whole = model.invoke(QUESTION)
    parts = list(model.stream(QUESTION))
    streamed = parts[0]
    for part in parts[1:]:
        streamed += part
    assert whole.text and len(parts) > 2 and streamed.text == whole.text
    assert whole.usage_metadata["output_tokens"] == streamed.usage_metadata["output_tokens"] == 16
    assert whole.usage_metadata["input_tokens"] == streamed.usage_metadata["input_tokens"]


@pytest.mark.parametrize("responses", [False, True])
def test_a_step_of_an_agent(chat, responses):
    model = chat(200, use_responses_api=responses)
    history = [HumanMessage("What is 3 + 4?")]
    called = model.bind_tools([add], tool_choice="add", strict=True, parallel_tool_calls=False).invoke(history)
    (call,) = called.tool_calls
    result = add.invoke(call)
    assert isinstance(result, ToolMessage) and int(result.content) == call["args"]["a"] + call["args"]["b"]
    last = chat(16, use_responses_api=responses).bind_tools([add], tool_choice="none").invoke([*history, called, result])
    assert last.text and not last.tool_calls


@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
def test_a_model_of_data_is_the_output(chat, method):
    assert isinstance(chat(200).with_structured_output(Dog, method=method).invoke("Invent a dog."), Dog)


def test_log_probabilities(chat):
    shown = chat(5, logprobs=True, top_logprobs=2).invoke(QUESTION).response_metadata["logprobs"]["content"]
    assert len(shown) == 5 and all(len(token["top_logprobs"]) == 2 for token in shown)


def test_embeddings(openai_url):
    model = OpenAIEmbeddings(model=MODEL, base_url=openai_url, api_key="none", check_embedding_ctx_length=False)
    both = model.embed_documents(TEXTS)
    assert both[0] == pytest.approx(model.embed_query(TEXTS[0]))
    assert all(math.isclose(math.hypot(*one), 1, rel_tol=1e-5) for one in both)


@pytest.mark.parametrize("example", SECTIONS["LangChain"])
def test_an_example_of_the_document_prints_an_answer(server, example):
    check_example(server, example)
