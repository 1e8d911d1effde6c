#!/usr/bin/env python3
"""Compares decode attention on a GPU: tessera-bench's formats and PyTorch's SDPA in f16.

scaled_dot_product_attention and our ops take turns on the same device. Results are shares of its
copy bandwidth.

    decode_attention.py                      # 32 sequences of 8k, 4 of 64k, at the shape of Llama-3-8B
    decode_attention.py --device cpu --shape tiny --cases 'decode 8 x 1' --no-peer    # without a GPU

A round runs tessera-bench, then every PyTorch backend at the same sizes; the table has medians over
rounds. Bytes are those of op_cost (bench/op_cost.h); for PyTorch, one read of keys and values in
f16.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
CASES = ["decode 32 x 1 at 8191 GQA 4", "decode 4 x 1 at 65535 GQA 4"]


def run_tessera(options, formats, path):
    command = [options.tool, "--device", options.device, "--ops", "attention", "--shapes", options.shape,
               "--kv", ",".join(formats), "--budget", str(options.budget), "--json", str(path),
               "--cases", ",".join(options.cases)]
    if options.memory:
        command += ["--memory", options.memory]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}\n{done.stderr}")
    rows = json.loads(path.read_text())["rows"]
    return [row for row in rows if not row["format"].endswith(("+score", "alone"))]


def served(options):
    """Returns the formats that the device has kernels for, and reports the others."""
    formats = []
    for name in options.kv.split(","):
        done = subprocess.run([options.tool, "--device", options.device, "--ops", "attention", "--shapes",
                               options.shape, "--kv", name, "--cases", "none"], capture_output=True, text=True)
        if done.returncode == 0:
            formats.append(name)
        elif f"no kernels for pages of {name}" in done.stderr:
            print(f"{name}: {done.stderr.strip()}", file=sys.stderr)
        else:
            sys.exit(done.stderr)
    return formats


class Peer:
    """PyTorch's attention over random keys and values, with its fastest backend."""

    def __init__(self):
        import torch
        from torch.nn.attention import SDPBackend, sdpa_kernel
        self.torch, self.use = torch, sdpa_kernel
        self.backends = [getattr(SDPBackend, name) for name in
                         ("FLASH_ATTENTION", "CUDNN_ATTENTION", "EFFICIENT_ATTENTION", "MATH")
                         if hasattr(SDPBackend, name)]
        print(f"PyTorch {torch.__version__}, {torch.cuda.get_device_name()}", file=sys.stderr)

    def call(self, q, k, v, grouped):
        attend = self.torch.nn.functional.scaled_dot_product_attention
        if grouped:
            return attend(q, k, v, enable_gqa=True)
        heads = q.shape[1] // k.shape[1]
        return attend(q, *(x[:, :, None].expand(-1, -1, heads, -1, -1).flatten(1, 2) for x in (k, v)))

    def milliseconds(self, call, runs=20):
        torch = self.torch
        for _ in range(3):
            call()
        times = []
        for _ in range(runs):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            call()
            end.record()
            end.synchronize()
            times.append(begin.elapsed_time(end))
        return statistics.median(times)

    def best(self, parameters):
        torch = self.torch
        tokens = parameters["context"] + parameters["tokens"]
        shape = (parameters["sequences"], parameters["kv_heads"], tokens, parameters["head_dim"])
        k, v = (torch.randn(shape, dtype=torch.float16, device="cuda") for _ in range(2))
        heads = parameters["kv_heads"] * parameters["group"]
        q = torch.randn((shape[0], heads, 1, shape[3]), dtype=torch.float16, device="cuda")
        found = []
        for backend in self.backends:
            for grouped in (True, False):
                try:
                    with self.use(backend):
                        found.append((self.milliseconds(lambda: self.call(q, k, v, grouped)),
                                      backend.name.lower() + ("" if grouped else ", heads repeated")))
                    break
                except (RuntimeError, TypeError, torch.cuda.OutOfMemoryError) as error:
                    print(f"{backend.name} grouped={grouped}: {str(error).splitlines()[0]}", file=sys.stderr)
        del q, k, v
        torch.cuda.empty_cache()
        if not found:
            sys.exit("PyTorch has no backend for this size")
        milliseconds, name = min(found)
        return name, 1e3 * milliseconds, 2 * 2 * shape[0] * shape[1] * shape[2] * shape[3]


def table(rounds):
    """Prints the medians of rounds[round][(case, who)] -> (us, GB/s, copy GB/s)."""
    print("| case | by | us | GB/s | of copy | against the first |")
    print("|---|---|--:|--:|--:|--:|")
    first = {}
    for key in rounds[0]:
        us, gb, copy = (statistics.median(taken[key][i] for taken in rounds) for i in range(3))
        first.setdefault(key[0], us)
        print(f"| {key[0]} | {key[1]} | {us:.1f} | {gb:.0f} | {100 * gb / copy:.0f} % | {us / first[key[0]]:.2f} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tool", default=str(ROOT / "build/cuda/bin/tessera-bench"))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--shape", default="8b")
    parser.add_argument("--kv", default="f16,k8v8,k8v4,k4v2,s70")
    parser.add_argument("--cases", nargs="+", default=CASES, help="parts of tessera-bench's labels")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--budget", type=float, default=0.2, help="seconds of a variant in a round")
    parser.add_argument("--memory", default="", help="tessera-bench's --memory")
    parser.add_argument("--no-peer", action="store_true", help="without PyTorch")
    options = parser.parse_args()
    peer = None if options.no_peer else Peer()
    formats = served(options)
    rounds = []
    with tempfile.TemporaryDirectory() as directory:
        for _ in range(options.rounds):
            taken = {}
            rows = run_tessera(options, formats, Path(directory) / "rows.json")
            for row in rows:
                taken[row["case"], row["format"]] = (row["median_us"], row["gb_s"], row["copy_gb_s_beside"])
            for case in dict.fromkeys(row["case"] for row in rows):
                row = next(row for row in rows if row["case"] == case)
                if peer:
                    name, us, bytes_ = peer.best(row["parameters"])
                    taken[case, "PyTorch f16"] = (us, bytes_ / us * 1e-3, row["copy_gb_s_beside"])
                    print(f"{case}: PyTorch by {name}", file=sys.stderr)
            rounds.append(dict(sorted(taken.items(), key=lambda one: one[0][0])))
    table(rounds)


if __name__ == "__main__":
    main()
