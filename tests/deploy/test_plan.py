"""tessera-server --plan against a start."""

import contextlib
import os
import pathlib
import re
import signal
import subprocess

import pytest

from fleet import PROGRAMS, ROOT, Program, eventually

MODEL = str(ROOT / "models/checkpoints/tessera-tiny")

# Limits of a server with little memory for requests.
FEW = ["--request-memory", "16MiB", "--http-max-body", "64KiB", "--grpc-max-message", "64KiB",
       "--http-max-connections", "64"]


def plan(*flags):
    return subprocess.run([PROGRAMS / "tessera-server", "--plan", "--model", MODEL, *flags], text=True,
                          capture_output=True, check=False)


def planned_bytes(text):
    return {name: int(count) for name, count in re.findall(r"^  (\w+)[^:]*: (\d+) bytes$", text, re.MULTILINE)}


@pytest.mark.parametrize("flags", [
    ["--kv", "k8v4"], ["--kv", "f16", "--weights", "int8"], ["--kv", "kv-compress", "--context", "512"],
    ["--kv", "k4v2", "--prefix-cache", "off"], ["--speculation", "on", "--draft-model", MODEL]])
def test_a_start_takes_what_the_plan_says(flags, tmp_path):
    flags = [*flags, *FEW]
    done = plan(*flags, "--memory", "384MiB")
    assert done.returncode == 0, done.stderr
    expected = planned_bytes(done.stdout)
    assert 0.9 * (384 << 20) < sum(expected.values()) <= 384 << 20
    start = re.search(r"start with: (.*)", done.stdout)[1].split()
    server = Program([PROGRAMS / "tessera-server", "--model", MODEL, "--http-port", 0, "--grpc-port", 0,
                      "--drain-delay", 0, *flags, *start], tmp_path / "log")
    try:
        eventually(lambda: " ready after " in server.log.read_text(), "the start")
    finally:
        server.signal(signal.SIGTERM)
        server.wait()
    log = server.log.read_text()
    assert int(re.search(r"weights \w+: (\d+) bytes", log)[1]) == expected["weights"]
    assert int(re.search(r"KV cache [\w-]+: (\d+) bytes", log)[1]) == expected["KV"]
    workspace = float(re.search(r"workspace ([\d.]+) MiB", log)[1])
    assert workspace == pytest.approx(expected["workspace"] / (1 << 20), abs=0.06)
    requests = re.search(r"memory of requests, at most: (.*)", log)[1]
    assert sum(map(float, re.findall(r"(\d+) MiB", requests))) == pytest.approx(
        expected["requests"] / (1 << 20), abs=2)
    users = int(re.match(r"(\d+) sequences", done.stdout)[1])
    context = int(re.search(r"sequences of (\d+) tokens", done.stdout)[1])
    assert int(re.search(r"KV cache: (\d+) tokens fit", log)[1]) >= users * context


def anonymous_bytes(server):
    """Returns the anonymous memory of a process, as the kernel counts it."""
    status = pathlib.Path(f"/proc/{server.process.pid}/status").read_text()
    return int(re.search(r"^RssAnon:\s+(\d+) kB$", status, re.MULTILINE)[1]) << 10


@pytest.mark.long
@pytest.mark.parametrize("kv", ["k8v4", "f16", "kv-compress"])
def test_the_kernel_counts_what_the_plan_says(kv, tmp_path):
    flags = ["--kv", kv, "--memory", "4GiB", *FEW]
    done = plan(*flags)
    expected = planned_bytes(done.stdout)
    start = re.search(r"start with: (.*)", done.stdout)[1].split()
    server = Program([PROGRAMS / "tessera-server", "--model", MODEL, "--http-port", 0, "--grpc-port", 0,
                      "--drain-delay", 0, *FEW, *start], tmp_path / "log")
    try:
        eventually(lambda: " ready after " in server.log.read_text(), "the start")
        taken = anonymous_bytes(server)
    finally:
        server.signal(signal.SIGTERM)
        server.wait()
    planned = expected["weights"] + expected["KV"]
    steps = expected["workspace"] + expected["sampling"]  # is taken as steps use it
    print(f"{kv}: {taken} bytes of anonymous memory, planned {planned}, and {steps} in steps")
    assert 0.98 * planned < taken < 1.02 * (planned + steps)


