#!/usr/bin/env python3
"""Simulates a fleet under a production trace: the prefix cache hits of each way of choosing a replica.

    simulate.py TRACE.jsonl.xz [--replicas 4 16] [--load 0.5 0.8] [--seeds 3]

The trace has Mooncake's form: timestamp in ms, input_length, output_length, hash_ids of 512 tokens each. Prints
tables in Markdown. Needs nothing but Python.
"""

import argparse
import collections
import hashlib
import heapq
import json
import lzma
import random
import statistics

BLOCK = 512                 # tokens of a hash id
SLOTS = 64                  # --max-sequences
SECONDS_PER_TOKEN = 0.02    # of one sequence's decoding; it does not slow prefill down
REFRESH = 0.05              # seconds between the picker's reads of /metrics
WEIGHTS = (3, 2, 2)         # prefix, queue, KV cache: deploy/helm/tessera/files/picker.yaml

Request = collections.namedtuple("Request", "start blocks prompt output")


class Lru:
    """The most recently used blocks of one replica, and in `holders` the replicas of each block."""

    def __init__(self, replica, capacity, holders):
        self._replica, self._capacity, self._holders = replica, capacity, holders
        self._blocks = collections.OrderedDict()

    def use(self, blocks):
        # The deepest block of a path is the first to go.
        for block in reversed(blocks):
            if block not in self._blocks:
                self._holders[block].add(self._replica)
            self._blocks[block] = None
            self._blocks.move_to_end(block)
        while len(self._blocks) > self._capacity:
            old, _ = self._blocks.popitem(last=False)
            self._holders[old].discard(self._replica)
            if not self._holders[old]:
                del self._holders[old]

    def match(self, blocks):
        count = 0
        while count < len(blocks) and blocks[count] in self._blocks:
            count += 1
        return count


