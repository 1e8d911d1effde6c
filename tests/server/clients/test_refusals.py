"""Bad requests and bad moments, as the official client's exceptions and as bytes on the wire."""

import json
import socket

import grpc
import httpx
import openai
import pytest

from tessera_server import PATIENCE, TesseraServer, eventually
from test_lifetime import refusal

CHAT = [{"role": "user", "content": "Hi"}]
ENDLESS = {"prompt": "Once upon a time", "max_tokens": 2000, "ignore_eos": True, "stream": True}


def chat(client, **more):
    return client.chat.completions.create(**({"model": "tessera-tiny", "messages": CHAT} | more))


@pytest.mark.parametrize("fields, named", [
    ({"temperature": -1}, "temperature"),
    ({"temperature": "hot"}, "temperature"),
    ({"top_p": 0}, "top_p"),
    ({"n": 0}, "n"),
    ({"n": 100_000}, "n"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"stop": [""]}, "stop"),
    ({"logit_bias": {"dog": 1}}, "logit_bias"),
    ({"logit_bias": {"1": 1000}}, "logit_bias.1"),
    ({"top_logprobs": 3}, "top_logprobs"),
    ({"logprobs": True, "top_logprobs": 1000}, "top_logprobs"),
    ({"stream_options": {"include_usage": True}}, "stream_options"),
    ({"messages": []}, "messages"),
    ({"messages": [{"role": "user"}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
     "messages[0].content[0]"),
    ({"tools": [{"type": "web_search"}]}, "tools[0]"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"response_format": {"type": "xml"}}, "response_format.type"),
    ({"modalities": ["audio"]}, "modalities"),
    ({"web_search_options": {}}, "web_search_options"),
    ({"extra_body": {"guided_regex": "(" * 40}}, "guided_regex"),
    ({"extra_body": {"guided_json": {"not": {}}}}, "guided_json"),
    ({"extra_body": {"temprature": 1}}, "temprature"),
    ({"messages": [{"role": "user", "content": "x", "colour": "red"}]}, "messages[0].colour"),
])
def test_a_bad_field_is_named(client, fields, named):
    with pytest.raises(openai.BadRequestError) as error:
        chat(client, **fields)
    assert error.value.param == named
    assert named in error.value.body["message"]
    assert error.value.type == "invalid_request_error"


def test_a_prompt_that_is_too_long_says_both_numbers(client):
    with pytest.raises(openai.BadRequestError) as error:
        chat(client, messages=[{"role": "user", "content": "word " * 3000}])
    assert "2048" in str(error.value)
    assert any(int(number) > 2048 for number in
               error.value.body["message"].replace(",", " ").split() if number.isdigit())


def test_models_and_methods_that_do_not_exist_are_refused(client):
    with pytest.raises(openai.NotFoundError):
        chat(client, model="gpt-4")
    with pytest.raises(openai.NotFoundError):
        client.embeddings.create(model="gpt-4", input="x")
    with pytest.raises(openai.APIStatusError) as error:
        client.get("/chat/completions", cast_to=object)
    assert error.value.status_code == 405


@pytest.mark.parametrize("body", [
    "", "{", "[]", '"x"', '{"prompt": "a"} x', "\x00", '{"prompt": "\\ud800', "[" * 100_000])
def test_a_body_that_is_no_json_object_is_a_400(server, body):
    for route in ("completions", "chat/completions"):
        answer = httpx.post(f"{server.http}/v1/{route}", content=body)
        assert answer.status_code == 400
        assert answer.json()["error"]["message"]


def test_a_body_and_a_head_beyond_the_limits(server):
    answer = httpx.post(server.http + "/v1/completions", content=b" " * (9 << 20))
    assert answer.status_code == 413
    assert str(8 << 20) in answer.json()["error"]["message"]
    answer = httpx.get(server.http + "/health", headers={"X-Long": "x" * (17 << 10)})
    assert answer.status_code == 431
    assert str(16 << 10) in answer.json()["error"]["message"]


def test_bytes_that_are_no_http(server):
    host, port = server.http.removeprefix("http://").split(":")
    for noise in (b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n", b"HELO there\r\n\r\n", b"GET / HTTP/9\r\n\r\n"):
        with socket.create_connection((host, int(port)), timeout=PATIENCE) as connection:
            connection.sendall(noise)
            assert connection.recv(4096).startswith(b"HTTP/1.1 400 ")
    assert httpx.get(server.http + "/health").status_code == 200


def open_request(server, body):
    host, port = server.http.removeprefix("http://").split(":")
    text = json.dumps(body).encode()
    connection = socket.create_connection((host, int(port)), timeout=PATIENCE)
    connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%s"
                       % (len(text), text))
    return connection


def test_a_full_queue_is_told_and_does_not_stay():
    with TesseraServer("--max-sequences", "1", "--max-queue", "1") as server:
        client = openai.OpenAI(base_url=server.http + "/v1", api_key="none", max_retries=0)
        open_ones = [open_request(server, ENDLESS)]
        eventually(lambda: server.running() == 1, "the first runs")
        open_ones.append(open_request(server, ENDLESS))
        eventually(lambda: server.metric("vllm:num_requests_waiting") == 1, "the second waits")

        with pytest.raises(openai.RateLimitError) as error:
            chat(client)
        assert int(error.value.response.headers["retry-after"]) >= 1
        with grpc.insecure_channel(server.grpc) as channel:
            generate = channel.unary_stream("/tessera.v1.Inference/Generate")
            with pytest.raises(grpc.RpcError) as refused:
                list(generate(b"\x12\x01a", timeout=PATIENCE))  # GenerateRequest{text: "a"}
        assert refused.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert server.metric("tessera:requests_rejected_total", code="RESOURCE_EXHAUSTED") == 2

        for connection in open_ones:
            connection.close()
        eventually(lambda: server.bytes_in_use() == 0, "the pages are free")
        assert chat(client, max_tokens=1).usage.completion_tokens == 1


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_in_prefill_frees_its_pages(stream):
    with TesseraServer("--max-step-tokens", "8", "--max-sequences", "8") as server:
        prompt = [300 + i % 1000 for i in range(2000)]  # 250 steps
        connections = [open_request(server, {"prompt": prompt, "max_tokens": 8, "stream": stream})
                       for _ in range(8)]
        eventually(lambda: server.bytes_in_use() > 0, "the first is in its prefill")
        for connection in connections:
            connection.close()
        eventually(lambda: server.bytes_in_use() == 0, "the pages are free")
        assert server.metric("vllm:num_requests_waiting") == server.running() == 0
        assert server.metric("vllm:generation_tokens_total") == 0
        assert server.metric("vllm:prompt_tokens_total") < 8 * len(prompt)


def test_a_client_that_sends_its_body_slowly_holds_nobody_up(server, client):
    host, port = server.http.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=PATIENCE) as slow:
        slow.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{")
        assert chat(client, max_tokens=1).usage.completion_tokens == 1


def test_a_template_with_something_unknown_is_refused_at_load(tmp_path):
    template = tmp_path / "odd.jinja"
    template.write_text("{% for m in messages %}\n{{ m.content | shout }}{% endfor %}")
    said = refusal("--chat-template", str(template))
    assert "shout" in said and "line 2" in said
