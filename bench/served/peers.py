#!/usr/bin/env python3
"""Compares the latencies that tessera-load, GuideLLM and AIPerf measure on one server.

    python3 bench/served/peers.py build/release/bin/tessera-load build/release/bin/load-stub

The server is the tests' stub: the first token after 100 ms, each later one after 20 ms. Rounds of the
three tools alternate, and the table has the median over the rounds. The peers are installed into
build/peers (2 GB). Exit status 77: no network to install them from.
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
PROMPT, TOKENS = 30, 16


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


# Each tool returns milliseconds: TTFT p50 and p90, mean time of a later token, E2E p50 and p90.

def tessera_load(program, url, load, folder):
    out = folder / "tessera.json"
    quiet(program, "--url", url, f"chat:input={PROMPT}:output={TOKENS}", "--rate", load.rate,
          "--arrivals", "constant", "--requests", load.requests, "--json", out)
    latency = json.loads(out.read_text())["latency"]
    return [1e3 * value for value in (
        latency["ttft"]["p50"]["value"], latency["ttft"]["p90"]["value"], latency["tpot"]["mean"],
        latency["e2e"]["p50"]["value"], latency["e2e"]["p90"]["value"])]


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
            1e3 * total["percentiles"]["p50"], 1e3 * total["percentiles"]["p90"]]


def aiperf(program, url, load, folder):
    quiet(program, "profile", "--model", "stub", "--url", url, "--endpoint-type", "chat",
          "--streaming", "--request-rate", load.rate, "--arrival-pattern", "constant",
          "--request-count", load.requests, "--tokenizer", TOKENIZER,
          "--synthetic-input-tokens-mean", PROMPT, "--output-tokens-mean", TOKENS,
          "--use-server-token-count", "--artifact-dir", folder / "aiperf", "--ui", "none")
    report = json.loads((folder / "aiperf/profile_export_aiperf.json").read_text())
    ttft, total = report["time_to_first_token"], report["request_latency"]
    return [ttft["p50"], ttft["p90"], report["inter_token_latency"]["avg"], total["p50"],
            total["p90"]]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("load", type=pathlib.Path, help="tessera-load")
    parser.add_argument("stub", help="load-stub")
    parser.add_argument("--rate", type=int, default=10)
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
    print("| | TTFT p50 | TTFT p90 | later token, mean | E2E p50 | E2E p90 |")
    print("|---|--:|--:|--:|--:|--:|")
    for name, measured in rounds.items():
        cells = [f"{statistics.median(column):.1f}" for column in zip(*measured)]
        print("| " + " | ".join([name, *cells]) + " |")


if __name__ == "__main__":
    main()
