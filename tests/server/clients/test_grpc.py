"""A grpcio client with stubs that are generated here."""

import concurrent.futures

import grpc
import pytest

from tessera_server import PATIENCE, eventually

STREAMS = 64


def request(wire, **more):
    fields = {"text": "Once upon a time", "max_tokens": 24} | more
    made = wire[0].GenerateRequest(**fields)
    made.sampling.temperature = 0
    return made


def test_streams(stub, wire, client):
    messages = list(stub.Generate(request(wire), timeout=PATIENCE))
    *deltas, last = messages
    assert all(m.finish_reason == wire[0].FINISH_REASON_UNSPECIFIED for m in deltas)
    assert last.finish_reason == wire[0].FINISH_REASON_LENGTH
    assert last.usage.completion_tokens == 24
    assert len({m.request_id for m in messages}) == 1
    ids = [token for m in messages for token in m.token_ids]
    assert len(ids) == 24

    text = "".join(m.text for m in messages)
    over_http = client.completions.create(
        model="tessera-tiny", prompt="Once upon a time", max_tokens=24, temperature=0)
    assert text == over_http.choices[0].text
    assert stub.Detokenize(wire[0].DetokenizeRequest(ids=ids)).text.strip() == text.strip()


def test_chats(stub, wire, client):
    chat = wire[0].Chat(messages=[wire[0].ChatMessage(role="user", content="Tell me a story.")])
    asked = request(wire, chat=chat)
    text = "".join(m.text for m in stub.Generate(asked, timeout=PATIENCE))
    over_http = client.chat.completions.create(
        model="tessera-tiny", messages=[{"role": "user", "content": "Tell me a story."}],
        max_tokens=24, temperature=0)
    assert text == over_http.choices[0].message.content


def test_takes_token_ids(stub, wire):
    ids = stub.Tokenize(wire[0].TokenizeRequest(text="Once upon a time")).ids
    given = request(wire, tokens=wire[0].TokenIds(ids=ids))
    first = "".join(m.text for m in stub.Generate(given, timeout=PATIENCE))
    second = "".join(m.text for m in stub.Generate(request(wire), timeout=PATIENCE))
    assert first == second


def test_the_first_tokens_come_long_before_the_last(stub, wire):
    call = stub.Generate(request(wire, max_tokens=1000, ignore_eos=True), timeout=PATIENCE)
    assert 0 < len(next(call).token_ids) < 500
    call.cancel()


def test_a_cancelled_call_frees_its_pages(stub, wire, server):
    call = stub.Generate(request(wire, max_tokens=2000, ignore_eos=True), timeout=PATIENCE)
    next(call)
    call.cancel()
    eventually(lambda: server.bytes_in_use() == 0, "pages")
    assert server.running() == 0


def test_a_deadline_frees_its_pages(stub, wire, server):
    with pytest.raises(grpc.RpcError) as error:
        list(stub.Generate(request(wire, max_tokens=2000, ignore_eos=True), timeout=0.2))
    assert error.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
    eventually(lambda: server.bytes_in_use() == 0, "pages")


def test_abort(stub, wire, server):
    call = stub.Generate(
        request(wire, max_tokens=2000, ignore_eos=True, request_id="mine"), timeout=PATIENCE)
    messages = [next(call)]
    assert stub.Abort(wire[0].AbortRequest(request_id="mine")).found
    messages += call
    assert messages[-1].finish_reason == wire[0].FINISH_REASON_CANCELLED
    assert 0 < messages[-1].usage.completion_tokens < 2000
    eventually(lambda: server.bytes_in_use() == 0, "pages")


def test_a_prompt_longer_than_the_context_is_refused_with_both_numbers(stub, wire):
    with pytest.raises(grpc.RpcError) as error:
        list(stub.Generate(request(wire, tokens=wire[0].TokenIds(ids=[5] * 3000))))
    assert error.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert "3000" in error.value.details() and "2048" in error.value.details()


def test_describes_model_and_server(stub, wire):
    model = stub.GetModelInfo(wire[0].GetModelInfoRequest())
    assert (model.name, model.architecture) == ("tessera-tiny", "LlamaForCausalLM")
    assert model.context == 2048 and model.vocab_size == 4096
    info = stub.GetServerInfo(wire[0].GetServerInfoRequest())
    assert info.ready and info.kv_cache.pages_total > 0


def cached(stub, wire, **cache):
    asked = request(wire, text="The old man and the sea. " * 40, max_tokens=4)
    for name, value in cache.items():
        setattr(asked.cache, name, value)
    return list(stub.Generate(asked, timeout=PATIENCE))[-1].usage


def test_a_second_time_the_prompt_comes_from_the_cache(stub, wire):
    first = cached(stub, wire, salt="grpc")
    again = cached(stub, wire, salt="grpc")
    assert first.cached_tokens == 0
    unit = stub.GetCacheInfo(wire[0].GetCacheInfoRequest()).unit_tokens
    assert again.cached_tokens == (again.prompt_tokens - 1) // unit * unit > 0
    assert cached(stub, wire, salt="another").cached_tokens == 0
    assert cached(stub, wire, salt="grpc", use=False).cached_tokens == 0


def test_the_cache_tells_what_it_holds(stub, wire):
    before = stub.GetCacheInfo(wire[0].GetCacheInfoRequest())
    usage = [cached(stub, wire, salt="told", pin=True, ttl_seconds=600) for _ in range(2)][1]
    after = stub.GetCacheInfo(wire[0].GetCacheInfoRequest())
    assert after.query_tokens - before.query_tokens == 2 * usage.prompt_tokens
    assert after.hit_tokens - before.hit_tokens == usage.cached_tokens
    assert after.entered_units > before.entered_units
    assert 0 < after.pinned_units <= after.units and 0 < after.unused_bytes <= after.bytes


def test_a_flush_takes_pinned_prefixes_too(stub, wire):
    cached(stub, wire, salt="flushed", pin=True)
    stub.FlushCache(wire[0].FlushCacheRequest())
    eventually(lambda: stub.GetCacheInfo(wire[0].GetCacheInfoRequest()).units == 0, "units")
    assert cached(stub, wire, salt="flushed").cached_tokens == 0


@pytest.mark.parametrize("cache,names", [
    ({"ttl_seconds": 0}, "cache.ttl_seconds"),
    ({"ttl_seconds": 86401}, "86400"),
    ({"accept": "k3v3"}, "k3v3"),
])
def test_cache_options_out_of_range_are_refused_by_name(stub, wire, cache, names):
    with pytest.raises(grpc.RpcError) as error:
        cached(stub, wire, **cache)
    assert error.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert names in error.value.details()


# Every second stream is greedy.
def test_many_streams_complete_and_do_not_mix(stub, wire):
    def text(i):
        asked = request(wire, text=f"There was a box with {i} toys. One day", max_tokens=40)
        asked.sampling.temperature = i % 2
        asked.sampling.seed = i
        return "".join(m.text for m in stub.Generate(asked, timeout=PATIENCE))

    alone = [text(i) for i in range(STREAMS)]
    with concurrent.futures.ThreadPoolExecutor(STREAMS) as threads:
        together = list(threads.map(text, range(STREAMS)))
    assert together == alone
    assert len(set(alone)) >= STREAMS // 2, "texts must differ to show that none is mixed up"
