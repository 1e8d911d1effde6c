"""The scripts inside the chart: the init container's and the one that starts ranks over pods."""

import functools
import hashlib
import http.server
import os
import shutil
import signal
import socket
import subprocess
import threading
import time
import urllib.request

import pytest

from chart import CHART, ROOT, SERVER, only, render
from fleet import PROGRAMS, replicas

FETCH = CHART / "files/fetch.sh"
RANKS = CHART / "files/ranks.sh"


@pytest.fixture
def site(tmp_path):
    """A web server with two files. Yields its address, its folder and the headers of each request."""
    folder = tmp_path / "site"
    (folder / "model").mkdir(parents=True)
    (folder / "model/config.json").write_text("{}")
    (folder / "weights").write_bytes(bytes(range(256)) * 1000)
    seen = []

    class Handler(http.server.SimpleHTTPRequestHandler):
        def do_GET(self):
            seen.append((self.path, self.headers.get("Authorization")))
            super().do_GET()

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), functools.partial(Handler, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", folder, seen
    server.shutdown()


def fetch(url, source, target, paths, wrong=None, token=None):
    lines = ""
    for path in paths:
        checksum = hashlib.sha256((source / path).read_bytes()).hexdigest()
        lines += f"{'0' * 64 if path == wrong else checksum} got/{path} {url}/{path}\n"
    return subprocess.run(["sh", FETCH, target], input=lines, text=True, capture_output=True,
                          check=False, env=os.environ | ({"FETCH_TOKEN": token} if token else {}))


def test_files_are_fetched_once(site, tmp_path):
    url, source, seen = site
    paths = ["model/config.json", "weights"]
    target = tmp_path / "claim"
    done = fetch(url, source, target, paths, token="secret")
    assert done.returncode == 0, done.stderr
    for path in paths:
        assert (target / "got" / path).read_bytes() == (source / path).read_bytes()
    assert seen == [(f"/{path}", "Bearer secret") for path in paths]
    assert fetch(url, source, target, paths).returncode == 0
    assert len(seen) == 2, "fetched again"


def test_a_file_that_is_not_the_expected_one_is_refused_by_name(site, tmp_path):
    url, source, _ = site
    done = fetch(url, source, tmp_path / "claim", ["model/config.json", "weights"], wrong="weights")
    assert done.returncode == 1
    assert "weights" in done.stderr
    assert [path.name for path in (tmp_path / "claim").rglob("*") if path.is_file()] == ["config.json"]


def load_container(values):
    job = only(render(values | {"load": {"enabled": True}}), "Job")
    (container,) = job["spec"]["template"]["spec"]["containers"]
    return container


def test_the_load_of_helm_test_checks_a_server(tmp_path):
    container = load_container({})
    with replicas(tmp_path, 1) as (one,):
        arguments = [word.replace("http://release-tessera:8080", one.url) for word in container["args"]]
        assert arguments != container["args"]
        done = subprocess.run([*container["command"], *arguments], text=True, capture_output=True, check=False,
                              env={"PATH": f"{PROGRAMS}:{os.environ['PATH']}"}, cwd="/")
        assert done.returncode == 0, done.stdout + done.stderr
        assert one.metric("vllm:request_success_total") >= 40  # it warms up besides


@pytest.mark.parametrize("text", ["one\ntwo\n", "# whose: mine\n\n one \ntwo", "one"])
def test_the_load_sends_the_first_key(text, tmp_path):
    (tmp_path / "keys").write_text(text)
    container = load_container({"apiKeys": {"secret": "keys"}})
    (tmp_path / "tessera-load").write_text('#!/bin/sh\necho "$TESSERA_LOAD_API_KEY" "$@"\n')
    (tmp_path / "tessera-load").chmod(0o755)
    command = [word.replace("/etc/tessera/keys/keys", str(tmp_path / "keys")) for word in container["command"]]
    done = subprocess.run([*command, *container["args"]], text=True, capture_output=True, check=True,
                          env={"PATH": f"{tmp_path}:{os.environ['PATH']}"})
    assert done.stdout == f"one {' '.join(container['args'])}\n"


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


class Pods:
    """The pods of a LeaderWorkerSet as processes, workers first: none may need the leader to be up."""

    def __init__(self, folder):
        port, self.http = free_port(), free_port()
        settings = folder / "tessera.yaml"
        settings.write_text(f"model: {ROOT}/models/checkpoints/tessera-tiny\nhttp-port: {self.http}\n"
                            f"grpc-port: {free_port()}\ntensor-parallel: 2\ndrain-delay: 0\nthreads: 1\n")
        self.logs = [folder / f"pod{index}.log" for index in range(2)]
        self.pods = {}
        for index in (1, 0):
            own = folder / f"tmp{index}"
            own.mkdir()
            environment = os.environ | {
                "TESSERA_PODS": "2", "TESSERA_RANKS_PER_POD": "1", "TESSERA_CONTROL_PORT": str(port),
                "LWS_LEADER_ADDRESS": "127.0.0.1", "LWS_WORKER_INDEX": str(index), "TMPDIR": str(own)}
            self.pods[index] = subprocess.Popen(
                ["sh", RANKS, SERVER, "--config", settings], env=environment, start_new_session=True,
                stdout=self.logs[index].open("w"), stderr=subprocess.STDOUT)
            time.sleep(1 if index else 0)

    def wait_until_ready(self):
        end = time.monotonic() + 60
        while time.monotonic() < end:
            try:
                return urllib.request.urlopen(f"http://127.0.0.1:{self.http}/health", timeout=1)
            except OSError:
                assert self.pods[0].poll() is None, self.logs[0].read_text()
                time.sleep(0.1)
        raise AssertionError(self.logs[0].read_text())

    def kill(self, index):
        """Kills all processes of a pod at once; ranks are not in its process group."""
        family = [self.pods[index].pid]
        for parent in family:
            listed = subprocess.run(["ps", "-o", "pid=", "--ppid", str(parent)], text=True,
                                    capture_output=True, check=False)
            family += [int(child) for child in listed.stdout.split()]
        for process in family:
            try:
                os.kill(process, signal.SIGKILL)
            except ProcessLookupError:
                pass

    def end(self):
        for index, pod in self.pods.items():
            if pod.poll() is None:
                self.kill(index)


@pytest.fixture
def pods(tmp_path):
    if not shutil.which("hydra_pmi_proxy"):
        pytest.skip("no MPICH here: deploy/dependencies.sh ranks")
    group = Pods(tmp_path)
    yield group
    group.end()


@pytest.mark.long
def test_ranks_over_pods_serve_and_drain_together(pods):
    pods.wait_until_ready()
    request = urllib.request.Request(
        f"http://127.0.0.1:{pods.http}/v1/completions", headers={"Content-Type": "application/json"},
        data=b'{"prompt": "Once upon a time", "max_tokens": 8, "temperature": 0}')
    assert b'"completion_tokens":8' in urllib.request.urlopen(request, timeout=30).read().replace(b" ", b"")
    pods.pods[1].send_signal(signal.SIGTERM)  # the worker waits for the leader
    time.sleep(0.5)
    assert pods.pods[1].poll() is None
    pods.pods[0].send_signal(signal.SIGTERM)
    assert pods.pods[0].wait(60) == 0, pods.logs[0].read_text()
    assert pods.pods[1].wait(60) == 0, pods.logs[1].read_text()
    assert "stopped" in pods.logs[0].read_text()


@pytest.mark.long
def test_a_lost_worker_ends_the_leader(pods):
    pods.wait_until_ready()
    pods.kill(1)
    assert pods.pods[0].wait(60) != 0
