"""KV events over ZeroMQ, read as llm-d's router and vLLM's subscribers read them, with their libraries."""

import json
import subprocess
import time
import urllib.request

import pytest
import zmq

from fleet import PROGRAMS, ROOT, Replica, eventually, free_ports
from kv_events import Subscriber

STORY = "Once upon a time there was a small dog. It lived in a house by the sea. "


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
    eventually(lambda: units(one) == 0, "an empty cache")
    eventually(lambda: not router.blocks, "the events of an empty cache")
    complete(one, STORY * 10, cache_salt="secret")
    assert units(one) > 0
    complete(one, "without " + STORY * 10)
    eventually(lambda: router.blocks, "the blocks without a salt")
    assert len(router.blocks) < units(one), "a router cannot tell blocks under a salt"
    router.end()


def test_a_router_knows_the_copies_in_the_tiers(tmp_path):
    (port,) = free_ports(1)
    one = Replica(tmp_path, 0, "--kv-events", f"tcp://*:{port}", "--kv-memory", "24MiB", "--max-sequences", 2,
                  "--context", 1024, "--kv-ladder", "none", "--kv-disk", tmp_path / "kv", "--kv-host-memory", "64MiB")
    one.start()
    try:
        eventually(one.ready, "a replica")
        router = Subscriber(f"tcp://127.0.0.1:{port}")
        follow(router, one)
        eventually(lambda: not any(router.copies.values()), "empty tiers")
        complete(one, STORY * 12)
        blocks = set(router.blocks)
        assert blocks
        for medium in "CPU", "DISK":
            eventually(lambda: router.copies[medium] >= blocks, f"the copies of medium {medium}")
        numbers = iter(range(1000))  # more than fit into the cache
        eventually(lambda: complete(one, f"{next(numbers)} " + STORY * 40) >= 0 and not blocks & set(router.blocks),
                   "an evicted prompt")
        assert router.copies["DISK"] >= blocks, "it is still on disk"
        post(one, "/v1/cache/flush")
        eventually(lambda: not any(router.copies.values()), "the end of all copies")
        router.end()
    finally:
        one.program.end()


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
def test_an_impossible_address_is_refused(flags, named):
    done = subprocess.run([PROGRAMS / "tessera-server", "--model", ROOT / "models/checkpoints/tessera-tiny",
                           "--http-port", "0", "--grpc-port", "0", *flags],
                          text=True, capture_output=True, check=False, timeout=60)
    assert done.returncode == 1
    assert named in done.stderr