def test_without_memory_the_plan_is_that_of_the_settings():
    done = plan("--kv-memory", "64MiB", "--max-sequences", "8")
    assert planned_bytes(done.stdout)["KV"] == pytest.approx(64 << 20, rel=0.001)
    assert "start with" not in done.stdout


@contextlib.contextmanager
def memory_group(limit):
    """A control group with so much memory, if this process may make one."""
    second = pathlib.Path("/sys/fs/cgroup/cgroup.controllers").exists()
    group = pathlib.Path("/sys/fs/cgroup" if second else "/sys/fs/cgroup/memory") / f"tessera-test-{os.getpid()}"
    try:
        group.mkdir()
        (group / ("memory.max" if second else "memory.limit_in_bytes")).write_text(str(limit))
    except OSError as error:
        pytest.skip(f"no control group can be made: {error}")
    try:
        yield group / "cgroup.procs"
    finally:
        eventually(lambda: not group.rmdir(), "the end of the group")


def start_in_group(members, log, *flags):
    shell = f'echo $$ > {members} && exec "$@"'
    return Program(["sh", "-c", shell, "sh", PROGRAMS / "tessera-server", "--model", MODEL, "--http-port", 0,
                    "--grpc-port", 0, "--drain-delay", 0, *flags], log)


def test_a_default_start_fits_into_its_control_group(tmp_path):
    with memory_group(256 << 20) as members:
        server = start_in_group(members, tmp_path / "log")
        try:
            eventually(lambda: " ready after " in server.log.read_text(), "the start")
            sizes = re.search(r"context the model's 2048 tokens, KV cache (\d+) MiB, (\d+) sequences",
                              server.log.read_text())
            assert int(sizes[1]) < 64, "a share of what the group leaves"
            assert 1 < int(sizes[2]) <= 64
        finally:
            server.signal(signal.SIGTERM)
            server.wait()


def test_a_control_group_without_room_is_named_with_the_number(tmp_path):
    with memory_group(40 << 20) as members:
        server = start_in_group(members, tmp_path / "log")
        assert server.wait() == 1
        assert re.search(r"memory: .* bytes \((\d+) MiB\) are free", server.log.read_text()), server.log.read_text()


def test_every_choice_has_a_line():
    lines = plan("--memory", "1GiB", *FEW).stdout.splitlines()
    rows = {line.split()[0]: line.split() for line in lines if re.search(r"MiB  ?\*?$|MiB$", line)}
    assert {"k8v4", "f16", "k4v2r", "leankv", "replay-31", "k8v4-quest"} <= set(rows)
    assert int(rows["k4v2r"][1]) > int(rows["k8v4"][1]) > int(rows["f16"][1])


def test_more_memory_for_requests_leaves_less_for_sequences():
    plans = [plan("--memory", "1GiB", *FEW, "--request-memory", size).stdout for size in ("16MiB", "528MiB")]
    few, more = map(planned_bytes, plans)
    assert more["requests"] - few["requests"] == 512 << 20
    assert few["KV"] - more["KV"] == pytest.approx(512 << 20, rel=0.05)
    refused = plan("--memory", "1GiB").stderr
    assert re.search(r"requests 19\d+ at most", refused), refused


@pytest.mark.parametrize("flags, named", [
    (["--memory", "20MiB"], "memory: 20971520 bytes do not hold one sequence of 2048 tokens"),
    (["--memory", "much"], "--memory: 'much'"),
    (["--context", "99999"], "99999"),
    (["--tensor-parallel", "3", "--memory", "1GiB"], "3"),
])
def test_impossible_settings_are_refused(flags, named):
    done = plan(*flags)
    assert done.returncode == 1
    assert named in done.stderr
    assert len(done.stderr.splitlines()) == 1
