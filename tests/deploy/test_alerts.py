"""The alerts, in Prometheus's own rule tests: each fires where it should, and none on a healthy hour."""

import re
import shutil
import subprocess

import pytest
import yaml

from alerts import ALERTS, RULES, firing
from chart import ROOT

STEP = 30  # seconds between samples
SAMPLES = 27 * 3600 // STEP  # more than a day: an alert compares with yesterday

REPLICA = 'job="tessera",namespace="n",instance="{}",model_name="m"'


def steady(rate, begin=0):
    """Returns a counter that grows by `rate` a second, for 27 hours."""
    return f"{begin}+{rate * STEP:g}x{SAMPLES}"


def constant(value):
    return f"{value}+0x{SAMPLES}"


def histogram(name, instance, seconds, rate=2):
    """Returns the buckets of a histogram whose observations all take `seconds`."""
    labels = REPLICA.format(instance)
    return {f'{name}_bucket{{{labels},le="{bound}"}}': steady(rate if seconds <= float(bound) else 0)
            for bound in ("0.1", "0.75", "1", "5", "20", "+Inf")}


def replica(instance):
    """Returns the series of a healthy replica: two requests a second, half of their tokens cached."""
    labels = REPLICA.format(instance)
    series = {
        f'up{{job="tessera",namespace="n",instance="{instance}"}}': constant(1),
        f"vllm:num_requests_running{{{labels}}}": constant(3),
        f"tessera:steps_total{{{labels}}}": steady(20),
        f"vllm:kv_cache_usage_perc{{{labels}}}": constant(0.5),
        f"vllm:num_preemptions_total{{{labels}}}": steady(0.001),
        f"vllm:prompt_tokens_total{{{labels}}}": steady(500),
        f"vllm:prefix_cache_queries_total{{{labels}}}": steady(1000),
        f"vllm:prefix_cache_hits_total{{{labels}}}": steady(500),
        f'tessera:requests_rejected_total{{{labels},code="RESOURCE_EXHAUSTED"}}': steady(0.001),
        f'tessera:requests_rejected_total{{{labels},code="INVALID_ARGUMENT"}}': steady(0.5),
    }
    for reason, rate in (("stop", 1.5), ("length", 0.4), ("abort", 0.1), ("error", 0)):
        series[f'vllm:request_success_total{{{labels},finished_reason="{reason}"}}'] = steady(rate)
    series |= histogram("vllm:time_to_first_token_seconds", instance, 0.5)
    series |= histogram("vllm:inter_token_latency_seconds", instance, 0.05)
    series |= histogram("vllm:request_queue_time_seconds", instance, 0.05)
    return series


HEALTHY = replica("a") | replica("b") | replica("c") | replica("d")
A = REPLICA.format("a")


def of(metric, values, instances="abcd"):
    """Returns the series of `metric` (or with more labels, metric|labels) with other values."""
    name, _, labels = metric.partition("|")
    return {f"{name}{{{REPLICA.format(i)}{',' + labels if labels else ''}}}": values for i in instances}


def up(instances):
    return {f'up{{job="tessera",namespace="n",instance="{i}"}}': constant(0) for i in instances}


def slow(name, seconds):
    return {key: value for i in "abcd" for key, value in histogram(name, i, seconds).items()}


# Series that differ from a healthy service and make the alert fire.
CASES = {
    "TesseraDown": up("abcd"),
    "TesseraReplicaDown": up("a"),
    "TesseraStalled": of("tessera:steps_total", constant(5000), "a"),
    "TesseraRestarting": of("tessera:steps_total", " ".join(["0+300x39"] * (SAMPLES // 40)), "a"),
    "TesseraErrors": of('vllm:request_success_total|finished_reason="error"', steady(0.01), "a"),
    "TesseraRefusing": of('tessera:requests_rejected_total|code="RESOURCE_EXHAUSTED"', steady(0.2)),
    "TesseraQueueSlow": slow("vllm:request_queue_time_seconds", 15),
    "TesseraFirstTokenSlow": slow("vllm:time_to_first_token_seconds", 15),
    "TesseraTokensSlow": slow("vllm:inter_token_latency_seconds", 0.9),
    "TesseraKvFull": of("vllm:kv_cache_usage_perc", constant(0.97), "a"),
    "TesseraPreempting": of("vllm:num_preemptions_total", steady(0.5), "a"),
    "TesseraClientsLeave": of('vllm:request_success_total|finished_reason="abort"', steady(1)),
    # As many hits as usual until two hours ago, then few.
    "TesseraHitRateFell": of("vllm:prefix_cache_hits_total",
                             f"0+15000x{SAMPLES - 240} {15000 * (SAMPLES - 240)}+300x240"),
    "TesseraUneven": of("vllm:prompt_tokens_total", steady(20), "bcd"),
}
# Alerts that an alert's cause brings along.
TOGETHER = {"TesseraDown": {"TesseraReplicaDown"}}


needs_promtool = pytest.mark.skipif(not shutil.which("promtool"), reason="no promtool: package prometheus")


@needs_promtool
def test_the_rules_are_correct():
    subprocess.run(["promtool", "check", "rules", RULES], check=True, capture_output=True)


def test_every_alert_has_a_case_and_an_entry_in_the_runbook():
    assert list(CASES) == ALERTS
    headings = re.findall(r"^### (\w+)$", (ROOT / "docs/howto/operate.md").read_text(), re.MULTILINE)
    assert headings == ALERTS
    for group in yaml.safe_load(RULES.read_text())["groups"]:
        for rule in group["rules"]:
            if "alert" in rule:
                assert rule["annotations"]["runbook"] == f"docs/howto/operate.md#{rule['alert'].lower()}"


@needs_promtool
@pytest.mark.long
def test_a_healthy_service_alerts_nobody(tmp_path):
    assert firing(tmp_path, HEALTHY, STEP, ["1h", "26h"]) == set()


@needs_promtool
@pytest.mark.long
@pytest.mark.parametrize("alert", ALERTS)
def test_an_alert_fires(alert, tmp_path):
    hours = 26 if alert == "TesseraHitRateFell" else 2
    assert firing(tmp_path, HEALTHY | CASES[alert], STEP, [f"{hours}h"]) == {alert} | TOGETHER.get(alert, set())
