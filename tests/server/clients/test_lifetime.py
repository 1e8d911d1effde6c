"""Start, refusals to start, and the ways to stop."""

import re
import signal
import subprocess
import threading
import time

import grpc
import httpx
import pytest

from tessera_server import PATIENCE, TesseraServer, command, eventually

LONG = {"prompt": "Once upon a time", "max_tokens": 1000, "ignore_eos": True, "temperature": 0,
        "stream": True}


class BackgroundStream:
    """Reads a completion's events in a thread."""

    def __init__(self, server):
        self.events = []
        self._thread = threading.Thread(target=self._read, args=(server.http,))
        self._thread.start()
        eventually(lambda: self.events, "the first event")

    def _read(self, url):
        with httpx.stream("POST", url + "/v1/completions", json=LONG, timeout=PATIENCE) as answer:
            for line in answer.iter_lines():
                if line:
                    self.events.append(line)

    def finish(self):
        self._thread.join(PATIENCE)
        return self.events


def refusal(*flags):
    """Returns the error output of a server that does not start, without its log."""
    done = subprocess.run(
        command(*flags), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=PATIENCE)
    assert done.returncode == 1
    assert done.stdout == ""
    said = [line for line in done.stderr.splitlines() if not re.match(r"\d{4}-\d\d-\d\dT", line)]
    assert len(said) == 1, done.stderr
    return said[0]


def test_the_log_tells_what_is_served_and_what_it_takes(server):
    assert server.logged(r"model tessera-tiny: LlamaForCausalLM, ([\d.]+) M parameters")
    assert int(server.logged(r"weights bf16: (\d+) bytes")) > 1_000_000
    assert int(server.logged(r"KV cache k8v4: (\d+) bytes")) > 1_000_000
    assert int(server.logged(r"KV cache: (\d+) pages of \d+ bytes")) > 0
    assert int(server.logged(r"KV cache: (\d+) tokens fit")) >= 2048
    assert server.logged(r"device cpu: (\w+), \d+ threads") in (
        "scalar",
        "avx2",
        "avx512",
        "avx512_fp16",
        "amx",
    )


@pytest.mark.parametrize("flags, named", [
    (["--model", "/no/such/model"], "/no/such/model"),
    (["--device", "cuda"], "CUDA"),
    (["--kv-memory", "64KiB"], "65536"),
    (["--context", "100000"], "2048"),
    (["--chat-template", "no-such-one"], "chatml"),
    (["--host", "192.0.2.1"], "192.0.2.1"),
    (["--http-port", "notaport"], "--http-port"),
    (["--config", "/no/such.yaml"], "/no/such.yaml"),
])
def test_a_setting_that_stops_the_start_is_one_line(flags, named):
    assert named in refusal(*flags)


@pytest.mark.parametrize("flag", ["--http-port", "--grpc-port"])
def test_a_taken_port_is_one_line(server, flag):
    taken = {"--http-port": server.http, "--grpc-port": server.grpc}[flag].rsplit(":", 1)[1]
    assert taken in refusal(flag, taken)


def test_another_chat_template_can_be_chosen(tmp_path):
    template = tmp_path / "plain.jinja"
    template.write_text("{% for m in messages %}{{ m['content'] }}{% endfor %}")
    with TesseraServer("--chat-template", str(template)) as server:
        chat = {"messages": [{"role": "user", "content": "Once"}], "max_tokens": 1}
        answer = httpx.post(server.http + "/v1/chat/completions", json=chat).json()
        plain = httpx.post(server.http + "/tokenize",
                           json={"prompt": "Once", "add_special_tokens": False}).json()
        assert answer["usage"]["prompt_tokens"] == plain["count"]


def test_sigterm_finishes_what_runs():
    with TesseraServer() as server:
        stream = BackgroundStream(server)
        server.signal()
        eventually(lambda: server.logged("draining: 1 running"), "draining")
        events = stream.finish()
        assert events[-1] == "data: [DONE]"
        assert any('"finish_reason":"length"' in event for event in events)
        assert server.wait() == 0
        assert server.log[-1].endswith("stopped")


def test_a_draining_server_is_not_ready_but_takes_requests_for_a_while():
    with TesseraServer("--drain-delay", "60s") as server:
        with grpc.insecure_channel(server.grpc) as channel:
            check = channel.unary_unary("/grpc.health.v1.Health/Check")
            assert check(b"") == b"\x08\x01"  # SERVING
            server.signal()
            eventually(lambda: httpx.get(server.http + "/health").status_code == 503, "not ready")
            eventually(lambda: check(b"") == b"\x08\x02", "NOT_SERVING")
        short = LONG | {"max_tokens": 4, "stream": False}
        assert httpx.post(server.http + "/v1/completions", json=short).status_code == 200
        server.signal()
        assert server.wait() == 0


def test_after_the_drain_timeout_what_runs_is_cancelled_with_a_last_event():
    with TesseraServer("--drain-timeout", "0") as server:
        stream = BackgroundStream(server)
        server.signal()
        events = stream.finish()
        assert events[-1] == "data: [DONE]"
        assert len(events) < 1000
        assert server.wait() == 0


@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_stops_at_once(second):
    with TesseraServer() as server:
        streams = [BackgroundStream(server) for _ in range(8)]
        server.signal()
        eventually(lambda: server.logged("draining: "), "draining")
        begin = time.monotonic()
        server.signal(second)
        assert server.wait() == 0
        assert time.monotonic() - begin < PATIENCE / 4
        assert all(len(stream.finish()) < 1000 for stream in streams)


def test_a_signal_that_comes_while_the_model_loads_ends_the_process():
    process = subprocess.Popen(command(), stderr=subprocess.PIPE, text=True)
    process.stderr.readline()
    process.terminate()
    assert process.wait(PATIENCE) == 0
    process.stderr.close()
