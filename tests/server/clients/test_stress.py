"""256 streams at once, on any number of cores, in rounds, half of the clients killed."""

import asyncio
import json
import os
import random
import signal
import subprocess

import httpx
import pytest

from tessera_server import PATIENCE, TesseraServer, eventually

STREAMS = 256
TOKENS = 24
# The median of the last rounds may exceed that of the first by this much, for memory that malloc
# keeps.
SLACK_KIB = 4096


def body(i):
    # token ids; no two prompts continue alike
    prompt = random.Random(i).sample(range(300, 4000), 12)
    return {"prompt": prompt, "max_tokens": TOKENS,
            "temperature": 0, "ignore_eos": True, "stream": True}


def text_of(events):
    """Returns the text of a complete stream: its last events are a finish reason and [DONE]."""
    *pieces, done, end = events.split("\n\n")
    assert (done, end) == ("data: [DONE]", "")
    choices = [json.loads(piece.removeprefix("data: "))["choices"][0] for piece in pieces]
    assert choices[-1]["finish_reason"] == "length"
    return "".join(choice["text"] for choice in choices)


def resident_kib(server):
    with open(f"/proc/{server.process.pid}/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmRSS:"))


@pytest.fixture(scope="module")
def busy():
    # Few pages: after two rounds each has been written to, and so counts as resident.
    with TesseraServer("--max-sequences", str(STREAMS), "--kv-memory", "256MiB") as started:
        yield started
        started.signal()
        assert started.wait() == 0


@pytest.fixture(scope="module")
def alone(busy):
    """Returns each stream's text when it is the only one."""
    with httpx.Client(timeout=PATIENCE) as client:
        texts = [text_of(client.post(busy.http + "/v1/completions", json=body(i)).text)
                 for i in range(STREAMS)]
    assert len(set(texts)) >= STREAMS // 2, "texts must differ to show that none is mixed up"
    return texts


async def all_at_once(server):
    limits = httpx.Limits(max_connections=STREAMS)
    async with httpx.AsyncClient(timeout=PATIENCE * 5, limits=limits) as client:
        answers = await asyncio.gather(*(
            client.post(server.http + "/v1/completions", json=body(i)) for i in range(STREAMS)))
    return [text_of(answer.text) for answer in answers]


def check_rounds(server, alone, rounds):
    resident = []
    for _ in range(rounds):
        assert asyncio.run(all_at_once(server)) == alone
        assert server.running() == 0 and server.bytes_in_use() == 0
        resident.append(resident_kib(server))
    print("VmRSS in KiB after each round:", *resident)
    half = len(resident) // 2
    early, late = sorted(resident[1:half + 1]), sorted(resident[half + 1:])
    assert late[len(late) // 2] - early[len(early) // 2] <= SLACK_KIB, resident


def test_streams_at_once_are_those_alone_and_memory_stays(busy, alone):
    check_rounds(busy, alone, 3)


@pytest.mark.long
def test_memory_stays_over_ten_rounds(busy, alone):
    check_rounds(busy, alone, 10)


def test_killed_clients_leave_nothing_and_the_others_complete(busy, alone, tmp_path):
    files = [tmp_path / str(i) for i in range(STREAMS)]
    clients = []
    for i, file in enumerate(files):
        asked = body(i) if i % 2 else body(i) | {"max_tokens": 1000}  # the even ones never end
        with file.open("wb") as out:
            clients.append(subprocess.Popen(
                ["curl", "-sN", busy.http + "/v1/completions", "-d", json.dumps(asked)],
                stdout=out))
    doomed = clients[::2]
    eventually(lambda: all(file.stat().st_size for file in files[::2]), "each has begun")
    eventually(lambda: busy.bytes_in_use() > 0, "groups close")
    aborted = busy.metric("vllm:request_success_total", finished_reason="abort")
    for client in doomed:
        os.kill(client.pid, signal.SIGKILL)
    for client in clients:
        client.wait(PATIENCE * 5)
    eventually(lambda: busy.bytes_in_use() == 0, "no page is in use")
    assert busy.running() == 0
    ended = busy.metric("vllm:request_success_total", finished_reason="abort") - aborted
    assert ended == len(doomed)
    assert [text_of(file.read_text()) for file in files[1::2]] == alone[1::2]
