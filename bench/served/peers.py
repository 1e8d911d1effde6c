#!/usr/bin/env python3
"""Compares the figures of tessera-load, GuideLLM and AIPerf on one server.

    python3 bench/served/peers.py build/release/bin/tessera-load build/release/bin/load-stub

The server is the tests' stub: the first token after 100 ms, each later one after 20 ms. Rounds of the
three tools alternate, and the table has the median over the rounds. The exit status is 1 if a value
of tessera-load differs from that of a peer by more than 3 % and by more than 2 ms. The peers are
installed into build/peers (2 GB). Exit status 77: no network to install them from.
"""

import argparse
import json
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
PACKAGES = {"guidellm": "guidellm==0.8.1", "aiperf": "aiperf==0.13.0"}
TOKENIZER = ROOT / "models/checkpoints/tessera-tiny"
DELAY, GAP = 0.1, 0.02  # seconds
PROMPT, TOKENS = 30, 64
LIMIT, LIMIT_MS = 0.03, 2.0


def installed(folder, name):
    """Returns the tool's program."""
    if not (folder / name / "bin" / name).exists():
        subprocess.run([sys.executable, "-m", "venv", folder / name], check=True)
        done = subprocess.run([folder / name / "bin/pip", "install", "--quiet", PACKAGES[name],
                               "sentencepiece"])
        if done.returncode != 0:
            print(f"skipped: {PACKAGES[name]} cannot be installed", file=sys.stderr)
            sys.exit(77)
    return folder / name / "bin" / name


def quiet(*command):
    done = subprocess.run([str(part) for part in command], stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True)
    assert done.returncode == 0, done.stdout


# Each tool returns its measures. A later token's time is (E2E - TTFT) / (output tokens - 1).
MEASURES = {"TTFT p50": "ms", "TTFT p90": "ms", "later token, mean": "ms", "E2E p50": "ms",
            "E2E p90": "ms", "requests/s": "", "output tokens/s": ""}


def tessera_load(program, url, load, folder):
    out = folder / "tessera.json"
    quiet(program, "--url", url, f"chat:input={PROMPT}:output={TOKENS}", "--rate", load.rate,
          "--arrivals", "constant", "--requests", load.requests, "--json", out)
    report = json.loads(out.read_text())
    latency, throughput = report["latency"], report["throughput"]
    return [1e3 * value for value in (
        latency["ttft"]["p50"]["value"], latency["ttft"]["p90"]["value"], latency["tpot"]["mean"],
        latency["e2e"]["p50"]["value"], latency["e2e"]["p90"]["value"])] + [
            throughput["requests_per_s"]["value"], throughput["output_tokens_per_s"]["value"]]


def guidellm(program, url, load, folder):
    out = folder / "guidellm.json"
    quiet(program, "run", "--backend",
          f"kind=openai_http,target={url},model=stub,request_format=/v1/chat/completions",
          "--profile", f"kind=constant,rate={load.rate}",
          "--constraint", f"kind=max_requests,count={load.requests}",
          "--tokenizer", f"kind=huggingface_auto,model={TOKENIZER}",
          "--data", f"kind=synthetic_text,prompt_tokens={PROMPT},output_tokens={TOKENS}",
          "--output", f"kind=json,path={out}", "--disable-console")
    metrics = json.loads(out.read_text())["benchmarks"][0]["metrics"]
    ttft = metrics["time_to_first_token_ms"]["successful"]
    total = metrics["request_latency"]["successful"]
    return [ttft["percentiles"]["p50"], ttft["percentiles"]["p90"],
            metrics["inter_token_latency_ms"]["successful"]["mean"],
            1e3 * total["percentiles"]["p50"], 1e3 * total["percentiles"]["p90"],
            metrics["requests_per_second"]["successful"]["mean"],
            metrics["output_tokens_per_second"]["successful"]["mean"]]


def aiperf(program, url, load, folder):
    quiet(program, "profile", "--model", "stub", "--url", url, "--endpoint-type", "chat",
          "--streaming", "--request-rate", load.rate, "--arrival-pattern", "constant",
          "--request-count", load.requests, "--tokenizer", TOKENIZER,
          "--synthetic-input-tokens-mean", PROMPT, "--output-tokens-mean", TOKENS,
          "--use-server-token-count", "--artifact-dir", folder / "aiperf", "--ui", "none")
    report = json.loads((folder / "aiperf/profile_export_aiperf.json").read_text())
    ttft, total = report["time_to_first_token"], report["request_latency"]
    return [ttft["p50"], ttft["p90"], report["inter_token_latency"]["avg"], total["p50"],
            total["p90"], report["request_throughput"]["avg"],
            report["output_token_throughput"]["avg"]]


def print_table(rows):
    print("| | " + " | ".join(f"{name} [{unit}]" if unit else name
                              for name, unit in MEASURES.items()) + " |")
    print("|---|" + "--:|" * len(MEASURES))
    for name, values in rows.items():
        print("| " + " | ".join([name, *(f"{value:.2f}" for value in values)]) + " |")


def print_differences(rows):
    """Prints every difference beyond the limits. Returns their number."""
    own, *peers = rows
    beyond = 0
    for peer in peers:
        for (name, unit), ours, theirs in zip(MEASURES.items(), rows[own], rows[peer]):
            difference = abs(ours - theirs)
            if difference > LIMIT * theirs and not (unit == "ms" and difference <= LIMIT_MS):
                print(f"{name}: {own} {ours:.2f}, {peer} {theirs:.2f}")
                beyond += 1
    return beyond


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("load", type=pathlib.Path, help="tessera-load")
    parser.add_argument("stub", help="load-stub")
    parser.add_argument("--rate", type=int, default=5)
    parser.add_argument("--requests", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--packages", type=pathlib.Path, default=ROOT / "build/peers")
    args = parser.parse_args()
    tools = {"tessera-load": (tessera_load, args.load.resolve())}
    for name, run in (("guidellm", guidellm), ("aiperf", aiperf)):
        tools[PACKAGES[name].replace("==", " ")] = (run, installed(args.packages, name))
    stub = subprocess.Popen([args.stub, "0", str(DELAY), str(GAP)], stdout=subprocess.PIPE, text=True)
    try:
        url = re.search(r"http://\S+", stub.stdout.readline())[0]
        rounds = {name: [] for name in tools}
        with tempfile.TemporaryDirectory() as folder:
            for _ in range(args.rounds):
                for name, (run, program) in tools.items():
                    rounds[name].append(run(program, url, args, pathlib.Path(folder)))
    finally:
        stub.kill()
    rows = {name: [statistics.median(column) for column in zip(*measured)]
            for name, measured in rounds.items()}
    print_table(rows)
    sys.exit(1 if print_differences(rows) else 0)


if __name__ == "__main__":
    main()
