"""More load than a server can take, from one tenant and from all:

    overload_test.py LOAD SERVER [SECONDS [TEST [MODEL]]]

Needs only Python and tessera-load. Prints the tables of docs/measurements, and checks them. TEST is
Tenants, Work or Overload; without it all run. Each measured load takes SECONDS, 60 by default. MODEL is a
checkpoint, the shipped one by default. Phases that are compared alternate, so that other work on the
machine falls on both. On a machine of four cores or more the server has two of its own, and so has
each client that is measured.
"""

import concurrent.futures
import http.client
import itertools
import json
import multiprocessing
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import unittest

import attacked_server
from attacked_server import MIB, Server

LOAD, SERVER = sys.argv[1:3]
SECONDS = float(sys.argv[3]) if len(sys.argv) > 3 else 60
MODEL = pathlib.Path(sys.argv[5]) if len(sys.argv) > 5 else attacked_server.MODEL
CORES = sorted(os.sched_getaffinity(0))
SERVER_CORES, LIGHT_CORES, HEAVY_CORES = (
    (CORES[:-2], CORES[-2:-1], CORES[-1:]) if len(CORES) >= 4 else (CORES, CORES, CORES))
WORKLOAD = "chat:input=100:output=100"
SLOTS = 8
TENANTS = """
tenants:
  - name: heavy
    keys: [{name: heavy, key: a-long-key-of-heavy}]
  - name: light
    keys: [{name: light, key: a-long-key-of-light, admin: true}]
"""
KEYS = {name: f"a-long-key-of-{name}" for name in ("heavy", "light")}


def serve(*flags):
    return Server(SERVER, "--max-sequences", SLOTS, *flags, model=MODEL,
                  setup=lambda: os.sched_setaffinity(0, SERVER_CORES))


def load(server, *flags, key=None, cores=tuple(HEAVY_CORES)):
    """Returns the report of a run whose client has these cores."""
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder) / "report.json"
        done = subprocess.run(
            [LOAD, "--url", f"http://127.0.0.1:{server.http}", WORKLOAD, "--json", str(out),
             *(["--api-key", key] if key else []), *map(str, flags)],
            capture_output=True, text=True, preexec_fn=lambda: os.sched_setaffinity(0, cores))
        assert out.exists(), done.stdout + done.stderr
        return json.loads(out.read_text())


def at_rate(server, rate, seconds, key=None):
    return load(server, "--rate", f"{rate:.3f}", "--duration", seconds, "--max-in-flight", 100_000,
                "--seed", int(time.monotonic() * 1000), key=key)


def capacity(server, key=None):
    """Returns requests a second while all slots are in use: the best of three, for a busy machine."""
    reports = [load(server, "--concurrency", 2 * SLOTS, "--duration", 6, key=key) for _ in range(3)]
    return max(report["throughput"]["requests_per_s"]["value"] for report in reports)


def milliseconds(report, what, which):
    value = report["latency"][what][which]
    return 1e3 * (value["value"] if isinstance(value, dict) else value)


@unittest.skipIf(len(CORES) < 4 and MODEL == attacked_server.MODEL,
                 "needs four cores, or a slower model: the shipped one serves so many requests that to send "
                 "and refuse a hundred times as many takes two cores")
class Tenants(unittest.TestCase):
    """One tenant at a hundred times its share beside one that uses its own.

    Each has half of the slots: the light tenant sends a request whenever one of its own has ended. So
    does the heavy one (*share*), or it sends a hundred times the requests that its half can serve
    (*100 shares*), at random times.

    A tenant that waits preempts another that is ahead of it by two contexts. With a context of 256
    tokens that begins within the pause before each measurement.
    """

    LOADS = ("share", "100 shares")
    ROUNDS = 6
    PAUSE = 10  # seconds

    def test_a_hundred_times_its_share_costs_another_at_most_a_tenth(self):
        with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
            file.write(TENANTS)
            file.flush()
            with serve("--tenants", file.name, "--context", "256") as server:
                self.compare(server)

    def compare(self, server):
        half = capacity(server, KEYS["light"]) / 2
        print(f"\na tenant's share: {half:.1f} requests/s; load average {os.getloadavg()[0]:.1f}")
        print("heavy load  light TTFT p50   light E2E p50  light TPOT p50  light ok  heavy ok  heavy refused")
        latencies = {name: [] for name in self.LOADS}
        for turn in range(self.ROUNDS):
            for name in self.LOADS[::-1] if turn % 2 else self.LOADS:
                latencies[name].append(self.beside(server, half, name))
        ratio = {}
        for what in ("ttft", "e2e", "tpot"):
            pairs = zip(*(latencies[name] for name in self.LOADS))
            ratios = sorted(b[what] / a[what] for a, b in pairs)
            ratio[what] = statistics.geometric_mean(ratios)
            print(f"ratio of {what}, geometric mean of {self.ROUNDS} pairs: {ratio[what]:.3f}, median "
                  f"{statistics.median(ratios):.3f}, from {ratios[0]:.3f} to {ratios[-1]:.3f}")
        self.assertLess(ratio["e2e"], 1.1)

    def beside(self, server, half, name):
        with concurrent.futures.ThreadPoolExecutor() as threads:
            seconds = SECONDS / self.ROUNDS
            whole = seconds + self.PAUSE
            if name == "share":
                heavy = threads.submit(load, server, "--concurrency", SLOTS // 2, "--duration", whole,
                                       key=KEYS["heavy"])
            else:
                heavy = threads.submit(at_rate, server, 100 * half, whole, KEYS["heavy"])
            time.sleep(self.PAUSE)
            light = load(server, "--concurrency", SLOTS // 2, "--duration", seconds, key=KEYS["light"],
                         cores=tuple(LIGHT_CORES))
            requests = heavy.result()["requests"]
        self.assertEqual(light["requests"]["errors"], {}, "nothing of the light tenant is refused")
        latency = {what: milliseconds(light, what, "p50") for what in ("ttft", "e2e", "tpot")}
        print(f"{name:>10} {latency['ttft']:13.0f} ms {latency['e2e']:12.0f} ms "
              f"{latency['tpot']:12.1f} ms {light['requests']['ok']:9} {requests['ok']:9} "
              f"{requests['errors'].get('rejected', 0):14}", flush=True)
        return latency


