"""A server that runs while a script measures it, for the scripts here."""

import json
import re
import subprocess
import tempfile
import time
import urllib.parse

from completions import call


class RunningServer:
    """Starts a tessera-server on a free port, and ends it. Its log is kept until then."""

    def __init__(self, program, model, *flags):
        self.command = [program, "--model", model, "--http-port", "0", "--grpc-port", "0", "--drain-delay", "0",
                        *map(str, flags)]

    def __enter__(self):
        self.log = tempfile.NamedTemporaryFile("r", suffix=".log")
        self.process = subprocess.Popen(self.command, stderr=open(self.log.name, "w"))
        while " ready after " not in (text := open(self.log.name).read()):
            if self.process.poll() is not None:
                raise SystemExit(text)
            time.sleep(0.05)
        self.url = urllib.parse.urlsplit(re.search(r"listening (http://\S+)", text).group(1))
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait()

    def cache(self):
        return json.load(call(self.url, "GET", "/v1/cache"))

    def tier(self, name):
        """Returns the counts of a tier: host or disk."""
        return next(tier for tier in self.cache()["tiers"] if tier["tier"] == name)
