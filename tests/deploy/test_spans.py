"""Spans of requests on stderr: OTLP as OpenTelemetry's own messages read it, and no other line is taken for one."""

import base64
import json
import re
import signal
import urllib.error
import urllib.request

import pytest
import yaml
from google.protobuf import json_format
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status, TracesData

from fleet import ROOT, Replica, eventually

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
# The collector's configuration that the manual gives.
COLLECTOR = yaml.safe_load(next(
    block for block in re.findall(r"^```yaml\n(.*?)^```", (ROOT / "docs/howto/operate.md").read_text(),
                                  re.MULTILINE | re.DOTALL) if "otlpjson" in block))


def spans_of(line):
    """Returns the spans of a line; it must have the form of TracesData and no unknown field."""
    content = json.loads(line)
    for resource in content["resourceSpans"]:
        for scope in resource["scopeSpans"]:
            for span in scope["spans"]:
                # OTLP writes these in base 16, against the rule of protocol buffers.
                for name in {"traceId", "spanId", "parentSpanId"} & set(span):
                    span[name] = base64.b64encode(bytes.fromhex(span[name])).decode()
    data = json_format.ParseDict(content, TracesData())
    (resource,) = data.resource_spans
    assert {one.key: one.value.string_value for one in resource.resource.attributes}["service.name"] == "tessera"
    return list(resource.scope_spans[0].spans)


def value(span, key):
    (found,) = [one.value for one in span.attributes if one.key == key]
    return getattr(found, found.WhichOneof("value"))


def taken(line):
    """Returns whether the collector of the manual passes this line on to its connector."""
    *_, step = COLLECTOR["receivers"]["filelog"]["operators"]
    beginning = re.fullmatch(r'not \(body startsWith "(.*)"\)', step["expr"])[1].replace('\\"', '"')
    assert step["type"] == "filter"  # drops matches
    return line.startswith(beginning)


def post(url, trace=None, path="/v1/completions", **fields):
    headers = {"Content-Type": "application/json"} | ({"traceparent": trace} if trace else {})
    body = {"prompt": "Once upon a time", "max_tokens": 8} | fields
    return urllib.request.urlopen(urllib.request.Request(url + path, json.dumps(body).encode(), headers), timeout=60)


@pytest.mark.parametrize("spans, form", [("sampled", "json"), ("all", "text")])
def test_spans_are_those_of_opentelemetry(spans, form, tmp_path):
    one = Replica(tmp_path, 0, "--spans", spans, "--log-format", form, "--drain-delay", 0).start()
    try:
        eventually(one.ready, "a replica")
        post(one.url, f"00-{TRACE}-00f067aa0ba902b7-01", stream=True).read()
        with pytest.raises(urllib.error.HTTPError):
            post(one.url, f"00-{TRACE}-00f067aa0ba902b8-01", prompt=7)
        post(one.url, f"00-{TRACE}-00f067aa0ba902b9-00").read()  # the client does not sample it
        post(one.url).read()
        one.program.signal(signal.SIGTERM)
        assert one.program.wait() == 0
    finally:
        one.program.end()
    lines = [line for line in one.program.log.read_text().splitlines() if taken(line)]
    # A stream's line may come after that of the next request. The request without a parent sorts last.
    requests = sorted(map(spans_of, lines), key=lambda found: found[0].parent_span_id or b"\xff")
    assert len(requests) == (3 if spans == "all" else 2)
    assert not [line for line in one.program.log.read_text().splitlines() if "resourceSpans" in line and not taken(line)]
    whole, *parts = requests[0]
    assert [part.name for part in parts] == ["queue", "prefill", "decode"]
    assert whole.kind == Span.SPAN_KIND_SERVER and whole.name == "POST /v1/completions"
    assert whole.parent_span_id.hex() == "00f067aa0ba902b7"
    assert value(whole, "http.response.status_code") == 200 and value(whole, "gen_ai.usage.output_tokens") == 8
    assert {span.trace_id.hex() for span in requests[0] + requests[1]} == {TRACE}
    assert len({span.span_id for found in requests for span in found}) == sum(map(len, requests))
    place = whole.start_time_unix_nano
    for part in parts:
        assert part.kind == Span.SPAN_KIND_INTERNAL and part.parent_span_id == whole.span_id
        assert place <= part.start_time_unix_nano <= part.end_time_unix_nano <= whole.end_time_unix_nano
        place = part.end_time_unix_nano
    (refused,) = requests[1]
    assert value(refused, "http.response.status_code") == 400
    assert refused.status.code == Status.STATUS_CODE_UNSET, "the client's mistake"
    if spans == "all":
        assert not requests[2][0].parent_span_id and requests[2][0].trace_id.hex() != TRACE
