"""What the attacks share: the server's program, their size, and how a server is started.

The program is the first argument of the command line, the seconds of attack_test.py the second.
"""

import contextlib
import http.client
import resource
import sys
import tempfile
import threading

from attacked_server import Server

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


def with_keys():
    file = tempfile.NamedTemporaryFile("w", suffix=".keys")
    file.write("right-key\n")
    file.flush()
    return file


def unfinished(length, headers=""):
    return (f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n{headers}"
            f"Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n").encode()


@contextlib.contextmanager
def asking_without_end(server, clients, body, headers=None):
    """Clients that send the request again and again. Gives the answers' status. Kills the server at the end."""
    stop = threading.Event()
    answered = []

    def ask():
        while not stop.is_set():
            with contextlib.suppress(OSError, http.client.HTTPException):  # the server is killed meanwhile
                answered.append(server.ask("POST", "/v1/completions", body, headers)[0])

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
