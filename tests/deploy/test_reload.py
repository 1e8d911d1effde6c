"""Keys and certificates change in a mounted secret: the chart's reload.sh and the server."""

import http.client
import json
import signal
import socket
import ssl
import subprocess
import time

import pytest

from chart import CHART, ROOT, SERVER
from fleet import Program, eventually, free_ports, needed

RELOAD = CHART / "files/reload.sh"
RANKS = CHART / "files/ranks.sh"


class Secret:
    """A folder as Kubernetes mounts a secret: all files change at once, by a link."""

    def __init__(self, folder):
        self.folder = folder
        folder.mkdir()
        self._version = 0

    def write(self, **files):
        self._version += 1
        version = self.folder / f"..{self._version}"
        version.mkdir()
        for name, text in files.items():
            file = version / name.replace("_", ".")
            file.write_text(text)
            file.chmod(0o440)  # as the chart mounts them
            link = self.folder / name.replace("_", ".")
            if not link.is_symlink():
                link.symlink_to(f"..data/{link.name}")
        (self.folder / "..new").symlink_to(version.name)
        (self.folder / "..new").rename(self.folder / "..data")


def certificate(name, folder):
    key, cert = folder / f"{name}.key", folder / f"{name}.crt"
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
                    "-keyout", key, "-out", cert, "-subj", f"/CN={name}", "-days", "1",
                    "-addext", "subjectAltName=IP:127.0.0.1"], check=True, capture_output=True)
    return {"tls_key": key.read_text(), "tls_crt": cert.read_text()}


