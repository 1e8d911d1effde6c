"""Prefixes on disk: they survive the server."""

import signal
import time

import httpx
import pytest

from tessera_server import TesseraServer
from test_lifetime import refusal

CHAT = {
    "messages": [{"role": "user", "content": "Tell me about the old lighthouse. " * 40}],
    "max_tokens": 8,
    "temperature": 0,
}


def chat(server, **fields):
    """Returns the text and the cached tokens."""
    answer = httpx.post(server.http + "/v1/chat/completions", json=CHAT | fields, timeout=60)
    answer.raise_for_status()
    body = answer.json()
    return (body["choices"][0]["message"]["content"],
            body["usage"]["prompt_tokens_details"]["cached_tokens"])


def stop(server):
    server.signal(signal.SIGTERM)
    assert server.wait() == 0


@pytest.fixture
def folder(tmp_path):
    return str(tmp_path / "kv")


def test_a_chat_is_found_after_a_restart(folder):
    with TesseraServer("--kv-disk", folder) as server:
        text, cached = chat(server)
        assert cached == 0
        _, cached = chat(server)
        assert cached > 0
        stop(server)
    with TesseraServer("--kv-disk", folder) as server:
        assert server.logged(r"evicted prefixes: .* holds ([1-9]\d*) blocks")
        assert chat(server) == (text, cached)
        assert server.metric("tessera:kv_tier_restored_units_total") > 0
        assert server.metric("tessera:kv_tier_read_units_total", tier="disk") > 0
        tiers = httpx.get(server.http + "/v1/cache").json()["tiers"]
        assert [tier["tier"] for tier in tiers] == ["disk"]
        assert 0 < tiers[0]["bytes"] <= tiers[0]["limit_bytes"]


def test_a_killed_server_loses_the_last_seconds_alone(folder):
    with TesseraServer("--kv-disk", folder) as server:
        text, _ = chat(server)
        time.sleep(2)
        server.signal(signal.SIGKILL)
        server.wait()
    with TesseraServer("--kv-disk", folder, "--kv-host-memory", "64MiB") as server:
        again, cached = chat(server)
        assert (again, cached > 0) == (text, True)


def test_another_salt_and_a_flush_find_nothing(folder):
    with TesseraServer("--kv-disk", folder) as server:
        chat(server, cache_salt="a")
        stop(server)
    with TesseraServer("--kv-disk", folder) as server:
        assert chat(server, cache_salt="b")[1] == 0
        assert chat(server)[1] == 0
        httpx.post(server.http + "/v1/cache/flush").raise_for_status()
        assert chat(server, cache_salt="a")[1] == 0


def test_other_settings_find_nothing_and_read_nothing_wrong(folder):
    with TesseraServer("--kv-disk", folder, "--kv", "f16") as server:
        chat(server)
        stop(server)
    with TesseraServer("--kv-disk", folder, "--kv", "k4v4") as server:
        assert chat(server)[1] == 0


def test_a_folder_has_one_server(folder):
    with TesseraServer("--kv-disk", folder):
        assert "is used by another process" in refusal("--kv-disk", folder)


def test_refusals_name_the_setting(folder):
    assert "kv-disk-size" in refusal("--kv-disk", folder, "--kv-disk-size", "5")
    assert "prefix cache" in refusal("--kv-disk", folder, "--prefix-cache", "off")
    assert "one rank" in refusal("--kv-host-memory", "1GiB", "--tensor-parallel", "2")
