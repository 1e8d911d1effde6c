#!/usr/bin/env python3
"""Runs tessera-bench on every op with small, short cases. Checks that it reports all ops of the
backend's table with plausible numbers. Times are not checked.

    smoke.py PATH_OF_TESSERA_BENCH [--device cuda]

With a device: a tessera-bench that is linked with the emulated device, or one on a machine that has
it.
"""

import json
import math
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
OP_OF_TABLE = re.compile(r"void \(\*(\w+)\)\(const \w+Args&, Stream\)")
CPU_ONLY = {"route", "expert_linear", "combine", "delta_rule", "low_rank"}
FAST = ["--budget", "0.0005", "--memory", "256KiB", "--threads", "2"]
KINDS = ["--kv", "f16,f32,k8v4,s70-k4v4"]  # floats, codes, sparse codes
# Emulation is slow: a model of two layers, the smallest cases of every op.
ON_DEVICE = ["--shapes", "micro", "--budget", "0.0001", "--memory", "16KiB", "--kv", "f16,k8v4"]
SMALL_CASES = [["--cases", "1 x 64,1 x 128,1 x 4 heads,greedy 1 x,top_k 50 1 x,qkv 1 x,prefix blocks,prefix block of,slots,tokens rows,"
                           "decode 1 x 1,prompt's end,group at"],
               ["--ops", "kv_store", "--cases", "prefill"]]
POSITIVE = [
    "samples", "calls_per_sample", "least_us", "lower_quartile_us", "median_us",
    "upper_quartile_us", "ratio", "read_bytes", "written_bytes", "gb_s", "floor_us",
    "share_of_floor", "cycled_bytes", "read_gb_s_beside", "copy_gb_s_beside", "peak_gflop_s"]


def run(tool, *arguments):
    return subprocess.run([tool, *arguments], capture_output=True, text=True, timeout=280)


def check_row(row):
    for field in POSITIVE:
        assert math.isfinite(row[field]) and row[field] > 0, f"{field} of {row}"
    assert row["flops"] >= 0 and row["gflop_s"] >= 0, row
    assert row["least_us"] <= row["lower_quartile_us"] <= row["median_us"], row
    assert row["median_us"] <= row["upper_quartile_us"], row
    assert row["limit"] in ("bytes", "flops"), row
    assert row["limit"] == "bytes" or row["flops"] > 0, row
    assert row["parameters"] and all(value >= 0 for value in row["parameters"].values()), row
    assert math.isclose(row["share_of_floor"], row["floor_us"] / row["median_us"]), row


def check_every_op(tool, directory, device):
    table = set(OP_OF_TABLE.findall((ROOT / "kernels" / "backend.h").read_text()))
    assert len(table) >= 8, f"ops found in kernels/backend.h: {table}"
    path = directory / "all.json"
    choices = [[*FAST, *KINDS]] if device == "cpu" else [
        ["--device", device, *ON_DEVICE, *cases] for cases in SMALL_CASES]
    rows = []
    for choice in choices:
        done = run(tool, "--json", str(path), *choice)
        assert done.returncode == 0, done.stderr
        result = json.loads(path.read_text())
        rows += result["rows"]
        for row in result["rows"]:
            check_row(row)
            assert f"| {row['case']} " in done.stdout, f"{row['case']} is not in the table"
    machine = result["machine"]
    assert machine["device"] == device and machine["what"], machine
    assert device != "cpu" or machine["threads"] == 2, machine
    assert machine["read_gb_s"] > 0 and machine["copy_gb_s"] > 0, machine
    assert machine["peaks"] and all(peak["gflop_s"] > 0 for peak in machine["peaks"]), machine
    # CUDA has no kernels for experts, recurrent layers and adapters, and the CPU's attention plans for itself.
    table -= {"plan_attention"} if device == "cpu" else CPU_ONLY
    ops = {row["op"] for row in rows}
    assert ops == table, f"not timed: {table - ops}; unknown: {ops - table}"
    weights = {"f32", "bf16", "fp8"} | ({"int8", "int4"} if device == "cpu" else set())
    pages = {"f16", "f32"} if device == "cpu" else {"f16", "k8v4"}
    for op, formats in {"linear": weights, "attention": pages}.items():
        seen = {row["format"] for row in rows if row["op"] == op}
        assert seen >= formats, f"{op}: {seen}"


def check_choices(tool, directory):
    path = directory / "few.json"
    done = run(tool, "--ops", "linear,attention", "--isa", "scalar", "--matrix", "64x96",
               "--weights", "int8", "--kv", "f32", "--cases", "matrix 8 x,decode 1 x 1 at 2047",
               "--as-in-model", "--json", str(path), *FAST)
    assert done.returncode == 0, done.stderr
    rows = json.loads(path.read_text())["rows"]
    linear = [row for row in rows if row["op"] == "linear"]
    assert len(linear) == 1, linear
    assert linear[0]["parameters"] == {"tokens": 8, "inputs": 64, "outputs": 96}, linear
    assert {row["format"] for row in rows} == {"int8", "f32"}, rows
    assert {row["isa"] for row in rows} == {"scalar"}, rows


def check_refusals(tool):
    for flag, value in [("--ops", "convolution"), ("--device", "tpu"), ("--kv", "k3v7"),
                        ("--shapes", "900b"), ("--isa", "mmx"), ("--matrix", "64"),
                        ("--json", "/nowhere/result.json")]:
        done = run(tool, flag, value, *([] if flag == "--ops" else ["--ops", "rope"]), *FAST)
        said = done.stdout + done.stderr
        assert done.returncode != 0, f"{flag} {value} was accepted"
        assert value in done.stderr, f"{flag} {value} is not named: {said}"


def check_what_the_device_lacks(tool, device):
    for flag, value in [("--weights", "int4"), ("--isa", "avx2"), ("--peers", "CPU")]:
        done = run(tool, "--device", device, "--ops", "linear", flag, *([] if flag == "--peers" else [value]))
        assert done.returncode == 1 and value in done.stderr, f"{flag} {value}: {done.stderr}"


def main():
    tool = sys.argv[1]
    device = sys.argv[3] if sys.argv[2:3] == ["--device"] else "cpu"
    with tempfile.TemporaryDirectory() as directory:
        check_every_op(tool, Path(directory), device)
        if device == "cpu":
            check_choices(tool, Path(directory))
    if device == "cpu":
        check_refusals(tool)
        if not (Path(tool).parent / "libtessera_cuda.so").exists():
            done = run(tool, "--device", "cuda")
            assert done.returncode == 1 and "libtessera_cuda.so" in done.stderr, done.stderr
    else:
        check_what_the_device_lacks(tool, device)


if __name__ == "__main__":
    main()
