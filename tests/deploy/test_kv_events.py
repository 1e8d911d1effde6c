"""KV events over ZeroMQ, read as llm-d's router and vLLM's subscribers read them, with their libraries."""

import json
import subprocess
import threading
import time
import urllib.request

import msgpack
import pytest
import zmq

from fleet import PROGRAMS, ROOT, Replica, eventually, free_ports

STORY = "Once upon a time there was a small dog. It lived in a house by the sea. "


class Subscriber:
    """What a router knows of one replica: the blocks that were stored and not removed."""

    def __init__(self, endpoint, binds=False):
        self.blocks = {}  # block: (its parent, its tokens)
        self.numbers, self.topics, self.events, self.block_tokens = [], set(), 0, None
        self.failure, self.strict = None, False
        self._socket = zmq.Context.instance().socket(zmq.SUB)
        self._socket.setsockopt(zmq.SUBSCRIBE, b"")
        self._socket.bind(endpoint) if binds else self._socket.connect(endpoint)
        self._ends = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self):
        try:
            while not self._ends:
                if self._socket.poll(50):
                    self._read(*self._socket.recv_multipart())
        except Exception as error:  # told by check()
            self.failure = error
            raise

    def _read(self, topic, number, message):
        self.topics.add(topic.decode())
        self.numbers.append(int.from_bytes(number, "big"))
        seconds, events, *rest = msgpack.unpackb(message, strict_map_key=True)
        assert abs(time.time() - seconds) < 60 and rest in ([], [0])
        for kind, hashes, *fields in events:
            self.events += 1
            if kind == "BlockStored":
                parent, tokens, self.block_tokens, lora, medium = fields
                assert lora is None and medium is None
                assert len(tokens) == len(hashes) * self.block_tokens
                for place, block in enumerate(hashes):
                    assert 0 < block < 1 << 64 and block not in self.blocks
                    assert parent is None or parent in self.blocks or not self.strict
                    own = tokens[place * self.block_tokens:][:self.block_tokens]
                    self.blocks[block] = parent, own
                    parent = block
            else:
                assert kind == "BlockRemoved" and fields == [None]
                for block in hashes:
                    assert block in self.blocks or not self.strict
                    self.blocks.pop(block, None)

    def cached(self, tokens):
        """Returns how many of these tokens the replica has, by the events."""
        paths = {(parent, tuple(own)): block for block, (parent, own) in self.blocks.items()}
        found, parent = 0, None
        while (parent := paths.get((parent, tuple(tokens[found:][:self.block_tokens])))) is not None:
            found += self.block_tokens
        return found

    def end(self):
        self._ends = True
        self._thread.join()
        self._socket.close()
        assert self.failure is None
        assert self.numbers == list(range(self.numbers[0], self.numbers[0] + len(self.numbers)))


def post(replica, path, **body):
    return json.load(urllib.request.urlopen(urllib.request.Request(
        replica.url + path, data=json.dumps(body).encode(), headers={"Content-Type": "application/json"}), timeout=60))


def complete(replica, prompt, **fields):
    """Returns how many of the prompt's tokens were cached."""
    answer = post(replica, "/v1/completions", **({"prompt": prompt, "max_tokens": 2} | fields))
    return answer["usage"]["prompt_tokens_details"]["cached_tokens"]


@pytest.fixture
def replica(tmp_path):
    """A replica with little memory, which listens for subscribers, and the port."""
    (port,) = free_ports(1)
    one = Replica(tmp_path, 0, "--kv-events", f"tcp://*:{port}", "--kv-events-topic", "kv@10.0.0.1:8080@tiny",
                  "--kv-memory", "24MiB", "--max-sequences", 2, "--context", 1024, "--kv-ladder", "none")
    one.start()
    try:
        eventually(one.ready, "a replica")
        yield one, port
    finally:
        one.program.end()


def units(replica):
    return json.load(urllib.request.urlopen(replica.url + "/v1/cache"))["units"]


def follow(router, one):
    """Waits until events arrive, and begins with an empty cache: events before that are missed."""
    eventually(lambda: complete(one, f"{time.monotonic()} " + STORY * 12) >= 0 and router.numbers, "the first event")
    post(one, "/v1/cache/flush")
    eventually(lambda: units(one) == 0 and not router.blocks, "an empty cache")
    router.strict = True


def test_a_router_knows_what_the_cache_holds(replica):
    one, port = replica
    router = Subscriber(f"tcp://127.0.0.1:{port}")
    follow(router, one)
    predicted = 0
    for number in range(40):  # more than fits
        prompt = f"{number % 13} " + STORY * (8 + number % 9)
        tokens = post(one, "/tokenize", prompt=prompt)["tokens"]
        expected = router.cached(tokens[:-1])  # one token is computed in any case
        assert complete(one, prompt) == expected
        predicted += expected
        eventually(lambda: len(router.blocks) == units(one), "the events of the request")
    assert predicted > 0
    assert one.metric("tessera:prefix_cache_units_total", event="evicted") > 0
    assert router.block_tokens == one.metric("tessera:prefix_cache_unit_tokens")
    assert router.topics == {"kv@10.0.0.1:8080@tiny"}
    post(one, "/v1/cache/flush")
    eventually(lambda: not router.blocks, "an empty cache")
    complete(one, STORY * 10, cache_salt="secret")
    assert units(one) > 0
    complete(one, "without " + STORY * 10)
    eventually(lambda: router.blocks, "the blocks without a salt")
    assert len(router.blocks) < units(one), "a router cannot tell blocks under a salt"
    router.end()


@pytest.mark.long
def test_the_replica_connects_to_a_router_and_does_not_wait_for_one_that_hangs(tmp_path):
    (port,) = free_ports(1)
    hung = zmq.Context.instance().socket(zmq.SUB)
    hung.setsockopt(zmq.RCVHWM, 1)
    hung.setsockopt(zmq.RCVBUF, 4096)
    hung.setsockopt(zmq.SUBSCRIBE, b"")
    one = Replica(tmp_path, 0, "--kv-events", f"tcp://127.0.0.1:{port}").start()
    try:
        eventually(one.ready, "a replica")
        hung.bind(f"tcp://127.0.0.1:{port}")
        eventually(lambda: complete(one, f"{time.monotonic()} " + STORY * 12) >= 0 and hung.poll(100), "an event")
        for number in range(100):
            complete(one, f"{number} " + STORY * 12, max_tokens=1)
        one.program.process.terminate()
        assert one.program.wait() == 0
        numbers = []
        while hung.poll(500):
            numbers.append(int.from_bytes(hung.recv_multipart()[1], "big"))
        assert numbers == sorted(set(numbers)) and numbers
    finally:
        one.program.end()
        hung.close(0)


@pytest.mark.parametrize("flags, named", [
    (["--kv-events", "udp://a:1"], "kv-events: 'udp://a:1'"),
    (["--kv-events", "tcp://*:1", "--prefix-cache", "off"], "prefix-cache off"),
    (["--kv-events", "tcp://*:much"], "kv-events: tcp://*:much"),
])
def test_what_cannot_be_is_refused(flags, named):
    done = subprocess.run([PROGRAMS / "tessera-server", "--model", ROOT / "models/checkpoints/tessera-tiny",
                           "--http-port", "0", "--grpc-port", "0", *flags],
                          text=True, capture_output=True, check=False, timeout=60)
    assert done.returncode == 1
    assert named in done.stderr
