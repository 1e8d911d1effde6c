"""What clients ask of the prefix cache: marks, keys and hints, seen from outside."""

import concurrent.futures
import signal
import time

import grpc
import httpx
import pytest

from tessera_server import TesseraServer, eventually

# Room for about three of these chats.
SMALL = ("--kv-memory", "8MiB", "--max-sequences", "2")


def words(name, count=60):
    return f"This is about {name} and the old lighthouse. " * count


def post(server, path, body):
    answer = httpx.post(server.http + path, json=body, timeout=120)
    assert answer.status_code == 200, answer.text
    return answer.json()


def cache(server):
    return httpx.get(server.http + "/v1/cache").json()


def chat(server, name, **fields):
    """Returns the cached tokens."""
    body = {"messages": [{"role": "user", "content": words(name)}], "max_tokens": 2,
            "temperature": 0}
    usage = post(server, "/v1/chat/completions", body | fields)["usage"]
    return usage["prompt_tokens_details"]["cached_tokens"]


def message(server, name, ttl=None, **fields):
    """Returns the usage."""
    mark = {"cache_control": {"type": "ephemeral", "ttl": ttl}} if ttl else {}
    body = {"system": [{"type": "text", "text": words(name)} | mark], "max_tokens": 2,
            "temperature": 0, "messages": [{"role": "user", "content": "Go on."}]}
    return post(server, "/v1/messages", body | fields)["usage"]


def crowd(server):
    """Other chats, until what nobody keeps is evicted."""
    before = cache(server)["evicted_units"]
    for i in range(40):
        chat(server, f"number {i}")
        if cache(server)["evicted_units"] > before + 40:
            return
    raise AssertionError(f"nothing was evicted: {cache(server)}")


@pytest.fixture(scope="module")
def small():
    with TesseraServer(*SMALL, "--kv-ladder", "none") as server:
        yield server


@pytest.fixture
def server(small):
    post(small, "/v1/cache/flush", {})
    return small


def test_a_mark_keeps_its_prefix_and_usage_tells_the_truth(server):
    first = message(server, "marks", "1h")
    created = first["cache_creation_input_tokens"]
    assert created > 100
    assert first["cache_creation"] == {"ephemeral_5m_input_tokens": 0,
                                       "ephemeral_1h_input_tokens": created}
    assert first["cache_read_input_tokens"] == 0
    assert cache(server)["pinned_units"] * cache(server)["unit_tokens"] == created
    crowd(server)
    again = message(server, "marks", "1h")
    assert again["cache_read_input_tokens"] == created
    assert again["cache_creation_input_tokens"] == 0
    assert again["input_tokens"] + created == first["input_tokens"] + created


def test_without_a_mark_nothing_is_kept(server):
    assert message(server, "nothing")["cache_creation_input_tokens"] == 0
    assert cache(server)["pinned_units"] == 0
    crowd(server)
    assert message(server, "nothing")["cache_read_input_tokens"] == 0


def test_a_stream_begins_with_the_same_usage(server):
    body = {"system": [{"type": "text", "text": words("streams"),
                        "cache_control": {"type": "ephemeral"}}],
            "messages": [{"role": "user", "content": "Go on."}], "max_tokens": 2, "stream": True}
    with httpx.stream("POST", server.http + "/v1/messages", json=body, timeout=60) as answer:
        events = [line for line in answer.iter_lines() if line.startswith("data: ")]
    assert '"cache_creation_input_tokens":0' not in events[0]
    start = events[0][events[0].index('"cache_creation_input_tokens"'):].split(',"output')[0]
    assert start in events[-2]


@pytest.mark.parametrize("fields", [{"prompt_cache_key": "chat-1"},
                                    {"prompt_cache_retention": "24h"},
                                    {"cache": {"retain": 60}}])
def test_a_key_a_retention_or_a_hint_keeps_a_chat(server, fields):
    chat(server, "kept", **fields)
    assert cache(server)["pinned_units"] > 0
    crowd(server)
    assert chat(server, "kept") > 100


def test_no_tenant_keeps_more_than_its_share_and_nothing_fails(server):
    for i in range(40):
        message(server, f"tenant {i}", "1h")
    report = cache(server)
    pinned = report["pinned_units"] * report["bytes"] / report["units"]
    whole = report["bytes"] + report["free_bytes"] - report["unused_bytes"]
    assert 0 < pinned <= 0.3 * whole
    assert message(server, "one more", "1h")["cache_creation_input_tokens"] == 0


def test_a_pin_ends_after_its_last_use(server):
    chat(server, "short", cache={"retain": 1})
    time.sleep(0.7)
    assert chat(server, "short") > 0
    time.sleep(0.7)
    assert cache(server)["pinned_units"] > 0, "renewed by the hit"
    time.sleep(0.5)
    chat(server, "a step that looks at the clock")
    assert cache(server)["pinned_units"] == 0


def test_what_is_released_goes_first(server):
    chat(server, "older")
    chat(server, "released", cache={"release": True})
    evicted = cache(server)["evicted_units"]
    i = 0
    while cache(server)["evicted_units"] == evicted:
        chat(server, f"pressure {i}")
        i += 1
    assert chat(server, "older") > 100


