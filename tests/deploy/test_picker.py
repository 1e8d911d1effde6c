"""The endpoint picker's scores from the metrics and KV events of real replicas, under a production trace.

eval/probes/routing/simulate.py predicts the share of prompt tokens that each way of choosing finds. Here the same
choices are made for servers with the shipped model; the picker reads the same as llm-d's: /metrics, and KV events."""

import concurrent.futures
import contextlib
import functools
import json
import lzma
import pathlib
import random
import re
import threading
import time
import types
import urllib.request

import pytest

from fleet import PATIENCE, ROOT, Repeated, eventually, free_ports, replicas
from kv_events import Subscriber
from test_routing import simulate

pytestmark = pytest.mark.long

TRACE = pathlib.Path(ROOT / "../shared/data/traces/mooncake_conversation.jsonl.xz")
LONGEST = 24    # blocks of a prompt; the trace's are up to ten times as long
TOKENS = 64     # of our prefix block, which stands for 512 tokens of the trace
LOAD = 0.5      # of the simulated replicas
REFRESH = 0.25  # seconds between reads of /metrics; llm-d's default is 0.05


def requests_of_sessions(copies):
    """Returns all requests of some sessions of the trace, in `copies` that share the system prompt only."""
    with lzma.open(TRACE, "rt") as lines:
        trace = [line for line in map(json.loads, lines)
                 if simulate.stable_hash(line["hash_ids"][1:2]) % (40 * copies) == 0]
    for line in trace:
        line["hash_ids"] = line["hash_ids"][:LONGEST]
        line["input_length"] = len(line["hash_ids"]) * simulate.BLOCK + simulate.BLOCK // TOKENS
        line["output_length"] = 1
    return simulate.requests_of(trace, copies, seed=1)


@functools.cache
def tokens_of(block):
    """Returns the tokens that stand for a block of the trace."""
    chance = random.Random(repr(block))
    return tuple(chance.randrange(300, 4000) for _ in range(TOKENS))


class Metrics:
    """A picker's view of the replicas, read at intervals."""

    def __init__(self, servers):
        self.queues, self.used = [0] * len(servers), [0.0] * len(servers)
        self._servers = servers
        text = self._text(servers[0])
        (config,) = re.findall(r"^vllm:cache_config_info\{(.*)\} 1$", text, re.MULTILINE)
        labels = dict(re.findall(r'(\w+)="([^"]*)"', config))
        assert int(labels["block_size"]) == TOKENS
        self.blocks = int(labels["num_gpu_blocks"])
        self.end = Repeated(self._refresh, REFRESH).end

    @staticmethod
    def _text(one):
        return urllib.request.urlopen(one.url + "/metrics", timeout=PATIENCE).read().decode()

    def _refresh(self):
        for number, one in enumerate(self._servers):
            values = dict(re.findall(r"^(vllm:(?:num_requests_waiting|kv_cache_usage_perc))\{.*\} (\S+)$",
                                     self._text(one), re.MULTILINE))
            self.queues[number] = float(values["vllm:num_requests_waiting"])
            self.used[number] = float(values["vllm:kv_cache_usage_perc"])


class Held:
    """The replicas that have a block, by their KV events."""

    def __init__(self, subscribers):
        self._subscribers, self._read = subscribers, [(-1, set())] * len(subscribers)

    def get(self, block, default):
        for number, one in enumerate(self._subscribers):
            if one.events != self._read[number][0]:
                self._read[number] = one.events, {tuple(tokens) for _, tokens in list(one.blocks.values())}
        return {number for number, (_, held) in enumerate(self._read) if tokens_of(block) in held} or default


class Picker(simulate.Picker):
    """The simulated picker's scores, of real replicas."""

    def __init__(self, metrics, seed, subscribers):
        fleet = types.SimpleNamespace(replicas=metrics.queues, capacity=metrics.blocks * simulate.BLOCK,
                                      held=Held(subscribers) if subscribers else None)
        super().__init__(fleet, seed, precise=bool(subscribers))
        self._metrics = metrics

    def _read_metrics(self, now):
        self._queues, self._used = list(self._metrics.queues), list(self._metrics.used)