def ask_without_end(port, path, body_of):
    """Sends one request after the other, as a process of its own until it is killed."""
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {KEYS['heavy']}"}
    client = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
    for number in itertools.count(os.getpid() * 1_000_000):
        client.request("POST", path, body_of(number), headers)
        client.getresponse().read()


class Work(unittest.TestCase):
    """What one tenant's grammars, conversations and digits cost another.

    Each tenant has half of the slots, all the time. Beside it the heavy one sends nothing more (*share*), or a
    few clients send one kind of such requests without a pause.
    """

    LOADS = ("share", "grammars", "conversations", "digits")
    ROUNDS = 6
    PAUSE = 5  # seconds
    CLIENTS = 4

    def test_the_work_of_one_costs_another_at_most_a_tenth(self):
        with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
            file.write(TENANTS)
            file.flush()
            with serve("--tenants", file.name, "--context", "2048") as server:
                self.compare(server)

    def requests_of(self, server):
        """Returns path and body of each load's requests. No two grammars are the same."""
        long = {"input": [{"role": "user", "content": "tell me a story about a cat " * 150}] * 1000,
                "truncation": "auto", "max_output_tokens": 1}
        status, _, answer = server.ask("POST", "/v1/responses", long, {"Authorization": f"Bearer {KEYS['heavy']}"},
                                       timeout=600)
        assert status == 200, answer
        more = json.dumps({"input": "and?", "previous_response_id": json.loads(answer)["id"], "truncation": "auto",
                           "max_output_tokens": 1})
        digits = json.dumps({"prompt": "1234567890" * 6000})
        each = {f"p{i}": {"type": "string", "pattern": f"^[a-z]{{1,{90 + i % 9}}}$"} for i in range(20)}
        grammar = json.dumps({"prompt": "a", "max_tokens": 1, "guided_json": {
            "type": "object", "properties": each | {"NAME": {"type": "null"}}}})
        return {"grammars": ("/v1/completions", lambda number: grammar.replace("NAME", f"n{number}")),
                "conversations": ("/v1/responses", lambda number: more),
                "digits": ("/tokenize", lambda number: digits)}

    def compare(self, server):
        requests = self.requests_of(server)
        print(f"\nload average {os.getloadavg()[0]:.1f}")
        print("  heavy load  light TTFT p50   light E2E p50  light TPOT p50  light ok  heavy ok")
        latencies = {name: [] for name in self.LOADS}
        for turn in range(self.ROUNDS):
            for name in self.LOADS[::-1] if turn % 2 else self.LOADS:
                latencies[name].append(self.beside(server, name, requests.get(name)))
        ratios = {}
        for name in self.LOADS[1:]:
            for what in ("ttft", "e2e", "tpot"):
                pairs = sorted(b[what] / a[what] for a, b in zip(latencies["share"], latencies[name]))
                ratios[name, what] = statistics.geometric_mean(pairs)
                print(f"{name}: ratio of {what}, geometric mean of {self.ROUNDS} pairs: {ratios[name, what]:.3f}, "
                      f"median {statistics.median(pairs):.3f}, from {pairs[0]:.3f} to {pairs[-1]:.3f}")
        for name in self.LOADS[1:]:
            with self.subTest(name):
                self.assertLess(ratios[name, "e2e"], 1.1)

    def beside(self, server, name, request):
        seconds = SECONDS / self.ROUNDS
        clients = [multiprocessing.Process(target=ask_without_end, args=(server.http, *request), daemon=True)
                   for _ in range(self.CLIENTS if request else 0)]
        for client in clients:
            client.start()
        with concurrent.futures.ThreadPoolExecutor() as threads:
            heavy = threads.submit(load, server, "--concurrency", SLOTS // 2, "--duration", seconds + self.PAUSE,
                                   key=KEYS["heavy"])
            time.sleep(self.PAUSE)
            light = load(server, "--concurrency", SLOTS // 2, "--duration", seconds, key=KEYS["light"],
                         cores=tuple(LIGHT_CORES))
            served = heavy.result()["requests"]["ok"]
        for client in clients:
            self.assertTrue(client.is_alive(), "it sends without end")
            client.kill()
            client.join()
        self.assertEqual(light["requests"]["errors"], {}, "nothing of the light tenant is refused")
        latency = {what: milliseconds(light, what, "p50") for what in ("ttft", "e2e", "tpot")}
        print(f"{name:>13} {latency['ttft']:12.0f} ms {latency['e2e']:12.0f} ms {latency['tpot']:12.1f} ms "
              f"{light['requests']['ok']:9} {served:9}", flush=True)
        return latency


