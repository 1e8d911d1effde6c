"""nginx and HAProxy as they ship, over two and three replicas of the real server: chats land where
their prefix is, and replicas may be restarted, killed or hang."""

import concurrent.futures
import contextlib
import json
import pathlib
import re
import signal
import sys
import threading
import time
import urllib.request

import grpc
import grpc_tools
import pytest
from grpc_tools import protoc

from fleet import PATIENCE, ROOT, Program, eventually, free_ports, load, needed, replicas

pytestmark = pytest.mark.long

# Chats of eight turns without think time. The seed makes the same chats for every run.
CHATS = ["turns:turns=8:think=0:input=200:followup=20:output=8", "--seed", 7]


class Proxy:
    """A proxy with the configuration that ships, in front of these replicas."""

    def __init__(self, name, folder, servers):
        self.http, self.grpc = free_ports(2)
        text = (ROOT / "deploy/proxy" / {"nginx": "nginx.conf", "haproxy": "haproxy.cfg"}[name]).read_text()
        text = re.sub(r"^ *server [^\n]*tessera-(\d):(8080|50051)[^\n]*\n",
                      lambda line: self._server(line, servers), text, flags=re.MULTILINE)
        for shipped, port in (("8000", self.http), ("50050", self.grpc)):
            text = re.sub(rf"(bind :|listen ){shipped}\b", rf"\g<1>{port}", text)
        config = folder / f"{name}.conf"
        config.write_text(text)
        self.command = {
            "nginx": [needed("nginx", "nginx-light"), "-c", config, "-p", folder, "-g", "daemon off;"],
            "haproxy": [needed("haproxy", "haproxy"), "-f", config]}[name]
        self.log = folder / f"{name}.log"
        self.url = f"http://127.0.0.1:{self.http}"

    @staticmethod
    def _server(line, servers):
        number = int(line[1])
        if number >= len(servers):
            return ""
        one = servers[number]
        port = one.http if line[2] == "8080" else one.grpc
        return line[0].replace(f"tessera-{number}:{line[2]}", f"127.0.0.1:{port}")

    def __enter__(self):
        self.program = Program(self.command, self.log)
        eventually(lambda: urllib.request.urlopen(self.url + "/health", timeout=5), "the proxy")
        return self

    def __exit__(self, *_):
        self.program.end()


@contextlib.contextmanager
def fleet(name, count, folder, *flags):
    """Yields a proxy and its replicas."""
    with replicas(folder, count, "--drain-delay", "4s", *flags) as servers:
        with Proxy(name, folder, servers) as proxy:
            yield proxy, servers


def cached_share(report):
    return report["tokens"]["cached"] / report["tokens"]["prompt"]


PROXIES = pytest.mark.parametrize("name", ["nginx", "haproxy"])


@PROXIES
@pytest.mark.parametrize("count", [2, 3])
def test_chats_land_where_their_prefix_is(name, count, tmp_path):
    with replicas(tmp_path, 1) as (alone,):
        one = load(alone.url, tmp_path, *CHATS, "--concurrency", 12, "--requests", 240)
    with fleet(name, count, tmp_path) as (proxy, servers):
        several = load(proxy.url, tmp_path, *CHATS, "--concurrency", 12, "--requests", 240)
        shares = [server.metric("vllm:request_success_total") / 240 for server in servers]
    print(f"{name}, {count} replicas: {cached_share(several):.3f} of the prompt tokens cached, one replica "
          f"{cached_share(one):.3f}; shares of the requests {', '.join(f'{s:.2f}' for s in shares)}")
    assert cached_share(several) >= 0.9 * cached_share(one)
    assert min(shares) > 0.4 / count, "a replica has next to nothing"


def in_background(function, *arguments):
    """Starts `function` in a thread. Returns its future."""
    return concurrent.futures.ThreadPoolExecutor(1).submit(function, *arguments)


@PROXIES
def test_a_rolling_restart_loses_no_request(name, tmp_path):
    with fleet(name, 3, tmp_path) as (proxy, servers):
        restarted = threading.Event()

        def chats():
            """Returns the reports of loads, one after the other until all have restarted."""
            reports = []
            while not restarted.is_set():
                reports.append(load(proxy.url, tmp_path, CHATS[0], "--seed", len(reports), "--concurrency", 8,
                                    "--duration", 5))
            return reports

        running = in_background(chats)
        time.sleep(1)
        for one in servers:
            one.program.signal(signal.SIGTERM)
            assert one.program.wait() == 0
            one.start()
            eventually(one.ready, "the replica")
            time.sleep(3)  # two good checks
        restarted.set()
        reports = running.result()
        assert [report["requests"]["errors"] for report in reports] == [{}] * len(reports)
        assert sum(report["requests"]["ok"] for report in reports) > 100


