"""A tessera-server for one test, on free ports that are read from its log."""

import os
import pathlib
import re
import signal
import subprocess
import threading
import time

import httpx

ROOT = pathlib.Path(__file__).resolve().parents[3]
MODEL = ROOT / "models" / "checkpoints" / "tessera-tiny"
# A real checkpoint, where deploy/smollm2.sh has fetched it.
SMOLLM2 = pathlib.Path(os.environ.get("XDG_CACHE_HOME", pathlib.Path.home() / ".cache"),
                       "tessera/SmolLM2-135M-Instruct.Q4_1.gguf")
PATIENCE = 60  # seconds; the awaited events take a moment at most


def eventually(condition, what):
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, f"waited {PATIENCE} s in vain: {what}"
        time.sleep(0.01)


def command(*flags):
    return [
        os.environ["TESSERA_SERVER"],
        "--model", str(MODEL),
        "--http-port", "0",
        "--grpc-port", "0",
        "--drain-delay", "0",
        *flags,
    ]


class TesseraServer:
    def __init__(self, *flags):
        self.process = subprocess.Popen(command(*flags), stderr=subprocess.PIPE, text=True)
        self.log = []
        self._reader = threading.Thread(target=self._read_log, daemon=True)
        self._reader.start()
        eventually(lambda: self.logged(" ready after ") or self.process.poll() is not None, "start")
        assert self.process.poll() is None, self.log
        self.http = self.logged(r"listening (https?://\S+)")
        self.grpc = self.logged(r"listening grpc://(\S+)")

    def _read_log(self):
        for line in self.process.stderr:
            self.log.append(line.rstrip())

    def logged(self, pattern):
        """Returns the match of the pattern (or of its group) in the log, or None."""
        for line in list(self.log):
            if match := re.search(pattern, line):
                return match.group(match.lastindex or 0)
        return None

    def metric(self, name, **labels):
        for line in httpx.get(self.http + "/metrics").text.splitlines():
            if re.match(rf"{name}[{{ ]", line) and all(
                f'{key}="{value}"' in line for key, value in labels.items()
            ):
                return float(line.rsplit(" ", 1)[1])
        raise AssertionError(f"no metric {name} {labels}")

    def running(self):
        return self.metric("vllm:num_requests_running")

    def bytes_in_use(self):
        """Returns the bytes of sequences. Flushes the prefix cache first."""
        httpx.post(self.http + "/v1/cache/flush").raise_for_status()
        return sum(self.metric("tessera:kv_bytes", state=s) for s in ("private", "shared"))

    def signal(self, number=signal.SIGTERM):
        self.process.send_signal(number)

    def wait(self, timeout=PATIENCE):
        """Returns the exit status."""
        status = self.process.wait(timeout)
        self._reader.join(timeout)
        return status

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
