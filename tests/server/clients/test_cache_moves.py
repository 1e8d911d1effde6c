"""A prefix moves to another server as a file."""

import struct

import httpx
import pytest

from tessera_server import TesseraServer
from test_cache_hints import cache, chat, post, words

TIER = ("--kv-host-memory", "64MiB")
# More than one part of a file.
LONG = {"prompt": words("a long way", 400), "truncate_prompt_tokens": -1, "max_tokens": 4,
        "temperature": 0, "logprobs": 5}


def exported(server, body):
    answer = httpx.post(server.http + "/v1/cache/export", json=body, timeout=60)
    assert answer.status_code == 200, answer.text
    return answer.content


def imported(server, file):
    return httpx.post(server.http + "/v1/cache/import", content=file, timeout=60,
                      headers={"Content-Type": "application/octet-stream"})


def parts_of(file):
    parts = []
    while file:
        size, = struct.unpack_from("<Q", file, 8)
        parts.append(file[:size])
        file = file[size:]
    return parts


def answer_of(server):
    """Returns text, log probabilities and cached tokens."""
    body = post(server, "/v1/completions", LONG)
    choice = body["choices"][0]
    return (choice["text"], choice["logprobs"]["token_logprobs"],
            body["usage"]["prompt_tokens_details"]["cached_tokens"])


@pytest.fixture(scope="module")
def source():
    with TesseraServer(*TIER) as server:
        answer_of(server)
        yield server


def test_a_prefix_moves_with_equal_bits(source):
    text, numbers, cached = answer_of(source)
    assert cached > 1900
    file = exported(source, LONG)
    assert len(parts_of(file)) > 1
    with TesseraServer(*TIER) as target:
        answer = imported(target, file)
        assert answer.status_code == 200, answer.text
        assert answer.json()["tokens"] == cached
        assert cache(target)["units"] == answer.json()["units"]
        assert exported(target, LONG) == file
        assert answer_of(target) == (text, numbers, cached)
        assert imported(target, file).json() == answer.json(), "once more changes nothing"


def test_a_chat_moves_under_its_salt(source):
    fields = {"cache_salt": "one"}
    chat(source, "moving", **fields)
    body = {"messages": [{"role": "user", "content": words("moving")}]} | fields
    file = exported(source, body)
    with TesseraServer(*TIER) as target:
        assert imported(target, file).status_code == 200
        assert chat(target, "moving", cache_salt="two") == 0
        assert chat(target, "moving", **fields) > 100


def test_parts_come_in_order(source):
    first, second = parts_of(exported(source, LONG))
    with TesseraServer(*TIER) as target:
        answer = imported(target, second)
        assert answer.status_code == 400
        assert "import the parts before it first" in answer.text
        assert imported(target, first).status_code == 200
        assert imported(target, second).status_code == 200
        assert answer_of(target)[2] > 1900


def test_damaged_and_foreign_files_are_refused_with_a_sentence(source):
    body = {"prompt": words("damage"), "max_tokens": 1}
    post(source, "/v1/completions", body)
    file = exported(source, body)
    with TesseraServer(*TIER) as target:
        for at in [*range(0, 90), 200, len(file) // 2, len(file) - 40, len(file) - 1]:
            answer = imported(target, file[:at] + bytes([file[at] ^ 0x10]) + file[at + 1:])
            assert answer.status_code == 400, at
            assert "file" in answer.json()["error"]["message"]
        for cut in [0, 7, 8, 71, 72, 1000, len(file) - 1]:
            assert imported(target, file[:cut]).status_code == 400
        assert imported(target, file + b"more").status_code == 400
        assert cache(target)["units"] <= struct.unpack_from("<I", file, 52)[0]
    with TesseraServer(*TIER, "--kv", "f16") as target:
        answer = imported(target, file)
        assert answer.status_code == 400
        assert "another checkpoint, version, CPU or KV setting" in answer.text
        assert cache(target)["units"] == 0
    with TesseraServer() as target:
        assert "kv-host-memory or kv-disk" in imported(target, file).text
        chat(target, "no tier")
        answer = httpx.post(target.http + "/v1/cache/export", json=body)
        assert (answer.status_code, "kv-host-memory" in answer.text) == (400, True)


def test_a_prefetch_truncates_as_its_answer_does(source):
    ahead = LONG | {"cache": {"prefetch": True}, "max_tokens": 100}
    del ahead["logprobs"]
    before = post(source, "/v1/completions", ahead)["usage"]
    assert before["completion_tokens"] == 0
    assert before["prompt_tokens"] < post(source, "/v1/completions", LONG)["usage"]["prompt_tokens"]


def test_what_is_not_cached_is_not_found(source):
    answer = httpx.post(source.http + "/v1/cache/export", json={"prompt": words("nowhere")})
    assert (answer.status_code, "nothing is exported" in answer.text) == (404, True)
    several = httpx.post(source.http + "/v1/cache/export", json={"prompt": ["a", "b"]})
    assert several.status_code == 400


def test_a_prefix_comes_from_the_disk_and_goes_to_a_busy_server(source, tmp_path):
    file = exported(source, LONG)
    with TesseraServer("--kv-disk", str(tmp_path), "--kv-memory", "8MiB",
                       "--max-sequences", "2") as target:
        for i in range(6):
            chat(target, f"busy {i}")
        assert imported(target, file).status_code == 200
        for i in range(20):
            chat(target, f"busier {i}")
        assert exported(target, LONG)[:8] == b"TSRAPFX1"
        assert answer_of(target)[2] > 1900