def chat(url, session, tokens=4, timeout=PATIENCE):
    """Sends a short chat of this session. Returns the seconds that it took."""
    body = {"messages": [{"role": "user", "content": f"Tell a story about {session}."}],
            "max_tokens": tokens, "temperature": 0, "ignore_eos": True}
    request = urllib.request.Request(
        url + "/v1/chat/completions", data=json.dumps(body).encode(),
        headers={"Content-Type": "application/json", "x-session-id": session})
    begin = time.monotonic()
    answer = json.load(urllib.request.urlopen(request, timeout=timeout))
    assert answer["usage"]["completion_tokens"] == tokens
    return time.monotonic() - begin


def handled(servers):
    return [server.metric("vllm:request_success_total") for server in servers]


@PROXIES
def test_a_killed_replica_costs_only_its_streams(name, tmp_path):
    concurrency = 9
    with fleet(name, 3, tmp_path) as (proxy, servers):
        flags = ["chat:output=100:input=100", "--concurrency", concurrency, "--duration", 12]

        def broken():
            """Returns the report of a run that some streams fail."""
            with contextlib.suppress(AssertionError):
                load(proxy.url, tmp_path, *flags)
            return json.loads((tmp_path / "report.json").read_text())

        running = in_background(broken)
        eventually(lambda: servers[0].metric("vllm:num_requests_running"), "a request on the replica")
        time.sleep(2)
        servers[0].program.signal(signal.SIGKILL)
        report = running.result()
        lost = sum(report["requests"]["errors"].values())
        print(f"{name}: {lost} of {report['requests']['ok'] + lost} requests lost with a killed replica")
        # Each client has one request at a time: more would mean that one was lost afterwards.
        assert lost <= concurrency
        for session in range(30):
            assert chat(proxy.url, f"session {session}") < 5


def test_a_hanging_replica_gets_nothing_new_from_haproxy(tmp_path):
    with fleet("haproxy", 3, tmp_path) as (proxy, servers):
        for session in range(30):
            chat(proxy.url, f"session {session}")
        assert min(handled(servers)) > 0
        servers[1].program.signal(signal.SIGSTOP)
        begin = time.monotonic()
        time.sleep(10)
        slowest = max(chat(proxy.url, f"session {session}") for session in range(30))
        print(f"haproxy: the slowest of 30 chats took {slowest:.2f} s, 10 s after a replica had hung")
        assert slowest < 5
        assert time.monotonic() - begin < 60
        before = handled([servers[0], servers[2]])
        servers[1].program.signal(signal.SIGCONT)
        eventually(lambda: chat(proxy.url, "again") and handled([servers[1]])[0] > 0, "its return")
        assert min(before) > 0


def owners_of(servers, send):
    """Sends a request of each of 30 sessions. Returns the replica that a session's went to, by session."""
    owners = {}
    for session in map("session {}".format, range(30)):
        before = handled(servers)
        send(session)
        # A replica counts a request a moment after its client has the answer.
        grown = eventually(lambda: [place for place, count in enumerate(handled(servers)) if count > before[place]],
                           "the count of a request")
        (owners[session],) = grown
    assert set(owners.values()) == set(range(len(servers)))
    return owners


def test_a_hanging_replica_delays_only_its_own_sessions_behind_nginx(tmp_path):
    with fleet("nginx", 3, tmp_path) as (proxy, servers):
        owners = owners_of(servers, lambda session: chat(proxy.url, session))
        servers[1].program.signal(signal.SIGSTOP)
        for session, owner in owners.items():
            if owner != 1:
                assert chat(proxy.url, session) < 5
        theirs = next(session for session, owner in owners.items() if owner == 1)
        with pytest.raises(TimeoutError):
            chat(proxy.url, theirs, timeout=5)


# ---- gRPC


@pytest.fixture(scope="module")
def wire(tmp_path_factory):
    """Messages and stubs of the API."""
    out = tmp_path_factory.mktemp("stubs")
    include = pathlib.Path(grpc_tools.__file__).parent / "_proto"
    assert not protoc.main(
        ["protoc", f"-I{ROOT / 'proto'}", f"-I{include}", f"--python_out={out}", f"--grpc_python_out={out}",
         str(ROOT / "proto/tessera/v1/inference.proto")])
    sys.path.insert(0, str(out))
    from tessera.v1 import inference_pb2, inference_pb2_grpc

    return inference_pb2, inference_pb2_grpc


