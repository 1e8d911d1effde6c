"""The same requests over HTTP and gRPC: texts, token ids, log probabilities, usage and finish reasons.

tests/server/parity_test.cpp does so for every field, over an engine without a model.
"""

import json

import httpx
import pytest
from google.protobuf import json_format

SCHEMA = {"type": "object", "properties": {"age": {"type": "integer", "maximum": 99}}, "required": ["age"]}
USER = {"role": "user", "content": "Tell me a story."}
TOOL = {"name": "f", "description": "Finds", "parameters": {
    "type": "object", "properties": {"x": {"type": "string", "maxLength": 8}}, "required": ["x"]}}
WIRE_TOOL = TOOL | {"parameters": json.dumps(TOOL["parameters"])}
HTTP_TOOL = {"type": "function", "function": TOOL}

# (name, members of the HTTP body, JSON form of the protobuf message)
CASES = [
    ("greedy", {"prompt": "Once upon a time", "temperature": 0},
     {"text": "Once upon a time", "sampling": {"temperature": 0}}),
    ("seeds of n", {"prompt": "One day", "seed": 7, "n": 3}, {"text": "One day", "n": 3, "sampling": {"seed": 7}}),
    ("ids", {"prompt": [5, 6, 7], "seed": 7}, {"tokens": {"ids": [5, 6, 7]}, "sampling": {"seed": 7}}),
    ("sampling", {"prompt": "One day", "seed": 7, "top_k": 9, "min_p": 0.01, "presence_penalty": 1,
                  "logit_bias": {"11": -50}},
     {"text": "One day", "sampling": {"seed": 7, "topK": 9, "minP": 0.01, "presencePenalty": 1,
                                      "logitBias": {"11": -50}}}),
    ("stop", {"prompt": "One day", "seed": 7, "stop": ["e", "."]},
     {"text": "One day", "stop": ["e", "."], "sampling": {"seed": 7}}),
    ("echo", {"prompt": "One day", "seed": 7, "echo": True}, {"text": "One day", "echo": True, "sampling": {"seed": 7}}),
    ("best_of", {"prompt": "One day", "seed": 7, "n": 2, "best_of": 4},
     {"text": "One day", "n": 2, "bestOf": 4, "sampling": {"seed": 7}}),
    ("schema", {"prompt": "Age: ", "seed": 7, "structured_outputs": {"json": SCHEMA}},
     {"text": "Age: ", "grammar": {"jsonSchema": json.dumps(SCHEMA)}, "sampling": {"seed": 7}}),
    ("regex", {"prompt": "Age: ", "seed": 7, "structured_outputs": {"regex": "[0-9]{1,3}"}},
     {"text": "Age: ", "grammar": {"regex": "[0-9]{1,3}"}, "sampling": {"seed": 7}}),
    ("choice", {"prompt": "Age: ", "seed": 7, "structured_outputs": {"choice": ["old", "young"]}},
     {"text": "Age: ", "grammar": {"choice": {"texts": ["old", "young"]}}, "sampling": {"seed": 7}}),
    ("chat", {"messages": [USER], "seed": 7}, {"chat": {"messages": [USER]}, "sampling": {"seed": 7}}),
    ("chat with tools", {"messages": [USER], "seed": 7, "tools": [HTTP_TOOL]},
     {"chat": {"messages": [USER], "tools": [WIRE_TOOL]}, "sampling": {"seed": 7}}),
    ("a forced call", {"messages": [USER], "seed": 7, "tools": [HTTP_TOOL], "tool_choice": "required",
                       "parallel_tool_calls": False, "max_tokens": 80},
     {"chat": {"messages": [USER], "tools": [WIRE_TOOL], "toolChoice": "TOOL_CHOICE_REQUIRED",
               "parallelToolCalls": False}, "maxTokens": 80, "sampling": {"seed": 7}}),
    ("a history", {"seed": 7, "messages": [
        USER, {"role": "assistant", "content": None, "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{\"x\": \"y\"}"}}]},
        {"role": "tool", "tool_call_id": "c1", "content": "z"}]},
     {"sampling": {"seed": 7}, "chat": {"messages": [
         USER, {"role": "assistant", "toolCalls": [{"id": "c1", "name": "f", "arguments": "{\"x\": \"y\"}"}]},
         {"role": "tool", "toolCallId": "c1", "content": "z"}]}}),
]


def over_http(server, body):
    chat = "messages" in body
    body = {"max_tokens": 24, "cache_prompt": False, "return_tokens_as_token_ids": True,
            "logprobs": chat or 1, **({"top_logprobs": 1} if chat else {}), **body}
    path = "/v1/chat/completions" if chat else "/v1/completions"
    answer = httpx.post(server.http + path, json=body, timeout=60).raise_for_status().json()
    choices = []
    for choice in answer["choices"]:
        logprobs = choice["logprobs"]
        if chat:
            tokens = [(entry["token"], entry["logprob"]) for entry in logprobs["content"]]
            message = choice["message"]
            calls = [(call["function"]["name"], call["function"]["arguments"])
                     for call in message.get("tool_calls") or []]
            text = message["content"] or ""
        else:
            tokens = list(zip(logprobs["tokens"], logprobs["token_logprobs"]))
            text, calls = choice["text"], []
        if body.get("echo"):  # the prompt's come first
            tokens = tokens[answer["usage"]["prompt_tokens"]:]
        ids = [int(token.removeprefix("token_id:")) for token, _ in tokens]
        choices.append((text, calls, choice["finish_reason"], ids, [pytest.approx(p, abs=1e-4) for _, p in tokens]))
    usage = answer["usage"]
    return choices, (usage["prompt_tokens"], usage["completion_tokens"])


def over_grpc(stub, wire, message):
    request = json_format.ParseDict(
        {"maxTokens": 24, "logprobs": 1, "cache": {"use": False}} | message, wire[0].GenerateRequest())
    sequences = {}
    for answer in stub.Generate(request, timeout=60):
        text, calls, _, ids, logprobs = sequences.setdefault(answer.index, ["", [], None, [], []])
        for part in answer.tool_calls:
            if part.index == len(calls):
                calls.append((part.name, ""))
            calls[part.index] = (calls[part.index][0], calls[part.index][1] + part.arguments)
        sequences[answer.index][0] = text + answer.text
        ids += answer.token_ids
        logprobs += [entry.chosen.logprob for entry in answer.logprobs]
        if answer.finish_reason:
            sequences[answer.index][2] = wire[0].FinishReason.Name(answer.finish_reason)[14:].lower()
    usage = answer.usage
    return [tuple(sequences[i]) for i in range(len(sequences))], (usage.prompt_tokens, usage.completion_tokens)


@pytest.mark.parametrize("name,body,message", CASES, ids=[case[0] for case in CASES])
def test_a_request_is_answered_the_same(server, stub, wire, name, body, message):
    http, http_usage = over_http(server, body)
    answers, usage = over_grpc(stub, wire, message)
    assert answers == http
    assert usage == http_usage
