"""Streams an answer, lets the model call a tool, and compares two texts by their embeddings.

  pip install ./clients/python
  python clients/python/example.py localhost:50051
"""

import json
import sys

import grpc
from tessera.v1 import inference_pb2 as messages
from tessera.v1 import inference_pb2_grpc

WEATHER = messages.Tool(
    name="get_weather", description="Current weather of a city", strict=True,
    parameters=json.dumps({"type": "object", "properties": {"city": {"type": "string", "maxLength": 20}},
                           "required": ["city"], "additionalProperties": False}))


def user(text):
    return messages.ChatMessage(role="user", content=text)


def stream(stub, chat):
    """Prints the text of an answer as it comes."""
    request = messages.GenerateRequest(chat=chat, max_tokens=60)
    for answer in stub.Generate(request, timeout=60):
        print(answer.text, end="", flush=True)
        if answer.HasField("usage"):
            print(f"\n[{answer.usage.completion_tokens} tokens]")


def call_a_tool(stub, chat):
    """Returns the names and arguments of the calls that the model makes."""
    calls = []
    request = messages.GenerateRequest(chat=chat, max_tokens=200)
    for answer in stub.Generate(request, timeout=60):
        for part in answer.tool_calls:
            if part.index == len(calls):
                calls.append([part.name, ""])
            calls[part.index][1] += part.arguments
        last = answer
    assert last.finish_reason == messages.FINISH_REASON_TOOL_CALLS, last
    return [(name, json.loads(arguments)) for name, arguments in calls]


def likeness(stub, one, other):
    """Returns the cosine of the angle between the embeddings of two texts."""
    request = messages.EmbedRequest(inputs=[messages.EmbedInput(text=text) for text in (one, other)])
    first, second = (embedding.values for embedding in stub.Embed(request, timeout=60).embeddings)
    return sum(a * b for a, b in zip(first, second))


def main(address):
    with grpc.insecure_channel(address) as channel:
        stub = inference_pb2_grpc.InferenceStub(channel)
        stream(stub, messages.Chat(messages=[user("Tell me a story.")]))
        asked = messages.Chat(messages=[user("How is the weather in Rome?")], tools=[WEATHER],
                              tool_choice=messages.TOOL_CHOICE_REQUIRED, parallel_tool_calls=False)
        for name, arguments in call_a_tool(stub, asked):
            print(f"{name}({arguments})")
        print(f"likeness: {likeness(stub, 'The sky is blue.', 'Rain falls.'):.3f}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "localhost:50051")