class GrpcChats:
    """Clients that each hold one conversation after the other, over gRPC through a proxy."""

    def __init__(self, wire, address):
        self.messages, stubs = wire
        self.channel = grpc.insecure_channel(address)
        self.stub = stubs.InferenceStub(self.channel)
        self.ok = self.prompt = self.cached = 0
        self.errors = []
        self.stop = threading.Event()

    def turn(self, session, text, timeout=PATIENCE, tokens=8):
        """Continues `text`. Returns it with the answer."""
        request = self.messages.GenerateRequest(text=text, max_tokens=tokens, ignore_eos=True)
        request.sampling.temperature = 0
        said = ""
        for event in self.stub.Generate(request, metadata=[("x-session-id", session)], timeout=timeout):
            said += event.text
            self.prompt += event.usage.prompt_tokens
            self.cached += event.usage.cached_tokens
        self.ok += 1
        return text + said

    def converse(self, client):
        """Conversations of six turns until `stop` is set."""
        number = 0
        while not self.stop.is_set():
            session, text = f"client {client} chat {number}", f"Story {client} {number}. " * 30
            for _ in range(6):
                with self.errors_noted():
                    text = self.turn(session, text) + " And then the little dog said that it was time. "
            number += 1

    def stream(self, client):
        """Long answers until `stop` is set."""
        number = 0
        while not self.stop.is_set():
            with self.errors_noted():
                self.turn(f"stream {client} {number}", "Once upon a time", tokens=1000)
            number += 1

    @contextlib.contextmanager
    def errors_noted(self):
        try:
            yield
        except grpc.RpcError as error:
            self.errors.append(f"{error.code()} {error.details()}")

    def run(self, clients, seconds, during=lambda: None, streams=0):
        with concurrent.futures.ThreadPoolExecutor(clients + streams) as pool:
            futures = [pool.submit(self.converse, client) for client in range(clients)]
            futures += [pool.submit(self.stream, client) for client in range(streams)]
            during()
            time.sleep(seconds)
            self.stop.set()
            for future in futures:
                future.result()


@PROXIES
def test_grpc_sessions_land_where_their_prefix_is(name, wire, tmp_path):
    with replicas(tmp_path, 1) as (alone,):
        one = GrpcChats(wire, f"127.0.0.1:{alone.grpc}")
        one.run(6, 4)
    with fleet(name, 3, tmp_path) as (proxy, servers):
        several = GrpcChats(wire, f"127.0.0.1:{proxy.grpc}")
        several.run(6, 4)
        assert min(handled(servers)) > 0
    assert one.errors == several.errors == []
    print(f"{name}, gRPC, 3 replicas: {several.cached / several.prompt:.3f} of the prompt tokens cached, one "
          f"replica {one.cached / one.prompt:.3f}")
    assert several.cached / several.prompt >= 0.9 * one.cached / one.prompt


@PROXIES
def test_a_rolling_restart_loses_no_grpc_call(name, wire, tmp_path):
    with fleet(name, 3, tmp_path) as (proxy, servers):
        chats = GrpcChats(wire, f"127.0.0.1:{proxy.grpc}")

        def roll():
            for one in servers:
                one.program.signal(signal.SIGTERM)
                assert one.program.wait() == 0
                one.start()
                eventually(one.ready, "the replica")
                time.sleep(6)  # nginx counts a replica as lost for 5 s

        # With streams a replica drains for seconds. No client sends a call again.
        chats.run(6, 1, during=roll, streams=3)
        assert chats.errors == []
        assert chats.ok > 100


@PROXIES
def test_a_killed_replica_costs_only_its_grpc_streams(name, wire, tmp_path):
    with fleet(name, 3, tmp_path) as (proxy, servers):
        chats = GrpcChats(wire, f"127.0.0.1:{proxy.grpc}")

        def kill():
            time.sleep(2)
            servers[0].program.signal(signal.SIGKILL)

        chats.run(6, 6, during=kill)
        print(f"{name}: {len(chats.errors)} of {chats.ok + len(chats.errors)} gRPC calls lost with a killed replica")
        assert len(chats.errors) <= 6


def test_a_hanging_replica_gets_no_new_grpc_call_from_haproxy(wire, tmp_path):
    with fleet("haproxy", 3, tmp_path) as (proxy, servers):
        chats = GrpcChats(wire, f"127.0.0.1:{proxy.grpc}")
        servers[1].program.signal(signal.SIGSTOP)
        time.sleep(10)
        for session in range(30):
            chats.turn(f"session {session}", "Once upon a time", timeout=5)
        assert chats.ok == 30
        servers[1].program.signal(signal.SIGCONT)


def test_a_hanging_replica_delays_only_its_own_grpc_sessions_behind_nginx(wire, tmp_path):
    with fleet("nginx", 3, tmp_path) as (proxy, servers):
        chats = GrpcChats(wire, f"127.0.0.1:{proxy.grpc}")
        owners = owners_of(servers, lambda session: chats.turn(session, "Once upon a time"))
        servers[1].program.signal(signal.SIGSTOP)
        for session, owner in owners.items():
            if owner != 1:
                chats.turn(session, "Once upon a time", timeout=5)
        theirs = next(session for session, owner in owners.items() if owner == 1)
        with pytest.raises(grpc.RpcError, match="DEADLINE_EXCEEDED"):
            chats.turn(theirs, "Once upon a time", timeout=5)
