"""A server whose answers a test writes: serves the real page, under its real policy, and a chat API."""

import http.server
import json
import threading
import time

import httpx

CACHE = {"object": "cache", "unit_tokens": 64, "units": 0, "query_tokens": 0, "hit_tokens": 0,
         "bytes": 0, "unused_bytes": 0, "entered_units": 0, "demoted_units": 0,
         "compressed_units": 0, "evicted_units": 0, "handed_over_units": 0, "free_bytes": 1 << 20, "window_bytes": 4096, "table_bytes": 512,
         "formats": [{"format": "k8v4", "private_bytes": 0, "shared_bytes": 0},
                     {"format": "k4v2", "private_bytes": 0, "shared_bytes": 0}],
         "ladder": ["k4v2"], "presets": ["k8v4", "k4v2", "snapkv"],
         "tree": {"fields": ["id", "parent", "format", "grade", "used"], "units": [],
                  "omitted_units": 0, "units_of_other_salts": 0}}


def text(content):
    return {"choices": [{"index": 0, "delta": {"content": content}, "finish_reason": None}]}


def words(content, count=1):
    """The deltas of a text, `count` characters each."""
    return [text(content[i:i + count]) for i in range(0, len(content), count)]


def refusal(message, param=None, status=400):
    return status, {"error": {"message": message, "type": "invalid_request_error", "param": param,
                              "code": None}}


class ScriptedServer:
    """`answers`: called with the body of each chat request. Returns a list of chunks, or a refusal.
    A chunk may be a number instead: seconds to wait. `bodies`: all requests, by path."""

    def __init__(self, real):
        page = httpx.get(real + "/")
        self.page, self.policy = page.content, page.headers["content-security-policy"]
        self.answers = lambda body: words("Hello.")
        self.models = ["scripted"]
        self.cache = json.loads(json.dumps(CACHE))
        self.metrics = ""
        self.bodies = []
        server = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                pass

            def reply(self, status, content, kind="application/json", headers=()):
                body = content if isinstance(content, bytes) else json.dumps(content).encode()
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                for name, value in headers:
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)

            def do_GET(self):
                if self.path == "/":
                    self.reply(200, server.page, "text/html; charset=utf-8",
                               [("Content-Security-Policy", server.policy)])
                elif self.path == "/v1/models":
                    self.reply(200, {"data": [{"id": name} for name in server.models]})
                elif self.path == "/v1/cache":
                    self.reply(200, server.cache)
                elif self.path == "/metrics":
                    self.reply(200, server.metrics.encode(), "text/plain")
                else:
                    self.reply(404, b"", "text/plain")

            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                server.bodies.append((self.path, body))
                if self.path == "/tokenize":
                    self.reply(200, {"tokens": [1, 2, 3]})
                    return
                answer = server.answers(body)
                if isinstance(answer, tuple):
                    self.reply(*answer)
                    return
                self.send_response(200)
                self.send_header("Content-Type", "text/event-stream")
                self.send_header("Connection", "close")
                self.end_headers()
                self.close_connection = True
                try:
                    self.stream(answer)
                except (BrokenPipeError, ConnectionResetError):
                    pass

            def stream(self, chunks):
                for chunk in chunks:
                    if isinstance(chunk, (int, float)):
                        self.wfile.flush()
                        time.sleep(chunk)
                    else:
                        self.wfile.write(f"data: {json.dumps(chunk)}\n\n".encode())
                self.wfile.write(b"data: [DONE]\n\n")

        self.http_server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http_server.daemon_threads = True
        self.http = f"http://127.0.0.1:{self.http_server.server_address[1]}"
        threading.Thread(target=self.http_server.serve_forever, daemon=True).start()

    @property
    def body(self):
        """The newest request's body."""
        return self.bodies[-1][1]

    def close(self):
        self.http_server.shutdown()
        self.http_server.server_close()