class Replica:
    """Computes prompts one after the other, in the order of arrival, and any number of answers beside them."""

    def __init__(self, number, fleet):
        self._number, self._fleet = number, fleet
        self.cache = Lru(number, fleet.capacity // BLOCK, fleet.held)
        self.waiting = collections.deque()
        self.running, self.tokens, self._busy = 0, 0, False

    def try_next(self, now):
        if self._busy or not self.waiting or self.running >= SLOTS:
            return
        request = self.waiting[0]
        need = request.prompt + request.output
        if self.tokens + need > self._fleet.capacity and self.running:
            return
        self.waiting.popleft()
        hit = min(self.cache.match(request.blocks) * BLOCK, request.prompt - 1)
        self.cache.use(request.blocks[:hit // BLOCK])  # locked while it runs
        self._fleet.hit_tokens += hit
        self._busy, self.running, self.tokens = True, self.running + 1, self.tokens + need
        seconds = (request.prompt - hit) / self._fleet.speed
        self._fleet.busy[self._number] += seconds
        self._fleet.at(now + seconds, self._computed, request)

    def _computed(self, now, request):
        self._busy = False
        self.cache.use(request.blocks[:request.prompt // BLOCK])
        self._fleet.first_token.append(now - request.start)
        self._fleet.at(now + request.output * SECONDS_PER_TOKEN, self._finished, request)
        self.try_next(now)

    def _finished(self, now, request):
        self.running -= 1
        self.tokens -= request.prompt + request.output
        self.try_next(now)


class Fleet:
    def __init__(self, count, capacity, speed):
        self.capacity, self.speed = capacity, speed
        self.held = collections.defaultdict(set)  # block: the replicas that have it
        self.replicas = [Replica(number, self) for number in range(count)]
        self.busy = [0.0] * count
        self.hit_tokens, self.first_token = 0, []
        self._events, self._serial = [], 0

    def at(self, time, call, request):
        self._serial += 1
        heapq.heappush(self._events, (time, self._serial, call, request))

    def run_until(self, time):
        while self._events and self._events[0][0] <= time:
            now, _, call, request = heapq.heappop(self._events)
            call(now, request)


def stable_hash(value):
    return int.from_bytes(hashlib.blake2b(repr(value).encode(), digest_size=8).digest(), "big")


class RandomChoice:
    def __init__(self, fleet, seed):
        self._count, self._random = len(fleet.replicas), random.Random(seed)

    def choose(self, _):
        return self._random.randrange(self._count)


class RoundRobin:
    def __init__(self, fleet, _):
        self._count, self._next = len(fleet.replicas), -1

    def choose(self, _):
        self._next = (self._next + 1) % self._count
        return self._next


class PrefixHash:
    """As the proxies of deploy/proxy: a hash of a prompt's beginning, here its first three blocks."""

    def __init__(self, fleet, _):
        self._count = len(fleet.replicas)

    def choose(self, request):
        return stable_hash(request.blocks[:3]) % self._count


class Picker:
    """llm-d's scores: the share of the prompt that is found (guessed by the requests sent there), a short queue, and free
    KV cache. Equal scores are decided by chance."""

    def __init__(self, fleet, seed, weights=WEIGHTS, precise=False):
        self._fleet, self._weights, self._random = fleet, weights, random.Random(seed)
        self._guess = collections.defaultdict(set)
        self._sent = [Lru(number, fleet.capacity // BLOCK, self._guess) for number in range(len(fleet.replicas))]
        self._holders = fleet.held if precise else self._guess
        self._read, self._queues, self._used = -1.0, [], []

    def _read_metrics(self, now):
        if now - self._read >= REFRESH:
            self._read = now
            self._queues = [len(one.waiting) for one in self._fleet.replicas]
            self._used = [min(1.0, one.tokens / self._fleet.capacity) for one in self._fleet.replicas]

    def choose(self, request):
        self._read_metrics(request.start)
        found = [0] * len(self._queues)
        left = None
        for place, block in enumerate(request.blocks):
            holders = self._holders.get(block, frozenset())
            left = set(holders) if left is None else left & holders
            if not left:
                break
            for number in left:
                found[number] = place + 1
        low, high = min(self._queues), max(self._queues)
        prefix, queue, cache = self._weights
        blocks = max(1, len(request.blocks))
        scores = [prefix * found[i] / blocks + cache * (1 - self._used[i])
                  + queue * (1 if high == low else (high - self._queues[i]) / (high - low))
                  for i in range(len(found))]
        best = max(scores)
        chosen = self._random.choice([i for i, score in enumerate(scores) if score >= best - 1e-9])
        self._sent[chosen].use(request.blocks)
        return chosen


WAYS = {
    "random": RandomChoice,
    "round robin": RoundRobin,
    "hash of the prefix (nginx, HAProxy)": PrefixHash,
    "picker without the prefix score": lambda fleet, seed: Picker(fleet, seed, (0, 2, 2)),
    "picker": Picker,
    "picker with KV events": lambda fleet, seed: Picker(fleet, seed, precise=True),
}


def read_trace(path):
    with lzma.open(path, "rt") as lines:
        return [json.loads(line) for line in lines]


def requests_of(trace, copies, seed):
    """Returns `copies` fleets' worth of requests. Copies share only the first block, which all prompts of the trace
    have; each begins at another place of the trace. Its time stamps are multiples of 3 s: they are spread."""
    chance = random.Random(seed)
    end = trace[-1]["timestamp"] / 1000 + 3
    common = trace[0]["hash_ids"][0]
    made = []
    for copy in range(copies):
        shift = chance.uniform(0, end) if copy else 0
        for line in trace:
            start = (line["timestamp"] / 1000 + chance.uniform(0, 3) + shift) % end
            blocks = tuple(block if block == common else (copy, block) for block in line["hash_ids"])
            made.append(Request(start, blocks, max(1, line["input_length"]), line["output_length"]))
    return sorted(made, key=lambda request: request.start)


def simulate(requests, count, capacity, speed, way, seed):
    """Returns (share of prompt tokens found, median and 95th percentile of seconds to the first token, the busiest
    replica's seconds of computation over the mean)."""
    fleet = Fleet(count, capacity, speed)
    router = way(fleet, seed)
    for request in requests:
        fleet.run_until(request.start)
        replica = fleet.replicas[router.choose(request)]
        replica.waiting.append(request)
        replica.try_next(request.start)
    fleet.run_until(float("inf"))
    assert len(fleet.first_token) == len(requests)
    times = sorted(fleet.first_token)
    return (fleet.hit_tokens / sum(request.prompt for request in requests), statistics.median(times),
            times[int(0.95 * len(times))], max(fleet.busy) / statistics.mean(fleet.busy))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("trace")
    parser.add_argument("--replicas", type=int, nargs="+", default=[4, 16], help="multiples of 4")
    parser.add_argument("--load", type=float, nargs="+", default=[0.5, 0.8],
                        help="prompt tokens arriving over those that the fleet computes without any cache")
    parser.add_argument("--capacity", type=int, nargs="+", default=[450_000, 1_100_000, 2_050_000],
                        help="tokens in the KV cache of a replica")
    parser.add_argument("--seeds", type=int, default=3)
    arguments = parser.parse_args()
    trace = read_trace(arguments.trace)
    for count in arguments.replicas:
        for load in arguments.load:
            for capacity in arguments.capacity:
                print(f"\n{count} replicas, load {load}, {capacity} tokens each\n")
                print("| way | found | first token, median s | 95 % | busiest / mean |\n|---|--:|--:|--:|--:|")
                for name, way in WAYS.items():
                    results = []
                    for seed in range(arguments.seeds):
                        requests = requests_of(trace, count // 4, seed)
                        tokens = sum(request.prompt for request in requests)
                        speed = tokens / (requests[-1].start * count * load)
                        results.append(simulate(requests, count, capacity, speed, way, seed))
                    found, median, late, busiest = (statistics.mean(column) for column in zip(*results))
                    print(f"| {name} | {found:.3f} | {median:.2f} | {late:.2f} | {busiest:.2f} |", flush=True)


if __name__ == "__main__":
    main()