def complete(one, request):
    """Sends a request of the trace. Returns how many of its prompt's tokens were cached."""
    prompt = [token for block in request.blocks for token in tokens_of(block)] + [299]
    answer = json.load(urllib.request.urlopen(urllib.request.Request(
        one.url + "/v1/completions", headers={"Content-Type": "application/json"},
        data=json.dumps({"prompt": prompt, "max_tokens": 1}).encode()), timeout=300))
    assert answer["usage"]["prompt_tokens"] == len(prompt)
    return answer["usage"]["prompt_tokens_details"]["cached_tokens"]


def units(one):
    return json.load(urllib.request.urlopen(one.url + "/v1/cache", timeout=PATIENCE))["units"]


def replay(folder, requests, count, way):
    """Sends the requests in their order to `count` replicas, as many at once. Returns the share of the prompt tokens
    that was found, the largest share of the requests on a replica, and the blocks that a replica holds."""
    ports = free_ports(count)
    flags = ["--kv-memory", "48MiB", "--max-sequences", 4, "--max-step-tokens", 256, "--kv-ladder", "none"]
    with contextlib.ExitStack() as stack:
        servers = stack.enter_context(replicas(folder, count, *flags, each=[["--kv-events", f"tcp://*:{port}"]
                                                                             for port in ports]))
        metrics = Metrics(servers)
        stack.callback(metrics.end)
        subscribers = []
        if way == "picker with KV events":
            for port in ports:
                subscribers.append(Subscriber(f"tcp://127.0.0.1:{port}"))
                stack.callback(subscribers[-1].end)
            time.sleep(1)  # until they are connected
        if way.startswith("picker"):
            router = Picker(metrics, 1, subscribers)
        else:
            router = simulate.WAYS[way](types.SimpleNamespace(replicas=servers), 1)
        lock, found, chosen, left = threading.Lock(), [], [0] * count, iter(requests)

        def client():
            while True:
                with lock:
                    request = next(left, None)
                    if request is None:
                        return
                    number = router.choose(request)
                    chosen[number] += 1
                found.append(complete(servers[number], request))

        with concurrent.futures.ThreadPoolExecutor(count) as pool:
            for done in [pool.submit(client) for _ in range(count)]:
                done.result()
        if subscribers:
            eventually(lambda: [len(known.blocks) for known in subscribers] == [units(one) for one in servers],
                       "the last events")
    prompts = sum(len(request.blocks) * TOKENS + 1 for request in requests)
    return sum(found) / prompts, max(chosen) / len(requests), metrics.blocks


WAYS = ["random", "round robin", "hash of the prefix (nginx, HAProxy)", "picker", "picker with KV events"]


@pytest.mark.skipif(not TRACE.exists(), reason="no shared/data/traces here")
@pytest.mark.parametrize("count", [4, 16])
def test_the_picker_finds_prefixes_as_simulated(count, tmp_path):
    requests = requests_of_sessions(count // 4)
    # The simulated replicas have half of their time to spare, and so have queues as the real ones.
    speed = sum(request.prompt for request in requests) / (requests[-1].start * count * LOAD)
    found, expected = {}, {}
    for way in WAYS:
        found[way], largest, blocks = replay(tmp_path, requests, count, way)
        expected[way] = simulate.simulate(requests, count, blocks * simulate.BLOCK, speed, simulate.WAYS[way], 1)[0]
        print(f"{count} replicas of {blocks} blocks, {len(requests)} requests, {way}: {found[way]:.3f} of the prompt "
              f"tokens found, simulated {expected[way]:.3f}; largest share of the requests {largest:.3f}", flush=True)
    for way in WAYS:
        # A picker's choice depends on queues, and so on the machine.
        assert found[way] == pytest.approx(expected[way], abs=0.06 if way.startswith("picker") else 0.01), way
    for way in ("picker", "picker with KV events"):
        assert found[way] > 1.4 * max(found["random"], found["round robin"])
