"""A streamed completion, for the scripts here."""

import http.client
import json
import time


def call(url, method, path, body=None):
    """Returns the response of a server. url: of urllib.parse.urlsplit."""
    connection = http.client.HTTPConnection(url.hostname, url.port, timeout=600)
    connection.request(method, path, body, {"Content-Type": "application/json"})
    response = connection.getresponse()
    if response.status != 200:
        raise SystemExit(response.read().decode())
    return response


def complete(url, prompt, tokens, **more):
    """Returns the greedy text, the seconds of each token since the request, and the usage."""
    body = {
        "prompt": prompt,
        "max_tokens": tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
        **more,
    }
    began = time.monotonic()
    text, times, usage = "", [], None
    for line in call(url, "POST", "/v1/completions", json.dumps(body)):
        if not line.startswith(b"data: {"):
            continue
        event = json.loads(line[6:])
        usage = event.get("usage") or usage
        for choice in event["choices"]:
            times.append(time.monotonic() - began)
            text += choice["text"]
    return text, times, usage