def p99(values):
    return statistics.quantiles(values, n=100, method="inclusive")[98]


class Watch:
    """Asks for health over HTTP and gRPC, and reads the memory in use, until it is left.

    Notes also how late it woke up itself: on a busy machine that is a part of its measurement.
    """

    def __init__(self, server):
        self.server = server
        self.http, self.grpc, self.late, self.resident = [], [], [], []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self):
        while True:
            begin = time.monotonic()
            if self._stop.wait(0.1):
                return
            self.late.append(time.monotonic() - begin - 0.1)
            self.http.append(self.server.health())
            begin = time.monotonic()
            assert self.server.grpc_serves()
            self.grpc.append(time.monotonic() - begin)
            self.resident.append(self.server.resident())

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._stop.set()
        self._thread.join()


class Overload(unittest.TestCase):
    """Ten times a server's capacity."""

    def test_admitted_requests_are_served_in_time_and_the_rest_is_refused(self):
        with serve("--queue-timeout", "1s") as server:
            told = sum(float(part) for part in re.findall(
                r"(\d+) MiB", server.logged(r"memory of requests, at most: (.*)"))) * MIB
            limit = capacity(server)
            reports, watches = [], []
            for times in (1, 10):
                if times == 10:
                    time.sleep(3)
                    before = server.resident()
                with Watch(server) as watch:
                    reports.append(at_rate(server, times * limit, SECONDS))
                watches.append(watch)
            time.sleep(3)
            self.check(server, reports, watches, {"told": told, "before": before, "limit": limit})

    def check(self, server, reports, watches, memory):
        print(f"\ncapacity: {memory['limit']:.1f} requests/s")
        print("load   ok  refused  TTFT p50    TTFT p99  /health p99, most     gRPC p99, most  "
              "watch late p99, most")
        for times, report, watch in zip((1, 10), reports, watches):
            requests = report["requests"]
            health = [f"{1e3 * p99(times_):6.1f} {1e3 * max(times_):6.1f} ms"
                      for times_ in (watch.http, watch.grpc, watch.late)]
            print(f"{times:3}x {requests['ok']:5} {requests['errors'].get('rejected', 0):8} "
                  f"{milliseconds(report, 'ttft', 'p50'):6.0f} ms {milliseconds(report, 'ttft', 'p99'):8.0f} ms"
                  f"  {'  '.join(health)}", flush=True)
        most, after = max(watches[1].resident), server.resident()
        print(f"resident: {memory['before'] / MIB:.0f} MiB before, {most / MIB:.0f} at most, "
              f"{after / MIB:.0f} afterwards; told for requests: {memory['told'] / MIB:.0f} MiB")
        at_capacity, overloaded = reports
        self.assertLess(milliseconds(overloaded, "ttft", "p99"),
                        1.5 * milliseconds(at_capacity, "ttft", "p99"))
        for report in reports:
            requests = report["requests"]
            self.assertLessEqual(set(requests["errors"]), {"rejected"}, "nothing accepted is lost")
            self.assertEqual(requests["ok"] + requests["errors"].get("rejected", 0), requests["finished"])
        self.assertGreater(overloaded["requests"]["retry_after_mean_s"], 1, "an estimate")
        self.assertLess(most, memory["before"] + memory["told"])
        self.assertLess(after, 1.05 * memory["before"])
        for watch in watches:
            self.assertLess(p99(watch.http), 0.05)
            self.assertLess(p99(watch.grpc), 0.05)


if __name__ == "__main__":
    print(f"{os.cpu_count()} CPUs, load average {os.getloadavg()[0]:.1f}", flush=True)
    unittest.main(argv=[sys.argv[0], *sys.argv[4:5]], verbosity=2)
