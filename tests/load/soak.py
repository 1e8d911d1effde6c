#!/usr/bin/env python3
"""A soak of tessera-server by tessera-load: soak.py LOAD SERVER SECONDS.

Mixed, checked load on the shipped model while clients vanish, the cache is flushed, and the server
is stopped and killed. A supervisor starts it again. Each answer must be right, also after a start,
and afterwards nothing may run or be held, and memory must have stayed. Needs only Python.
"""

import json
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
LOAD, SERVER, SECONDS = sys.argv[1], sys.argv[2], float(sys.argv[3])
LONG = SECONDS >= 120
MAX_GROWTH = "8" if LONG else "64"  # MiB; after a short warm-up pages are still new
CLIENT_FAULTS = ("close@head=0.02,close@body=0.02,close@sent=0.03,close@first=0.03,"
                 "close@middle=0.03,freeze@sent=0.01,freeze@middle=0.01,slow=0.02,garbage=0.02")


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


class Supervisor:
    """Keeps a server running on the same ports, and its number in `pid_file`."""

    def __init__(self, folder):
        self.pid_file = folder / "server.pid"
        self.ports = free_port(), free_port()
        self.http = f"http://127.0.0.1:{self.ports[0]}"
        self.grpc = f"grpc://127.0.0.1:{self.ports[1]}"
        self.statuses = []
        self._stopping = False
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        assert self._ready.wait(60), "the server does not start"

    def _run(self):
        while not self._stopping:
            # Few pages: after the warm-up each has been written to, and so counts as resident.
            self.process = subprocess.Popen(
                [SERVER, "--model", str(ROOT / "models/checkpoints/tessera-tiny"),
                 "--http-port", str(self.ports[0]), "--grpc-port", str(self.ports[1]),
                 "--drain-delay", "0", "--threads", "2" if LONG else "1", "--max-sequences", "256",
                 "--kv-memory", "256MiB", "--kv-also", "f16,k4v2"],
                stderr=subprocess.PIPE, text=True)
            partial = self.pid_file.with_suffix(".partial")
            partial.write_text(str(self.process.pid))
            partial.rename(self.pid_file)
            for line in self.process.stderr:
                if " ready after " in line:
                    self._ready.set()
            self.statuses.append(self.process.wait())
            self.process.stderr.close()

    def stop(self):
        self._stopping = True
        self.process.send_signal(signal.SIGTERM)
        self._thread.join(60)


def load(server, folder, *flags, url=None):
    """Returns the report of a run that must pass."""
    out = folder / "report.json"
    done = subprocess.run(
        [LOAD, "--url", url or server.http, "--process", str(server.pid_file), "--json", str(out),
         "--settle", "20", "--freeze-time", "1", *flags], stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True)
    print("$ tessera-load", *flags, "\n" + done.stdout, flush=True)
    assert done.returncode == 0, "the run failed"
    report = json.loads(out.read_text())
    assert report["answers"]["wrong"] == 0 and report["server"]["idle_again"]
    assert report["answers"]["correct"] > 0
    return report


def repeat_until_enough(phase, server, folder, seconds):
    """Runs a phase. Doubles its length, at most three times, if a busy machine did too little in it."""
    for _ in range(4):
        if phase(server, folder, seconds):
            return
        print(f"too little happened in {seconds:.1f} s", flush=True)
        seconds *= 2
    raise AssertionError(f"{phase.__name__}: too little happened in {seconds / 2:.1f} s")


def mixed(server, folder, seconds):
    """Checked workloads of several tenants and formats, while clients misbehave.
    Returns whether clients misbehaved and prefixes were found in the cache."""
    report = load(
        server, folder, "repeat:prompts=8:prefix=300:groups=2:weight=4",
        "repeat:name=sampled:prompts=6:output=16:temperature=1:salt=b",
        "recall:salt=a:kv=k4v2", "recall:priority=1:prefix=80",
        "agent:turns=3:input=80:followup=30:output=8", "turns:turns=3:think=0.2:input=100:output=8",
        "--concurrency", "16" if LONG else "3", "--duration", f"{seconds:.2f}",
        "--warmup", f"{seconds / 4:.2f}", "--faults", CLIENT_FAULTS,
        "--flush-every", f"{seconds / 3:.2f}", "--min-correct", "0.8", "--max-growth", MAX_GROWTH)
    assert report["requests"]["errors"] == {}
    return report["requests"]["injected_faults"] > SECONDS / 5 and report["tokens"]["cached"] > 0


def crowd(server, folder, seconds):
    """Many streams at once, half of whose clients vanish."""
    load(server, folder, f"repeat:prompts={32 if LONG else 8}:input=12:output=24",
         "--concurrency", "256" if LONG else "64", "--duration", f"{seconds:.2f}",
         "--warmup", f"{seconds / 4:.2f}", "--faults", "close@first=0.25,close@sent=0.25",
         "--max-growth", MAX_GROWTH)


def grpc(server, folder, seconds):
    """Load over gRPC alone, with clients that cancel."""
    load(server, folder, "repeat:prompts=8", "agent:turns=2:input=60:output=8",
         "--concurrency", "4", "--duration", f"{seconds:.2f}",
         "--faults", "close@sent=0.1,close@middle=0.1", url=server.grpc)


def restarts(server, folder, seconds):
    """SIGTERM, then SIGKILL: after each the server comes back with the same answers.
    Returns whether requests were answered after each start."""
    report = load(server, folder, "repeat:prompts=8:output=48", "--concurrency", "4", "--duration",
                  f"{seconds:.2f}", "--kill",
                  f"TERM@{seconds * 0.25:.2f},KILL@{seconds * 0.65:.2f}")
    assert not report["server"]["gone"]
    for sent in report["server"]["signals"]:
        assert 0 <= sent["ended"] - sent["sent"] < 30, sent
    return all(sent["answered"] > sent["ended"] for sent in report["server"]["signals"])


def main():
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        server = Supervisor(folder)
        try:
            repeat_until_enough(mixed, server, folder, SECONDS * 0.4)
            crowd(server, folder, SECONDS * 0.15)
            grpc(server, folder, SECONDS * 0.1)
            repeat_until_enough(restarts, server, folder, SECONDS * 0.35)
        finally:
            server.stop()
    assert server.statuses[-3:] == [0, -signal.SIGKILL, 0], server.statuses
    assert set(server.statuses) <= {0, -signal.SIGKILL}, server.statuses
    print(f"soaked for {time.monotonic() - begin:.0f} s")


if __name__ == "__main__":
    main()
