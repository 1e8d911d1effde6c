"""A tessera-server under attack: its process, its memory, and clients that misbehave."""

import http.client
import json
import pathlib
import re
import resource
import socket
import struct
import subprocess
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[3]
MODEL = ROOT / "models/checkpoints/tessera-tiny"
PATIENCE = 60  # seconds; the awaited events take a moment at most
MIB = 1 << 20
REPORT = re.compile("runtime error: |ERROR: AddressSanitizer")


def eventually(condition, what, seconds=PATIENCE):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"waited {seconds} s in vain: {what}"
        time.sleep(0.01)


def flags_of(*more, model=MODEL):
    return ["--model", str(model), "--http-port", "0", "--grpc-port", "0", "--drain-delay", "0",
            "--threads", "1", *map(str, more)]


class Server:
    """A running server. `descriptors`: its limit of open files, soft and hard."""

    def __init__(self, program, *flags, model=MODEL, descriptors=None, setup=lambda: None):
        def prepare():
            if descriptors is not None:
                resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors, descriptors))
            setup()

        self.process = subprocess.Popen([program, *flags_of(*flags, model=model)], stderr=subprocess.PIPE,
                                        text=True, preexec_fn=prepare)
        self.log = []
        self._reader = threading.Thread(target=self._read_log, daemon=True)
        self._reader.start()
        eventually(lambda: self.logged(r"\bready after ") or self.process.poll() is not None, "start")
        assert self.process.poll() is None, self.log
        self.http = int(self.logged(r"listening https?://\S+:(\d+)"))
        self.grpc = int(self.logged(r"listening grpc://\S+:(\d+)"))

    def _read_log(self):
        for line in self.process.stderr:
            self.log.append(line.rstrip())

    def logged(self, pattern):
        for line in list(self.log):
            if match := re.search(pattern, line):
                return match.group(match.lastindex or 0)
        return None

    def lines(self, pattern):
        return [line for line in list(self.log) if re.search(pattern, line)]

    def _status(self, name):
        status = pathlib.Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(rf"{name}:\s+(\d+)", status).group(1)) * 1024

    def resident(self):
        """Returns the bytes of memory in use."""
        return self._status("VmRSS")

    def most_resident(self):
        """Returns the most bytes that were ever in use."""
        return self._status("VmHWM")

    def thread_times(self):
        """Returns the seconds that each thread ran. Other work on the machine has no part in them."""
        tasks = pathlib.Path(f"/proc/{self.process.pid}/task").iterdir()
        return {task.name: int((task / "schedstat").read_text().split()[0]) / 1e9 for task in tasks}

    def computed(self, besides=None):
        """Returns the seconds that its threads ran. besides: name of a thread that is left out."""
        return sum(ran for name, ran in self.thread_times().items() if name != besides)

    def busiest_thread(self):
        """Returns the name of the thread that runs most now: the engine's, while a stream runs."""
        before = self.thread_times()
        time.sleep(0.3)
        after = self.thread_times()
        return max(before, key=lambda name: after[name] - before[name])

    def health(self):
        """Returns the seconds of one health check, on a connection of its own."""
        begin = time.monotonic()
        status, _, body = self.ask("GET", "/health")
        assert status == 200, (status, body)
        return time.monotonic() - begin

    def ask(self, method, path, body=None, headers=None, timeout=PATIENCE):
        """Returns status, headers and body of a request."""
        client = http.client.HTTPConnection("127.0.0.1", self.http, timeout=timeout)
        try:
            text = json.dumps(body, separators=(",", ":")) if isinstance(body, (dict, list)) else body
            client.request(method, path, text, {"Content-Type": "application/json", **(headers or {})})
            answer = client.getresponse()
            return answer.status, dict(answer.getheaders()), answer.read()
        finally:
            client.close()

    def connect(self, port=None, receive_bytes=0):
        client = socket.socket()
        if receive_bytes:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        client.settimeout(PATIENCE)
        client.connect(("127.0.0.1", port or self.http))
        return client

    def exchange(self, sent, seconds=0.5):
        """Sends bytes. Returns everything that comes back until the server closes, or pauses."""
        with self.connect() as client:
            client.settimeout(seconds)
            client.sendall(sent)
            return read_all(client)

    def grpc_serves(self, seconds=5):
        """Returns True if the gRPC health service answers SERVING."""
        try:
            with Http2(self, seconds) as client:
                client.begin(1, "/grpc.health.v1.Health/Check")
                client.data(1, b"\0\0\0\0\0", end=True)
                return b"\0\0\0\0\2\x08\x01" in client.read_until(b"\0\0\0\0\2\x08\x01")
        except OSError:
            return False

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        self._reader.join()
        self.process.stderr.close()
        # A test sees only a closed connection, or nothing if the report came after its last request.
        report = next((at for at, line in enumerate(self.log) if REPORT.search(line)), None)
        assert report is None, "\n".join(["a sanitizer's report:", *self.log[report:]])


