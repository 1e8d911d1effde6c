"""Common parts of the attacks: the server's program, their size, and how a server is started.

The program is the first argument of the command line, the seconds of attack_test.py the second.
"""

import contextlib
import http.client
import os
import pathlib
import resource
import sys
import tempfile
import threading
import time

from attacked_server import PATIENCE, Server

SERVER = sys.argv[1]
WHOLE = len(sys.argv) > 2 and sys.argv[2].isdigit()
SLOWER = 10 if "/fuzz/" in SERVER else 1  # a sanitizer's share of time and memory
PROMPT = "Tell me a story about a cat and a boat."


def of(short, whole):
    return whole if WHOLE else short


def raise_own_limit():
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


raise_own_limit()


def serve(*flags, **more):
    return Server(SERVER, *flags, **more)


def serve_without_type_checks(*flags):
    """For a test that takes the server's last descriptor.

    UBSan reads an object's type through a pipe of its own. If it gets none, it reports a wrong type.
    """
    suppressions = pathlib.Path(__file__).with_name("no_types.supp")
    options = f"{os.environ.get('UBSAN_OPTIONS', '')}:suppressions={suppressions}"
    return serve(*flags, setup=lambda: os.environ.update(UBSAN_OPTIONS=options))


def with_keys():
    file = tempfile.NamedTemporaryFile("w", suffix=".keys")
    file.write("right-key\n")
    file.flush()
    return file


def unfinished(length, headers=""):
    return (f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n{headers}"
            f"Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n").encode()


def tokens_in(server, seconds, most, headers=None):
    """Returns how many tokens the server generates in this time, at least 1.

    A test that waits for whole answers asks for so many. A sanitizer and kernels without AVX2 make a
    token hundreds of times slower, far more than anything else.
    """
    begin = time.monotonic()
    body = {"prompt": PROMPT, "max_tokens": 20, "ignore_eos": True}
    status, _, answer = server.ask("POST", "/v1/completions", body, headers)
    assert status == 200, answer
    return max(1, min(most, int(20 * seconds / (time.monotonic() - begin))))


@contextlib.contextmanager
def asking_without_end(server, clients, body, headers=None):
    """Clients that send the request again and again. Gives the answers' status. Kills the server at the end."""
    stop = threading.Event()
    answered = []

    def ask():
        while not stop.is_set():
            with contextlib.suppress(OSError, http.client.HTTPException):  # the server is killed meanwhile
                answered.append(server.ask("POST", "/v1/completions", body, headers, PATIENCE * SLOWER)[0])

    threads = [threading.Thread(target=ask) for _ in range(clients)]
    for thread in threads:
        thread.start()
    try:
        yield answered
    finally:
        stop.set()
        server.process.kill()
        for thread in threads:
            thread.join()