def test_a_chat_is_demoted_in_place():
    with TesseraServer("--kv-ladder", "k4v2") as server:
        chat(server, "other")
        before = cache(server)
        chat(server, "demoted", cache={"demote": True, "retain": 60})
        eventually(lambda: cache(server)["demoted_units"] > 10, "demotion")
        after = cache(server)
        low = {one["format"]: one["shared_bytes"] for one in after["formats"]}["k4v2"]
        assert low > 0
        assert before["demoted_units"] == 0
        assert after["evicted_units"] == 0
        assert chat(server, "demoted") > 100
        assert chat(server, "demoted", cache={"accept": "k8v4"}) == 0
        assert chat(server, "other", cache={"accept": "k8v4"}) > 100


def squeeze(server):
    """Two requests at once that take all memory but a third."""
    def ask(number):
        post(server, "/v1/completions", {"prompt": words(f"long {number}", 400), "max_tokens": 2,
                                         "truncate_prompt_tokens": -1})
    with concurrent.futures.ThreadPoolExecutor() as pool:
        list(pool.map(ask, range(2)))


def formats_of_pins(server):
    """Returns the formats of blocks that are in use while nothing runs."""
    report = cache(server)
    return {report["formats"][unit[2]]["format"] for unit in report["tree"]["units"] if unit[4]}


def test_pins_go_down_the_ladder_when_requests_lack_memory():
    with TesseraServer(*SMALL, "--kv-ladder", "k4v2") as server:
        chat(server, "kept", cache={"retain": 600})
        pinned = cache(server)["pinned_units"]
        assert formats_of_pins(server) == {"k8v4"}
        squeeze(server)
        assert formats_of_pins(server) == {"k4v2"}
        assert cache(server)["pinned_units"] == pinned
        assert chat(server, "kept") > 100


def test_pins_go_to_the_disk_when_requests_lack_memory(tmp_path):
    with TesseraServer(*SMALL, "--kv-ladder", "none", "--kv-disk", str(tmp_path)) as server:
        chat(server, "kept", cache={"retain": 600})
        assert cache(server)["pinned_units"] > 0
        squeeze(server)
        assert cache(server)["pinned_units"] == 0
        crowd(server)
        read = server.metric("tessera:kv_tier_read_units_total", tier="disk")
        assert chat(server, "kept") > 100
        assert server.metric("tessera:kv_tier_read_units_total", tier="disk") > read


def test_pins_stay_where_there_is_neither(server):
    chat(server, "kept", cache={"retain": 600})
    pinned = cache(server)["pinned_units"]
    squeeze(server)
    assert cache(server)["pinned_units"] == pinned
    assert chat(server, "kept") > 100


def test_a_prefetch_reads_from_the_disk_and_computes_nothing(tmp_path):
    flags = ("--kv-disk", str(tmp_path))
    with TesseraServer(*flags) as server:
        chat(server, "waiting")
        cached = chat(server, "waiting")
        server.signal(signal.SIGTERM)
        assert server.wait() == 0
    with TesseraServer(*flags) as server:
        assert cache(server)["units"] == 0
        body = {"messages": [{"role": "user", "content": words("waiting")}],
                "cache": {"prefetch": True}}
        answer = post(server, "/v1/chat/completions", body)
        assert answer["usage"]["completion_tokens"] == 0
        assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == cached
        assert answer["choices"][0]["finish_reason"] == "length"
        assert cache(server)["units"] > 0
        read = server.metric("tessera:kv_tier_read_units_total", tier="disk")
        assert server.metric("vllm:prompt_tokens_total") == 0 or read > 0
        assert chat(server, "waiting") == cached
        assert server.metric("tessera:kv_tier_read_units_total", tier="disk") == read


def test_hints_of_other_dialects(tmp_path):
    with TesseraServer("--kv-disk", str(tmp_path)) as server:
        text = words("dialects")
        post(server, "/v1/responses", {"input": text, "max_output_tokens": 2, "store": False,
                                       "prompt_cache_key": "r", "prompt_cache_retention": "24h"})
        assert cache(server)["pinned_units"] > 0
        usage = message(server, "dialects", cache={"prefetch": True})
        assert usage["output_tokens"] == 0
        pinned = cache(server)["pinned_units"]
        post(server, "/v1/completions", {"prompt": text, "max_tokens": 2, "cache": {"retain": 9}})
        assert cache(server)["pinned_units"] > pinned


def test_grpc_has_the_hints_and_shows_the_tiers(tmp_path, wire):
    with TesseraServer("--kv-disk", str(tmp_path), "--kv-host-memory", "64MiB") as server:
        with grpc.insecure_channel(server.grpc) as channel:
            stub = wire[1].InferenceStub(channel)
            request = wire[0].GenerateRequest(text=words("wire"), max_tokens=2)
            request.cache.retain_seconds = 60
            list(stub.Generate(request, timeout=60))
            info = stub.GetCacheInfo(wire[0].GetCacheInfoRequest())
            assert info.pinned_units > 0
            assert [tier.tier for tier in info.tiers] == ["host", "disk"]
            assert info.tiers[1].limit_bytes > info.tiers[1].bytes > 0
            request.cache.release = True
            list(stub.Generate(request, timeout=60))
            assert stub.GetCacheInfo(wire[0].GetCacheInfoRequest()).pinned_units == 0
            request.cache.prefetch = True
            last = list(stub.Generate(request, timeout=60))[-1]
            assert last.usage.completion_tokens == 0
            assert last.usage.cached_tokens > 0
