"""Server-sent events on the wire, and clients that disconnect."""

import json
import socket
import subprocess

import httpx

from tessera_server import PATIENCE, eventually


def test_curl_shows_every_event_at_once(server):
    body = {"prompt": "Once upon a time", "max_tokens": 16, "temperature": 0, "stream": True}
    shown = subprocess.run(
        ["curl", "-sN", server.http + "/v1/completions", "-d", json.dumps(body)],
        stdout=subprocess.PIPE, text=True, check=True, timeout=PATIENCE).stdout
    events = shown.split("\n\n")
    assert events[-2:] == ["data: [DONE]", ""]
    pieces = [json.loads(event.removeprefix("data: ")) for event in events[:-2]]
    assert len(pieces) >= 8
    assert all(piece["object"] == "text_completion" for piece in pieces)


def open_completion(server, stream):
    """Requests a text that takes seconds, on a socket of its own."""
    host, port = server.http.removeprefix("http://").split(":")
    body = json.dumps({"prompt": "Once upon a time", "max_tokens": 2000, "ignore_eos": True,
                       "stream": stream})
    connection = socket.create_connection((host, int(port)), timeout=PATIENCE)
    connection.sendall(
        f"POST /v1/completions HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n{body}".encode())
    return connection


def test_a_client_that_goes_away_frees_its_pages(server):
    assert server.bytes_in_use() == 0
    aborted = server.metric("vllm:request_success_total", finished_reason="abort")
    connections = [open_completion(server, stream) for stream in (True, False) * 4]
    eventually(lambda: server.running() == len(connections), "all run")
    eventually(lambda: server.bytes_in_use() > 0, "groups close")
    for connection in connections:
        connection.close()
    eventually(lambda: server.bytes_in_use() == 0, "pages")
    assert server.running() == 0
    assert server.metric("vllm:request_success_total", finished_reason="abort") == aborted + 8


def test_a_connection_serves_many_requests(server):
    with httpx.Client(base_url=server.http) as client:
        for _ in range(20):
            assert client.get("/health").status_code == 200
