"""Replicas of tessera-server with the shipped model, and programs of the distribution beside them."""

import contextlib
import json
import os
import pathlib
import random
import shutil
import signal
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.request

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAMS = pathlib.Path(os.environ["TESSERA_PROGRAMS"])
PATIENCE = 60  # seconds; the awaited events take a moment


def eventually(condition, what):
    """Returns the value of `condition` as soon as it is true."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        with contextlib.suppress(OSError):
            if value := condition():
                return value
        time.sleep(0.05)
    raise AssertionError(f"waited {PATIENCE} s in vain: {what}")


_given = set()  # ports of free_ports: a fleet's servers begin to listen after all of them have ports


def free_ports(count):
    """Returns ports that were free a moment ago, each one once. They lie below those that connections get by
    themselves, which may take any of theirs before the server does."""
    found = []
    with contextlib.ExitStack() as stack:
        while len(found) < count:
            port = random.randrange(12000, 32000)
            one = stack.enter_context(socket.socket())
            with contextlib.suppress(OSError):
                if port not in _given:
                    one.bind(("127.0.0.1", port))
                    found.append(port)
                    _given.add(port)
    return found


def needed(program, package):
    """Returns the path of a program; skips the test without it."""
    path = shutil.which(program, path=os.environ["PATH"] + ":/usr/sbin:/sbin")
    if path is None:
        pytest.skip(f"no {program} here: the package {package}")
    return path


class Program:
    """A process with its output in a file."""

    def __init__(self, command, log):
        self.log = pathlib.Path(log)
        self.process = subprocess.Popen([str(word) for word in command], stdout=self.log.open("w"),
                                        stderr=subprocess.STDOUT)

    def signal(self, number):
        self.process.send_signal(number)

    def wait(self):
        return self.process.wait(PATIENCE)

    def end(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
        self.process.wait()


class Repeated:
    """Calls `step` in a thread, again and again with a pause between, until the end."""

    def __init__(self, step, pause=0):
        self._step, self._pause, self._ends, self._failure = step, pause, threading.Event(), None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self):
        try:
            while not self._ends.wait(self._pause):
                self._step()
        except Exception as error:  # check() and end() raise it
            self._failure = error

    def check(self):
        """Raises a call's exception again: the thread has ended then."""
        if self._failure is not None:
            raise self._failure

    def end(self):
        """Waits for the last call. Raises a call's exception again."""
        self._ends.set()
        self._thread.join()
        self.check()


class Replica:
    """A server on fixed ports, which can be started again."""

    def __init__(self, folder, number, *flags):
        self.http, self.grpc = free_ports(2)
        self.url = f"http://127.0.0.1:{self.http}"
        self._log = folder / f"replica{number}.log"
        self._flags = flags
        self.program = None

    def start(self):
        self.program = Program(
            [PROGRAMS / "tessera-server", "--model", ROOT / "models/checkpoints/tessera-tiny", "--threads", 1,
             "--http-port", self.http, "--grpc-port", self.grpc, *self._flags], self._log)
        return self

    def ready(self):
        with contextlib.suppress(OSError):
            return urllib.request.urlopen(self.url + "/health", timeout=5).status == 200
        assert self.program.process.poll() is None, self._log.read_text()
        return False

    def metric(self, name, **labels):
        """Returns the sum of a metric's series with these labels."""
        text = urllib.request.urlopen(self.url + "/metrics", timeout=PATIENCE).read().decode()
        return sum(float(line.rsplit(" ", 1)[1]) for line in text.splitlines()
                   if line.startswith((name + "{", name + " "))
                   and all(f'{key}="{value}"' in line for key, value in labels.items()))


@contextlib.contextmanager
def replicas(folder, count, *flags, each=()):
    """Replicas that are ready. flags: of all; each: of every one, in their order."""
    own = each or [[]] * count
    started = [Replica(folder, number, *flags, *own[number]).start() for number in range(count)]
    try:
        for one in started:
            eventually(one.ready, "a replica")
        yield started
    finally:
        for one in started:
            one.program.end()


def load(url, folder, *arguments, status=0, patience=300):
    """Runs tessera-load. Returns its report."""
    report = folder / "report.json"
    done = subprocess.run([PROGRAMS / "tessera-load", "--url", url, "--json", report, *map(str, arguments)],
                          text=True, capture_output=True, check=False, timeout=patience)
    assert done.returncode == status, done.stdout + done.stderr
    return json.loads(report.read_text())


def refused(url):
    """Sends a prompt that is longer than the context."""
    body = json.dumps({"prompt": "word " * 3000}).encode()
    request = urllib.request.Request(url + "/v1/completions", data=body,
                                     headers={"Content-Type": "application/json"})
    with pytest.raises(urllib.error.HTTPError, match="400"):
        urllib.request.urlopen(request, timeout=10)
