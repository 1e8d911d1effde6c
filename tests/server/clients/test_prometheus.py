"""A scrape as Prometheus makes it, read by its own Python parser."""

import httpx
from prometheus_client.parser import text_string_to_metric_families

# Metrics that gateways and dashboards for such servers use. The parser drops a counter's _total.
EXPECTED = {
    "vllm:num_requests_running": "gauge",
    "vllm:num_requests_waiting": "gauge",
    "vllm:kv_cache_usage_perc": "gauge",
    "vllm:cache_config_info": "gauge",
    "vllm:num_preemptions": "counter",
    "vllm:prompt_tokens": "counter",
    "vllm:generation_tokens": "counter",
    "vllm:request_success": "counter",
    "vllm:time_to_first_token_seconds": "histogram",
    "vllm:inter_token_latency_seconds": "histogram",
    "vllm:e2e_request_latency_seconds": "histogram",
    "vllm:request_queue_time_seconds": "histogram",
    "vllm:request_prefill_time_seconds": "histogram",
    "vllm:request_decode_time_seconds": "histogram",
    "vllm:request_prompt_tokens": "histogram",
    "vllm:request_generation_tokens": "histogram",
    "tessera:kv_bytes": "gauge",
    "tessera:kv_token_capacity": "gauge",
    "tessera:steps": "counter",
}


def scrape(server):
    answer = httpx.get(server.http + "/metrics", headers={
        "Accept": "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3"})
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    families = list(text_string_to_metric_families(answer.text))
    assert len({family.name for family in families}) == len(families), "a family stands twice"
    return {family.name: family for family in families}


def value(families, name, **labels):
    family = name.removesuffix("_total").removesuffix("_count").removesuffix("_sum")
    found = [sample.value for sample in families[family].samples
             if sample.name == name and labels.items() <= sample.labels.items()]
    assert len(found) == 1, f"{name} {labels}: {found}"
    return found[0]


def test_names_types_and_labels(server, client):
    client.completions.create(model="tessera-tiny", prompt="x", max_tokens=2)
    families = scrape(server)
    assert {name: families[name].type for name in EXPECTED if name in families} == EXPECTED
    for family in families.values():
        assert family.name.startswith(("vllm:", "tessera:"))
        assert family.documentation
        assert all(sample.labels["model_name"] == "tessera-tiny" for sample in family.samples)
    info = families["vllm:cache_config_info"].samples[0].labels
    assert int(info["block_size"]) > 0 and int(info["num_gpu_blocks"]) > 0


def test_a_request_is_counted_once_everywhere(server, client):
    before = scrape(server)
    usage = client.completions.create(
        model="tessera-tiny", prompt="Once upon a time", max_tokens=9, temperature=0).usage
    after = scrape(server)

    def more(name, **labels):
        return value(after, name, **labels) - value(before, name, **labels)

    assert more("vllm:request_success_total", finished_reason="length") == 1
    assert more("vllm:generation_tokens_total") == usage.completion_tokens == 9
    # Cached tokens are not prefilled.
    assert 0 < more("vllm:prompt_tokens_total") <= usage.prompt_tokens
    assert more("vllm:time_to_first_token_seconds_count") == 1
    assert more("vllm:inter_token_latency_seconds_count") == 8
    assert more("vllm:e2e_request_latency_seconds_count") == 1
    assert more("vllm:request_queue_time_seconds_count") == 1
    assert more("vllm:request_prefill_time_seconds_count") == 1
    # Queue, prefill and decode are parts of the whole.
    assert (more("vllm:request_queue_time_seconds_sum") + more("vllm:request_prefill_time_seconds_sum")
            + more("vllm:request_decode_time_seconds_sum")
            <= more("vllm:e2e_request_latency_seconds_sum") + 0.01)
    assert more("vllm:request_prompt_tokens_sum") == usage.prompt_tokens
    assert more("vllm:request_generation_tokens_sum") == 9
    assert value(after, "vllm:kv_cache_usage_perc") <= 1


def test_histograms_are_cumulative_and_end_at_infinity(server):
    for family in scrape(server).values():
        if family.type != "histogram":
            continue
        buckets = [sample for sample in family.samples if sample.name.endswith("_bucket")]
        counts = [sample.value for sample in buckets]
        assert counts == sorted(counts)
        assert buckets[-1].labels["le"] == "+Inf"
        assert counts[-1] == next(
            s.value for s in family.samples if s.name == family.name + "_count")
