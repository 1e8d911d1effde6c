#!/usr/bin/env python3
"""Measures the cost of tessera-load itself, against the tests' stub, which answers at once.

    python3 bench/served/client_cost.py build/release/bin/tessera-load build/release/bin/load-stub

1. 2,000 requests a second of 8 events each, the client on one core and the stub on another: the client's
   lag, and its share of that core.
2. A million requests in a closed loop: CPU time of a request, and the most memory, beside that of a
   fiftieth of them.

It takes 3 minutes and needs a quiet machine. The exit status is 1 if the p99 of the lag is 5 ms or more,
or if the memory grows by 2 MiB or more.
"""

import argparse
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile


def on_core(core):
    return lambda: os.sched_setaffinity(0, {core})


def run(args, url, folder, *flags):
    """Returns the report of a run, and the most memory of the client in MiB."""
    out = folder / "report.json"
    client = subprocess.Popen(
        [args.load, "--url", url, "chat:output=8:input=20", *map(str, flags), "--json", out],
        stdout=subprocess.DEVNULL, preexec_fn=on_core(args.cores[0]))
    _, status, usage = os.wait4(client.pid, 0)
    assert status == 0, f"tessera-load ended with {status}"
    return json.loads(out.read_text()), usage.ru_maxrss / 1024


def measure(args, url, folder):
    rate, _ = run(args, url, folder, "--rate", args.rate, "--duration", args.seconds)
    lag = rate["latency"]["client_lag"]["p99"]
    print(f"{args.rate} requests/s for {args.seconds} s: {rate['requests']['ok']} ok, "
          f"{100 * rate['client_cpu_seconds'] / rate['seconds']:.0f} % of a core, client lag p99 "
          f"{1e3 * lag['value']:.2f} ms [{1e3 * lag['low']:.2f}, {1e3 * lag['high']:.2f}]", flush=True)
    _, few = run(args, url, folder, "--concurrency", 16, "--requests", args.requests // 50)
    report, many = run(args, url, folder, "--concurrency", 16, "--requests", args.requests)
    count = report["requests"]["ok"]
    print(f"{count} requests: {1e6 * report['client_cpu_seconds'] / count:.0f} us of CPU time each, at most "
          f"{many:.1f} MiB; a fiftieth of them: {few:.1f} MiB")
    return lag["value"] < 0.005 and many - few < 2


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("load", help="tessera-load")
    parser.add_argument("stub", help="load-stub")
    parser.add_argument("--rate", type=int, default=2000)
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--requests", type=int, default=1_000_000)
    parser.add_argument("--cores", type=int, nargs=2, default=[0, 1], help="of the client and of the stub")
    args = parser.parse_args()
    print(f"{os.cpu_count()} CPUs, load average {os.getloadavg()[0]:.1f}", flush=True)
    stub = subprocess.Popen([args.stub, "0"], stdout=subprocess.PIPE, text=True,
                            preexec_fn=on_core(args.cores[1]))
    try:
        url = re.search(r"http://\S+", stub.stdout.readline())[0]
        with tempfile.TemporaryDirectory() as folder:
            return measure(args, url, pathlib.Path(folder))
    finally:
        stub.kill()


if __name__ == "__main__":
    sys.exit(0 if main() else 1)
