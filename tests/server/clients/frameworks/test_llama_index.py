"""LlamaIndex: OpenAILike, an agent, data of a model, and an index of embeddings that is asked."""

import pytest
from llama_index.core import Document, VectorStoreIndex
from llama_index.core.llms import ChatMessage
from llama_index.core.program import FunctionCallingProgram
from llama_index.core.tools import FunctionTool
from llama_index.embeddings.openai_like import OpenAILikeEmbedding
from llama_index.llms.openai_like import OpenAILike

from client_document import SECTIONS, check_example
from told import MODEL, QUESTION, TEXTS, Dog, Sum


@pytest.fixture
def make(openai_url):
    def make(max_tokens, **more):
        return OpenAILike(model=MODEL, api_base=openai_url, api_key="none", is_chat_model=True, max_tokens=max_tokens,
                          context_window=1024, temperature=0, max_retries=0, is_function_calling_model=True, **more)

    return make


def test_an_answer_and_its_stream_are_the_same(make):
    model = make(12)
    whole = model.chat([ChatMessage(role="user", content=QUESTION)]).message.content
    assert whole and list(model.stream_chat([ChatMessage(role="user", content=QUESTION)]))[-1].message.content == whole


def test_a_completion_and_its_stream_are_the_same(openai_url):
    model = OpenAILike(model=MODEL, api_base=openai_url, api_key="none", max_tokens=12, temperature=0, max_retries=0)
    whole = model.complete("Once upon a time").text
    assert whole and list(model.stream_complete("Once upon a time"))[-1].text == whole


def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


ADD = FunctionTool.from_defaults(add, fn_schema=Sum)


def test_a_step_of_an_agent(make):
    history = [ChatMessage(role="user", content="What is 3 + 4?")]
    model = make(200)
    answer = model.chat_with_tools([ADD], chat_history=history, tool_required=True, allow_parallel_tool_calls=False)
    (call,) = model.get_tool_calls_from_response(answer)
    numbers = Sum(**call.tool_kwargs)
    result = ADD(**call.tool_kwargs)
    assert call.tool_name == "add" and result.raw_output == numbers.a + numbers.b
    history += [answer.message, ChatMessage(role="tool", content=str(result), additional_kwargs={"tool_call_id": call.tool_id})]
    assert make(8).chat(history).message.content


def test_a_model_of_data_is_the_output(make):
    program = FunctionCallingProgram.from_defaults(output_cls=Dog, prompt_template_str="Invent a dog.", llm=make(200), tool_required=True)
    assert isinstance(program(), Dog)
    assert isinstance(make(200).as_structured_llm(Dog).chat([ChatMessage(role="user", content="Invent a dog.")]).raw, Dog)


def test_an_index_is_searched_and_asked(make, openai_url):
    embeddings = OpenAILikeEmbedding(model_name=MODEL, api_base=openai_url, api_key="none", max_retries=0)
    index = VectorStoreIndex.from_documents([Document(text=text) for text in TEXTS], embed_model=embeddings)
    (found,) = index.as_retriever(similarity_top_k=1, embed_model=embeddings).retrieve(TEXTS[1])
    assert found.text == TEXTS[1] and found.score > 0.999
    assert str(index.as_query_engine(llm=make(12), embed_model=embeddings, similarity_top_k=1).query("What falls?"))


@pytest.mark.parametrize("example", SECTIONS["LlamaIndex"])
def test_an_example_of_the_document_prints_an_answer(server, example):
    check_example(server, example)