def read_all(client):
    got = b""
    try:
        while piece := client.recv(65536):
            got += piece
    except (TimeoutError, ConnectionResetError):
        pass
    return got


def field(number, value):
    """Returns a field of a protobuf message: bytes, text or an integer."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    value = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(value)) + value


def varint(number):
    more = []
    while number >= 128:
        more.append(number & 127 | 128)
        number >>= 7
    return bytes([*more, number])


class Http2:
    """The least of HTTP/2 (RFC 9113) that begins gRPC calls and leaves them unfinished."""

    def __init__(self, server, seconds=5, window=None):
        """window: bytes that the server may send on a call before this client reads; None: 64 KiB."""
        self.socket = server.connect(server.grpc)
        self.socket.settimeout(seconds)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.got = b""
        self.socket.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + self.frame(
            4, 0, 0, b"" if window is None else struct.pack(">HI", 4, window)))
        # A settings frame is all that a server sends on its own.
        while len(self.got) < 9:
            self.read_some()
        self.socket.sendall(self.frame(4, 1, 0, b""))

    @staticmethod
    def frame(kind, flags, stream, payload):
        return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload

    def settings(self):
        """Returns the numbers of the server's first frame."""
        length = int.from_bytes(self.got[:3], "big")
        while len(self.got) < 9 + length:
            self.read_some()
        return dict(struct.iter_unpack(">HI", self.got[9:9 + length]))

    def begin(self, stream, path, key=None):
        def field(name, value):  # HPACK: a literal without indexing
            return b"\0" + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value.encode()

        fields = b"".join(field(*pair) for pair in (
            (":method", "POST"), (":scheme", "http"), (":path", path), (":authority", "test"),
            ("content-type", "application/grpc"), ("te", "trailers"),
            *([("authorization", f"Bearer {key}")] if key else [])))
        self.socket.sendall(self.frame(1, 4, stream, fields))

    def data(self, stream, payload, end=False):
        self.socket.sendall(self.frame(0, 1 if end else 0, stream, payload))

    def call(self, stream, method, message, key=None):
        """Sends a whole call of the inference service."""
        self.begin(stream, f"/tessera.v1.Inference/{method}", key)
        framed = b"\0" + struct.pack(">I", len(message)) + message
        for first in range(0, len(framed), 16000):
            self.data(stream, framed[first:first + 16000], end=first + 16000 >= len(framed))

    def answer(self, stream):
        """Returns the message of a unary call, without its prefix, or None if there is an error.

        Reads no more than the flow control of HTTP/2 allows at first, 64 KiB.
        """
        payload = b""
        while True:
            kind, flags, piece = self.frame_of(stream)
            if kind == 0:
                payload += piece
            if flags & 1 or kind == 3:
                return payload[5:] if payload else None

    def status(self, stream):
        """Returns the number of the gRPC status at the end of a connection's first call.

        Later ones are indices into HPACK's table.
        """
        while True:
            kind, flags, piece = self.frame_of(stream)
            assert kind != 3, "the stream was reset"
            if kind == 1 and flags & 1:
                return int(re.search(rb"grpc-status.(\d+)", piece, re.DOTALL).group(1))

    def await_first_bytes(self, stream):
        """Returns when the server writes the message of a call, so the message has its bytes of the budget."""
        while True:
            kind, flags, _ = self.frame_of(stream)
            assert not (flags & 1 or kind == 3), "the call ended without a message"
            if kind == 0:
                return

    def frame_of(self, stream):
        """Returns kind, flags and payload of the stream's next frame. Drops the frames of other streams."""
        while True:
            while len(self.got) < 9 or len(self.got) < 9 + int.from_bytes(self.got[:3], "big"):
                self.read_some()
            length, kind, flags, of = (int.from_bytes(self.got[:3], "big"), *struct.unpack(">BBI", self.got[3:9]))
            frame, self.got = self.got[9:9 + length], self.got[9 + length:]
            if of == stream:
                return kind, flags, frame

    def read_some(self):
        piece = self.socket.recv(65536)
        if not piece:
            raise ConnectionError("closed")
        self.got += piece

    def read_until(self, text):
        while text not in self.got:
            self.read_some()
        return self.got

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.socket.close()

