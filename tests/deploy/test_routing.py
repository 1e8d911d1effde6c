"""The simulation of routing, on fleets whose results are known."""

import importlib.util

import pytest
import yaml

from chart import ROOT

SPEC = importlib.util.spec_from_file_location("simulate", ROOT / "eval/probes/routing/simulate.py")
simulate = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(simulate)


def chats(count, turns):
    """Chats in turn, each turn one block longer, a second apart."""
    return [simulate.Request(turn * count + chat, tuple((chat, block) for block in range(turn + 4)),
                             (turn + 4) * simulate.BLOCK + 1, 1)
            for turn in range(turns) for chat in range(count)]


def found(requests, replicas, way, capacity=1 << 30):
    return simulate.simulate(requests, replicas, capacity, 1e6, simulate.WAYS[way], 1)[0]


@pytest.mark.parametrize("way", simulate.WAYS)
def test_one_replica_finds_all_there_is(way):
    requests = chats(10, 5)
    common = sum(request.prompt - 1 - simulate.BLOCK for request in requests if len(request.blocks) > 4)
    assert found(requests, 1, way) == pytest.approx(common / sum(request.prompt for request in requests))


def test_ways_that_know_prefixes_find_as_much_with_many_replicas():
    requests = chats(40, 6)
    whole = found(requests, 1, "random")
    for way in ("hash of the prefix (nginx, HAProxy)", "picker", "picker with KV events"):
        assert found(requests, 8, way) == pytest.approx(whole, rel=0.02), way
    assert found(requests, 8, "random") < 0.5 * whole


def test_a_cache_that_is_too_small_forgets():
    assert found(chats(40, 6), 1, "random", capacity=12 * simulate.BLOCK) == 0


def test_the_weights_are_the_chart_s():
    picker = yaml.safe_load((ROOT / "deploy/helm/tessera/files/picker.yaml").read_text())
    weights = {plugin["pluginRef"]: plugin.get("weight") for plugin in picker["schedulingProfiles"][0]["plugins"]}
    assert simulate.WEIGHTS == (weights["prefix-cache-scorer"], weights["queue-scorer"],
                                weights["kv-cache-utilization-scorer"])
