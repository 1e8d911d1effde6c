"""The official openai client."""

import openai
import pytest

PROMPT = "Once upon a time"
CHAT = [{"role": "user", "content": "Tell me a story about a dog."}]


def complete(client, **more):
    return client.completions.create(
        model="tessera-tiny", prompt=PROMPT, max_tokens=24, temperature=0, **more)


def test_lists_the_model(client):
    assert [model.id for model in client.models.list()] == ["tessera-tiny"]


def test_completes(client):
    completion = complete(client)
    assert completion.choices[0].text.strip()
    assert completion.choices[0].finish_reason == "length"
    assert completion.usage.completion_tokens == 24
    assert completion.usage.total_tokens == completion.usage.prompt_tokens + 24


def test_a_stream_is_the_completion_in_pieces(client):
    chunks = list(complete(client, stream=True, stream_options={"include_usage": True}))
    texts = [chunk.choices[0].text for chunk in chunks if chunk.choices]
    assert len(texts) > 8
    assert "".join(texts) == complete(client).choices[0].text
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "length"
    assert chunks[-1].usage.completion_tokens == 24


def test_chats(client):
    def ask(**more):
        return client.chat.completions.create(
            model="tessera-tiny", messages=CHAT, max_tokens=24, temperature=0, **more)

    whole = ask().choices[0].message
    assert whole.role == "assistant" and whole.content.strip()
    deltas = [chunk.choices[0].delta.content or "" for chunk in ask(stream=True)]
    assert len(deltas) > 8
    assert "".join(deltas) == whole.content


def test_stops_at_a_text(client):
    text = complete(client).choices[0].text
    word = text.split()[3]
    stopped = complete(client, stop=[word]).choices[0]
    assert stopped.finish_reason == "stop"
    assert stopped.text == text[: text.index(word)]


def test_a_seed_repeats_a_text(client):
    def sample(seed):
        return client.completions.create(
            model="tessera-tiny", prompt=PROMPT, max_tokens=32, temperature=1, seed=seed
        ).choices[0].text

    assert sample(1) == sample(1)
    assert len({sample(seed) for seed in range(8)}) > 1


def test_a_prompt_longer_than_the_context_is_an_error_with_both_numbers(client):
    with pytest.raises(openai.BadRequestError) as error:
        client.completions.create(model="tessera-tiny", prompt=[5] * 3000, max_tokens=1)
    assert "3000" in str(error.value) and "2048" in str(error.value)


def test_an_unknown_model_is_an_error(client):
    with pytest.raises(openai.NotFoundError):
        client.completions.create(model="no-such-model", prompt="x")
