"""Embeddings by the openai client and over gRPC, against transformers' and against each other."""

import json
import math
import struct

import httpx
import openai
import pytest

from tessera_server import ROOT, TesseraServer

TEXTS = ["The sky is blue.", "Once upon a time", "Tom likes red apples. " * 12]


@pytest.fixture(scope="module")
def exact():
    """A server that rounds nothing: f32 weights and an f32 cache."""
    with TesseraServer("--weights", "f32", "--kv", "f32") as started:
        yield started


def post(server, **body):
    return httpx.post(server.http + "/v1/embeddings", json=body, timeout=60)


def embeddings(server, **body):
    return [one["embedding"] for one in post(server, **body).raise_for_status().json()["data"]]


def test_the_openai_client_gets_unit_vectors(client):
    answer = client.embeddings.create(model="tessera-tiny", input=TEXTS)  # asks for base64
    assert [one.index for one in answer.data] == [0, 1, 2]
    for one in answer.data:
        assert len(one.embedding) == 256
        assert math.isclose(sum(x * x for x in one.embedding), 1, rel_tol=1e-5)
    assert answer.usage.total_tokens == answer.usage.prompt_tokens > 20
    numbers = client.embeddings.create(model="tessera-tiny", input=TEXTS, encoding_format="float")
    assert [one.embedding for one in numbers.data] == [pytest.approx(list(one.embedding)) for one in answer.data]
    short = client.embeddings.create(model="tessera-tiny", input=TEXTS[0], dimensions=8)
    assert len(short.data[0].embedding) == 8
    with pytest.raises(openai.BadRequestError, match="this model's embeddings have 256"):
        client.embeddings.create(model="tessera-tiny", input="x", dimensions=257)


@pytest.mark.parametrize("pooling", ["last", "mean"])
def test_they_are_those_of_transformers(exact, pooling):
    golden = json.loads((ROOT / "tests/golden/tessera_tiny.json").read_text())
    cases = golden["cases"]
    found = embeddings(exact, input=[case["ids"] for case in cases], pooling=pooling, normalize=False)
    for values, case in zip(found, cases):
        expected = case["embeddings"][pooling]
        assert math.isclose(math.hypot(*values), expected["norm"], rel_tol=1e-4), case["name"]
        assert values[::4] == pytest.approx(expected["strided"], abs=1e-4 * expected["norm"]), case["name"]


@pytest.mark.parametrize("pooling", ["last", "mean", "cls"])
def test_a_hit_of_the_prefix_cache_changes_no_bit(server, pooling):
    salt = {"cache_salt": "hit " + pooling}
    first = post(server, input=TEXTS[2], pooling=pooling, **salt).json()
    again = post(server, input=TEXTS[2], pooling=pooling, **salt).json()
    assert again["data"] == first["data"]
    cached = again["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert (cached > 0) == (pooling == "last")


def test_a_thousand_inputs_are_one_request(server):
    texts = [f"{i} birds sing in {i % 7} trees." for i in range(1000)]
    answer = post(server, input=texts, pooling="mean").raise_for_status().json()
    assert [one["index"] for one in answer["data"]] == list(range(1000))
    for i in (0, 511, 999):
        assert embeddings(server, input=texts[i], pooling="mean") == [answer["data"][i]["embedding"]]


def test_grpc_gives_the_same(server, stub, wire):
    t = wire[0]
    for pooling in ("last", "mean", "cls"):
        request = t.EmbedRequest(inputs=[t.EmbedInput(text=text) for text in TEXTS],
                                 pooling=t.Pooling.Value("POOLING_" + pooling.upper()))
        answer = stub.Embed(request, timeout=60)
        over_http = embeddings(server, input=TEXTS, pooling=pooling)
        as_f32 = [list(struct.unpack(f"{len(v)}f", struct.pack(f"{len(v)}f", *v))) for v in over_http]
        assert [list(one.values) for one in answer.embeddings] == as_f32
        assert answer.model == "tessera-tiny"


def test_scores_are_the_cosines_of_embeddings(server):
    query, *documents = embeddings(server, input=TEXTS)
    cosines = [sum(a * b for a, b in zip(query, document)) for document in documents]
    pairs = httpx.post(server.http + "/v1/score", json={"text_1": TEXTS[0], "text_2": TEXTS[1:]}, timeout=60).json()
    assert [one["score"] for one in pairs["data"]] == pytest.approx(cosines, abs=1e-6)
    ranked = httpx.post(server.http + "/v1/rerank", json={"query": TEXTS[0], "documents": TEXTS[1:]}, timeout=60).json()
    order = sorted(range(len(cosines)), key=lambda i: -cosines[i])
    assert [one["index"] for one in ranked["results"]] == order
    assert [one["document"]["text"] for one in ranked["results"]] == [TEXTS[1 + i] for i in order]
    scores = [one["relevance_score"] for one in ranked["results"]]
    assert scores == pytest.approx([cosines[i] for i in order], abs=1e-6)
    assert ranked["usage"] == pairs["usage"] | {"prompt_tokens_details": ranked["usage"]["prompt_tokens_details"]}


def test_a_server_without_pooling_and_one_with_little_memory_refuse():
    with TesseraServer("--pooling", "none", "--max-answer", "16KiB") as small:
        refused = post(small, input="x")
        assert refused.status_code == 501 and "--pooling is none" in refused.text
        body = {"query": "x", "documents": ["y"]}
        assert httpx.post(small.http + "/v1/rerank", json=body, timeout=60).status_code == 501
    with TesseraServer("--max-answer", "16KiB") as small:
        assert post(small, input=["x"] * 2).status_code == 200
        refused = post(small, input=["x"] * 4)
        assert refused.status_code == 400 and "this server allows 16384" in refused.text
        assert post(small, input=["x"] * 4, encoding_format="base64").status_code == 200
        body = {"query": "x", "documents": ["y " * 100] * 40 + ["y"]}
        refused = httpx.post(small.http + "/v1/rerank", json=body, timeout=60)
        assert refused.status_code == 400 and "this server allows 16384" in refused.text
        body = {"query": "x", "documents": ["y"]}
        assert httpx.post(small.http + "/v1/rerank", json=body, timeout=60).status_code == 200
