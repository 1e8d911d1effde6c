"""A real Prometheus scrapes two replicas under load: every query of the dashboard and every rule finds
data, and no alert fires."""

import json
import re
import time
import urllib.parse
import urllib.request

import pytest
import yaml

from chart import CHART
from fleet import Program, eventually, free_ports, load, needed, refused, replicas

DASHBOARD = json.loads((CHART / "files/dashboard.json").read_text())


def queries():
    """Returns all queries of the dashboard, by panel, as Grafana sends them."""
    found = []
    for panel in DASHBOARD["panels"]:
        for target in panel.get("targets", []):
            text = target["expr"].replace("$__rate_interval", "5s")
            found.append((panel["title"], re.sub(r"\$(job|namespace|instance)", ".*", text)))
    return found


class Prometheus:
    def __init__(self, folder, servers):
        binary = needed("prometheus", "prometheus")
        config = folder / "prometheus.yaml"
        config.write_text(yaml.safe_dump({
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": [str(CHART / "files/alerts.yaml")],
            "scrape_configs": [{"job_name": "tessera", "static_configs": [{
                "targets": [f"127.0.0.1:{one.http}" for one in servers], "labels": {"namespace": "n"}}]}],
        }))
        self.port = free_ports(1)[0]
        self.program = Program(
            [binary, f"--config.file={config}", f"--storage.tsdb.path={folder}/data",
             f"--web.listen-address=127.0.0.1:{self.port}"], folder / "prometheus.log")

    def ask(self, path, **arguments):
        url = f"http://127.0.0.1:{self.port}/api/v1/{path}?{urllib.parse.urlencode(arguments)}"
        return json.load(urllib.request.urlopen(url, timeout=10))["data"]

    def value(self, query):
        return self.ask("query", query=query)["result"]


def old_names(replica):
    """Checks the names that the router of vLLM's production-stack reads, beside those of today."""
    queries, hits = (replica.metric(f"vllm:prefix_cache_{what}_total") for what in ("queries", "hits"))
    assert queries > hits > 0
    assert replica.metric("vllm:gpu_prefix_cache_queries_total") == queries
    assert replica.metric("vllm:gpu_prefix_cache_hits_total") == hits
    assert replica.metric("vllm:gpu_prefix_cache_hit_rate") == pytest.approx(hits / queries, rel=1e-3)


@pytest.mark.long
def test_every_query_finds_data_and_no_alert_fires(tmp_path):
    with replicas(tmp_path, 2, "--kv", "streaming", "--kv-memory", "64MiB") as servers:
        prometheus = Prometheus(tmp_path, servers)
        try:
            eventually(lambda: prometheus.value('sum(up{job="tessera"}) == 2'), "both targets")
            for turn in range(6):
                for one in servers:
                    refused(one.url)
                    load(one.url, tmp_path, "chat:prefix=200:input=100:output=20", "--concurrency", 4,
                         "--duration", 1, "--seed", turn + 1)
            empty = [(title, query) for title, query in queries() if not prometheus.value(query)]
            assert empty == []
            rules = prometheus.ask("rules")["groups"][0]["rules"]
            assert {rule["name"] for rule in rules if rule["health"] != "ok"} == set()
            recorded = [rule["name"] for rule in rules if rule["type"] == "recording"]
            assert [name for name in recorded if not prometheus.value(name)] == []
            assert prometheus.ask("alerts")["alerts"] == []
            old_names(servers[0])
            servers[1].program.signal(9)
            eventually(lambda: [alert for alert in prometheus.ask("alerts")["alerts"]
                                if alert["labels"]["alertname"] == "TesseraReplicaDown"], "the alert")
        finally:
            prometheus.program.end()


def test_the_dashboard_asks_for_metrics_alone_that_the_server_has():
    source = "".join((CHART.parents[2] / name).read_text() for name in (
        "server/telemetry/metrics.cpp",))
    for title, query in queries():
        for name in re.findall(r"((?:vllm|tessera):[a-z0-9_]+)", query):
            plain = re.sub(r"_bucket$", "", name)
            assert f'"{plain}"' in source, f"{title}: {name}"
