"""LiteLLM's proxy between a client and the server: its own process, keys and model names."""

import contextlib
import json
import os
import pathlib
import socket
import subprocess
import sys

import openai
import pytest

from tessera_server import eventually
from told import CHAT, MODEL, Sum

TOOL = {"type": "function", "function": {"name": "add", "description": "adds two numbers",
                                         "parameters": Sum.model_json_schema(), "strict": True}}


def answers(port):
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


@pytest.fixture(scope="module")
def client(server, tmp_path_factory):
    folder = tmp_path_factory.mktemp("proxy")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    models = [{"model_name": "small", "litellm_params": {"model": "openai/" + MODEL, "api_base": server.http + "/v1",
                                                         "api_key": "none"}}]
    settings = {"model_list": models, "general_settings": {"master_key": "sk-of-the-proxy"}}
    (folder / "config.yaml").write_text(json.dumps(settings))
    program = pathlib.Path(sys.executable).with_name("litellm")
    with open(folder / "log", "w", encoding="utf-8") as log:
        proxy = subprocess.Popen([program, "--config", folder / "config.yaml", "--host", "127.0.0.1", "--port", str(port)],
                                 stdout=log, stderr=log, cwd=folder, env=os.environ | {"HOME": str(folder)})
        try:
            eventually(lambda: answers(port) or proxy.poll() is not None, "the proxy listens")
            assert proxy.poll() is None, (folder / "log").read_text()
            yield openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="sk-of-the-proxy", max_retries=0)
        finally:
            proxy.terminate()
            proxy.wait()


def test_an_answer_and_its_stream_are_the_same(client):
    asked = {"model": "small", "messages": CHAT, "temperature": 0, "max_tokens": 12}
    whole = client.chat.completions.create(**asked)
    chunks = list(client.chat.completions.create(**asked, stream=True))
    text = whole.choices[0].message.content
    assert text and "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == text
    assert whole.usage.completion_tokens == 12


def test_a_call_goes_through(client):
    asked = {"model": "small", "messages": CHAT, "temperature": 0, "max_tokens": 200, "tools": [TOOL]}
    answer = client.chat.completions.create(**asked, tool_choice="required", parallel_tool_calls=False)
    (call,) = answer.choices[0].message.tool_calls
    assert Sum.model_validate_json(call.function.arguments)


def test_a_refusal_names_the_field(client):
    with pytest.raises(openai.BadRequestError, match="temperature"):
        client.chat.completions.create(model="small", messages=CHAT, temperature=-1)