def served_certificate(port):
    """Returns the certificate that a new connection gets."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with socket.create_connection(("127.0.0.1", port), timeout=10) as plain, context.wrap_socket(plain) as tls:
        return ssl.DER_cert_to_PEM_cert(tls.getpeercert(binary_form=True))


def connect(port):
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return http.client.HTTPSConnection("127.0.0.1", port, context=context, timeout=60)


def send(connection, key, **fields):
    body = {"prompt": "Once upon a time", "max_tokens": 4} | fields
    connection.request("POST", "/v1/completions", json.dumps(body),
                       {"Content-Type": "application/json", "Authorization": f"Bearer {key}"})
    return connection.getresponse()


def status(connection, key):
    answer = send(connection, key)
    answer.read()
    return answer.status


LAUNCHERS = {"one process": [], "ranks in a pod": ["mpirun", "-n", "2"], "ranks over pods": ["sh", RANKS]}


@pytest.mark.parametrize("launcher", [
    "one process", "ranks over pods", pytest.param("ranks in a pod", marks=pytest.mark.long)])
def test_secrets_change_without_a_dropped_connection(launcher, tmp_path):
    keys, tls = Secret(tmp_path / "keys"), Secret(tmp_path / "tls")
    keys.write(keys="old\n")
    first, second = certificate("first", tmp_path), certificate("second", tmp_path)
    tls.write(**first)
    port, grpc, control = free_ports(3)
    settings = {"TESSERA_WATCHED": f"{keys.folder} {tls.folder}", "TESSERA_WATCH_SECONDS": "0.2", "TESSERA_PODS": "2",
                "TESSERA_RANKS_PER_POD": "1", "TESSERA_CONTROL_PORT": control, "LWS_LEADER_ADDRESS": "127.0.0.1"}
    if LAUNCHERS[launcher]:
        needed("mpirun", "mpich")

    def start(pod):
        own = tmp_path / f"pod{pod}"
        own.mkdir()
        environment = settings | {"LWS_WORKER_INDEX": pod, "TMPDIR": own}
        return Program(
            ["env", *(f"{name}={value}" for name, value in environment.items()), *LAUNCHERS[launcher], "sh", RELOAD,
             SERVER, "--model", ROOT / "models/checkpoints/tessera-tiny", "--http-port", port, "--grpc-port", grpc,
             "--tensor-parallel", 2 if LAUNCHERS[launcher] else 1, "--threads", 1, "--drain-delay", 0,
             "--api-key-file", keys.folder / "keys", "--tls-cert", tls.folder / "tls.crt",
             "--tls-key", tls.folder / "tls.key"], own / "log")

    program, *workers = [start(pod) for pod in range(2 if launcher == "ranks over pods" else 1)]
    try:
        eventually(lambda: " ready after " in program.log.read_text(), "the server")
        kept, streaming = connect(port), connect(port)
        assert status(kept, "old") == 200 and status(kept, "new") == 401
        assert served_certificate(port) == first["tls_crt"]
        stream = send(streaming, "old", max_tokens=1500, stream=True, ignore_eos=True)
        assert stream.status == 200 and stream.readline().startswith(b"data: ")
        keys.write(keys="new\n")
        tls.write(**second)
        eventually(lambda: served_certificate(port) == second["tls_crt"], "the new certificate")
        eventually(lambda: status(kept, "new") == 200, "the new key, on the old connection")
        assert status(kept, "old") == 401
        assert b"[DONE]" in stream.read(), "the stream that began with the old key"
        reloads = program.log.read_text().count("reload: ")
        time.sleep(1)
        assert program.log.read_text().count("reload: ") == reloads, "nothing changed"
        stream = send(connect(port), "new", max_tokens=300, stream=True, ignore_eos=True)
        assert stream.readline().startswith(b"data: ")
        program.signal(signal.SIGTERM)
        assert b"[DONE]" in stream.read(), "the drain waits for it"
        for one in [program, *workers]:
            assert one.wait() == 0, one.log.read_text()
        assert "other users can read" not in program.log.read_text()
    finally:
        for one in [program, *workers]:
            if one.process.poll() is None:  # its children would stay
                one.signal(signal.SIGTERM)
                one.wait()


def test_tenants_change_with_their_secret(tmp_path):
    secret = Secret(tmp_path / "tenants")

    def write(key):
        secret.write(tenants_yaml=f"tenants: [{{name: one, keys: [{{name: first, key: {key}}}]}}]\n")

    old, new = "an-old-key-of-one", "a-new-key-of-one"
    write(old)
    port, grpc = free_ports(2)
    program = Program(
        ["env", f"TESSERA_WATCHED={secret.folder}", "TESSERA_WATCH_SECONDS=0.2", "sh", RELOAD, SERVER, "--model",
         ROOT / "models/checkpoints/tessera-tiny", "--http-port", port, "--grpc-port", grpc, "--threads", 1,
         "--drain-delay", 0, "--tenants", secret.folder / "tenants.yaml"], tmp_path / "log")
    try:
        eventually(lambda: " ready after " in program.log.read_text(), "the server")
        kept = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        assert status(kept, old) == 200 and status(kept, new) == 401
        write(new)
        eventually(lambda: status(kept, new) == 200, "the new key, on the old connection")
        assert status(kept, old) == 401
        program.signal(signal.SIGTERM)
        assert program.wait() == 0, program.log.read_text()
    finally:
        program.end()


@pytest.mark.parametrize("command, expected", [("exit 3", 3), ("kill -9 $$", -9), ("trap 'exit 5' TERM; echo ready; sleep 60 & wait", 5)])
def test_the_exit_status_is_the_command_s(command, expected, tmp_path):
    program = Program(["env", f"TESSERA_WATCHED={tmp_path}", "sh", RELOAD, "sh", "-c", command], tmp_path / "log")
    if "TERM" in command:
        eventually(lambda: "ready" in program.log.read_text(), "the command runs")
        program.signal(signal.SIGTERM)
    assert program.wait() == expected


def test_the_watcher_ends_with_its_command_and_holds_nothing_of_it(tmp_path):
    command = ["env", f"TESSERA_WATCHED={tmp_path}", "TESSERA_WATCH_SECONDS=1", "sh", RELOAD, "echo", "done"]
    begin = time.monotonic()
    output = subprocess.run(list(map(str, command)), text=True, capture_output=True, check=True).stdout
    assert output == "done\n" and time.monotonic() - begin < 1, "a pipe was held"

    def watchers():
        listed = subprocess.run(["ps", "-eo", "args="], text=True, capture_output=True, check=True).stdout
        return [line for line in listed.splitlines() if str(RELOAD) in line and " echo done" in line]

    assert watchers()
    eventually(lambda: not watchers(), "its end")
