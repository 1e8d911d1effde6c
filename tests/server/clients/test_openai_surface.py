"""Features of the official openai client for chats and completions, field by field."""

import math

import openai
import pytest

CHAT = [{"role": "user", "content": "Tell me a story about a dog."}]


def ask(client, **more):
    fields = {"messages": CHAT, "max_tokens": 16, "temperature": 0} | more
    return client.chat.completions.create(model="tessera-tiny", **fields)


def complete(client, **more):
    fields = {"prompt": "Once upon a time", "max_tokens": 16, "temperature": 0} | more
    return client.completions.create(model="tessera-tiny", **fields)


def test_describes_one_model(client):
    assert client.models.retrieve("tessera-tiny").id == "tessera-tiny"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("no-such-model")


def test_an_answer_has_all_of_its_parts(client):
    answer = ask(client)
    assert (answer.object, answer.model) == ("chat.completion", "tessera-tiny")
    assert answer.id.startswith("chatcmpl-") and answer.created > 1_700_000_000
    assert answer.choices[0].message.role == "assistant"
    usage = answer.usage
    assert usage.completion_tokens == 16
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    assert usage.prompt_tokens_details.cached_tokens >= 0


def test_a_conversation_with_every_role(client):
    messages = [{"role": "user", "content": "The key of Ann is 48213. Remember it."},
                {"role": "assistant", "content": "I will."},
                {"role": "user", "content": [{"type": "text", "text": "What is the key of Ann?"}]}]
    assert ask(client, messages=messages).usage.prompt_tokens > 20


def test_the_newer_name_of_max_tokens(client):
    assert ask(client, max_tokens=None, max_completion_tokens=5).usage.completion_tokens == 5


def test_choices_are_numbered_and_differ(client):
    answer = ask(client, n=4, temperature=1, seed=7)
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    texts = [choice.message.content for choice in answer.choices]
    assert len(set(texts)) > 1
    assert answer.usage.completion_tokens <= 4 * 16
    again = ask(client, n=4, temperature=1, seed=7)
    assert [choice.message.content for choice in again.choices] == texts


def test_streamed_choices_are_those_of_the_whole_answer(client):
    whole = ask(client, n=3, temperature=1, seed=3)
    texts, reasons, usages = [""] * 3, [None] * 3, []
    for chunk in ask(client, n=3, temperature=1, seed=3, stream=True,
                     stream_options={"include_usage": True}):
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
            reasons[choice.index] = choice.finish_reason or reasons[choice.index]
        usages.append(chunk.usage)
    assert texts == [choice.message.content for choice in whole.choices]
    assert reasons == [choice.finish_reason for choice in whole.choices]
    assert usages[:-1] == [None] * (len(usages) - 1)
    assert usages[-1].total_tokens == whole.usage.total_tokens


def test_the_clients_own_accumulator_understands_the_stream(client):
    # the accumulator raises at "length"
    fields = {"max_tokens": 200, "temperature": 0, "stop": ["."]}
    with client.chat.completions.stream(model="tessera-tiny", messages=CHAT, **fields) as stream:
        for _ in stream:
            pass
        choice = stream.get_final_completion().choices[0]
    assert choice.finish_reason == "stop"
    assert choice.message.content == ask(client, **fields).choices[0].message.content


def test_log_probabilities_of_a_chat(client):
    def check(items):
        assert len(items) == 16
        for item in items:
            assert item.logprob <= 0 and len(item.top_logprobs) == 3
            best = item.top_logprobs[0]
            assert math.isclose(best.logprob, item.logprob), "greedy takes the best"
            assert [top.logprob for top in item.top_logprobs] == sorted(
                (top.logprob for top in item.top_logprobs), reverse=True)

    whole = ask(client, logprobs=True, top_logprobs=3)
    check(whole.choices[0].logprobs.content)
    joined = b"".join(bytes(item.bytes) for item in whole.choices[0].logprobs.content)
    assert joined.decode().strip() == whole.choices[0].message.content.strip()
    pieces = [item for chunk in ask(client, logprobs=True, top_logprobs=3, stream=True)
              for choice in chunk.choices if choice.logprobs
              for item in choice.logprobs.content or []]
    check(pieces)
    assert [p.token for p in pieces] == [i.token for i in whole.choices[0].logprobs.content]


def test_log_probabilities_of_a_completion(client):
    choice = complete(client, logprobs=2).choices[0]
    assert "".join(choice.logprobs.tokens) == choice.text
    assert len(choice.logprobs.token_logprobs) == len(choice.logprobs.text_offset) == 16
    assert all(len(top) == 2 for top in choice.logprobs.top_logprobs)


def test_a_chat_stops_at_a_text(client):
    text = ask(client, max_tokens=32).choices[0].message.content
    word = text.split()[4]
    for stop in (word, ["nothing like it", word]):
        choice = ask(client, max_tokens=32, stop=stop).choices[0]
        assert choice.finish_reason == "stop"
        assert choice.message.content == text[: text.index(word)]


def test_a_bias_forbids_a_token(client):
    text = complete(client, max_tokens=1).choices[0].text
    first = client.post("/../tokenize", cast_to=object, body={
        "prompt": "Once upon a time" + text, "model": "tessera-tiny"})["tokens"][-1]
    assert complete(client, max_tokens=1, logit_bias={str(first): -100}).choices[0].text != text
    assert complete(client, max_tokens=1, logit_bias={str(first): 100}, temperature=1
                    ).choices[0].text == text


def test_penalties_change_a_text(client):
    plain = complete(client, max_tokens=64).choices[0].text
    assert complete(client, max_tokens=64, frequency_penalty=2).choices[0].text != plain
    assert complete(client, max_tokens=64, presence_penalty=2).choices[0].text != plain


def test_fields_of_vllm(client):
    """Fields that clients of such servers send besides OpenAI's own."""
    more = {"top_k": 5, "min_p": 0.05, "repetition_penalty": 1.2, "min_tokens": 4,
            "ignore_eos": True, "stop_token_ids": [], "skip_special_tokens": True}
    assert ask(client, extra_body=more).usage.completion_tokens == 16


def test_several_prompts_and_token_ids(client):
    texts = [complete(client, prompt=prompt).choices[0].text for prompt in ("One day", "The cat")]
    both = complete(client, prompt=["One day", "The cat"], n=2)
    assert [choice.text for choice in both.choices] == [texts[0]] * 2 + [texts[1]] * 2
    ids = client.post("/../tokenize", cast_to=object, body={"prompt": "One day"})["tokens"]
    assert complete(client, prompt=ids).choices[0].text == texts[0]
    assert complete(client, prompt=[ids, ids]).choices[1].text == texts[0]


def test_the_raw_answer_and_its_headers(client):
    raw = client.chat.completions.with_raw_response.create(
        model="tessera-tiny", messages=CHAT, max_tokens=1)
    assert raw.headers["content-type"] == "application/json"
    assert raw.parse().usage.completion_tokens == 1
