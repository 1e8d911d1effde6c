"""Echoed prompts and their log probabilities, as evaluation harnesses request them."""

import itertools
import math

import httpx
import pytest

from tessera_server import PATIENCE

PROMPT = "Once upon a time there was a little dog"


def post(server, path, body):
    return httpx.post(server.http + path, json=body, timeout=PATIENCE)


def score(server, prompt, **more):
    """Sends the request of lm-evaluation-harness' local-completions for log likelihoods."""
    body = {"model": "tessera-tiny", "prompt": prompt, "temperature": 0, "max_tokens": 1,
            "logprobs": 1, "seed": 1234, "echo": True} | more
    answer = post(server, "/v1/completions", body)
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"]


def tokens_of(server, text):
    return post(server, "/tokenize", {"prompt": text}).json()["tokens"]


def test_a_scored_prompt_has_a_logprob_for_each_token(server):
    ids = tokens_of(server, PROMPT)
    (choice,) = score(server, [ids])
    logprobs = choice["logprobs"]
    assert {len(values) for values in logprobs.values()} == {len(ids) + 1}
    assert logprobs["token_logprobs"][0] is None and logprobs["top_logprobs"][0] is None
    assert all(value <= 0 for value in logprobs["token_logprobs"][1:])
    for chosen, top in zip(logprobs["token_logprobs"][1:], logprobs["top_logprobs"][1:]):
        assert chosen <= max(top.values())
    assert choice["text"].startswith(PROMPT)
    for offset, following in itertools.pairwise(logprobs["text_offset"]):
        assert offset <= following <= len(choice["text"])


def test_scores_do_not_depend_on_how_the_prompt_is_given_or_shared(server):
    ids = tokens_of(server, PROMPT)
    alone = score(server, PROMPT)[0]["logprobs"]["token_logprobs"]
    others = [ids, ids[:5], ids[:1]]
    together = [c["logprobs"]["token_logprobs"] for c in score(server, others)]
    assert together[0] == alone
    assert together[1][:5] == alone[:5]
    assert len(together[2]) == 2 and together[2][0] is None
    only_read = score(server, [ids], max_tokens=0)[0]
    assert only_read["logprobs"]["token_logprobs"] == alone[:-1]
    assert only_read["text"] == PROMPT
    assert only_read["finish_reason"] == "length"


def test_a_greedy_completion_scores_as_it_was_generated(server):
    ids = tokens_of(server, PROMPT)
    body = {"prompt": ids, "max_tokens": 8, "temperature": 0, "logprobs": 0, "ignore_eos": True,
            "return_tokens_as_token_ids": True}
    made = post(server, "/v1/completions", body).json()["choices"][0]["logprobs"]
    more = [int(token.removeprefix("token_id:")) for token in made["tokens"]]
    logprobs = score(server, [ids + more])[0]["logprobs"]
    assert logprobs["token_logprobs"][len(ids):-1] == pytest.approx(made["token_logprobs"], abs=1e-5)
    for chosen, top in list(zip(logprobs["token_logprobs"], logprobs["top_logprobs"]))[len(ids):-1]:
        assert chosen == max(top.values()), "greedy"


def test_prompt_logprobs_in_vllms_shape_are_the_same(server):
    ids = tokens_of(server, PROMPT)
    body = {"prompt": ids, "max_tokens": 1, "prompt_logprobs": 20}
    listed = post(server, "/v1/completions", body).json()["choices"][0]["prompt_logprobs"]
    scored = score(server, [ids])[0]["logprobs"]["token_logprobs"]
    assert listed[0] is None and len(listed) == len(ids)
    for token, entry, logprob in list(zip(ids, listed, scored))[1:]:
        assert entry[str(token)]["logprob"] == logprob
        assert sum(math.exp(e["logprob"]) for e in entry.values()) <= 1 + 1e-4
        ranks = sorted(e["rank"] for e in entry.values() if e["rank"] is not None)
        assert ranks == list(range(1, 21))


def test_over_grpc_they_are_the_same(server, stub, wire):
    ids = tokens_of(server, PROMPT)
    request = wire[0].GenerateRequest(
        tokens=wire[0].TokenIds(ids=ids), max_tokens=0, prompt_logprobs=2)
    tokens = [t for message in stub.Generate(request, timeout=PATIENCE) for t in message.prompt]
    scored = score(server, [ids], max_tokens=0)[0]["logprobs"]["token_logprobs"]
    assert [t.chosen.token_id for t in tokens] == ids
    assert not tokens[0].chosen.HasField("logprob")
    assert [t.chosen.logprob for t in tokens[1:]] == pytest.approx(scored[1:])
    assert all(len(t.top) == 2 for t in tokens[1:])


def test_choices_of_one_prompt_differ_and_repeat(server, stub, wire):
    body = {"prompt": PROMPT, "max_tokens": 12, "n": 4, "deterministic": True}
    first = [c["text"] for c in post(server, "/v1/completions", body).json()["choices"]]
    again = [c["text"] for c in post(server, "/v1/completions", body).json()["choices"]]
    assert first == again
    assert len(set(first)) > 1
    request = wire[0].GenerateRequest(text=PROMPT, max_tokens=12, n=4, deterministic=True)
    texts = ["", "", "", ""]
    for message in stub.Generate(request, timeout=PATIENCE):
        texts[message.index] += message.text
    assert texts == first
    best = post(server, "/v1/completions", body | {"n": 1, "best_of": 4}).json()
    assert best["choices"][0]["text"] in first
    assert best["usage"]["completion_tokens"] > 12
