"""The packages of a release on a bare Debian 12."""

import contextlib
import json
import re
import shlex
import signal
import subprocess
import tarfile
import urllib.request

import pytest

from debian import Chroot
from fleet import PROGRAMS, ROOT, Program, eventually, free_ports, needed

pytestmark = pytest.mark.long
NOBODY = "65534:65534"


@contextlib.contextmanager
def serving(command, log, port):
    """Runs a server until the block ends, then drains it while a stream is under way."""
    server = Program(command, log)
    url = f"http://127.0.0.1:{port}"

    def ready():
        assert server.process.poll() is None, server.log.read_text()
        return urllib.request.urlopen(url + "/health", timeout=5).status == 200

    try:
        eventually(ready, "the server")
        yield url
        stream = ask(url, max_tokens=300, stream=True, ignore_eos=True)
        stream.readline()
        server.signal(signal.SIGTERM)
        text = stream.read().decode()
        assert '"finish_reason":"length"' in text.replace(" ", "") and "[DONE]" in text
        assert server.wait() == 0, server.log.read_text()
        assert "stopped" in server.log.read_text()
    finally:
        server.end()


def ask(url, key="none", **fields):
    body = {"prompt": "Once upon a time", "max_tokens": 8, "temperature": 0} | fields
    return urllib.request.urlopen(urllib.request.Request(
        url + "/v1/completions", headers={"Content-Type": "application/json", "Authorization": f"Bearer {key}"},
        data=json.dumps(body).encode()), timeout=60)


def choose_ports(settings):
    """Writes free ports into a file of settings. Returns that of HTTP."""
    http, grpc = free_ports(2)
    text = settings.read_text()
    for name, value in (("http-port", http), ("grpc-port", grpc), ("drain-delay", "200ms")):
        text, count = re.subn(f"^{name}: .*", f"{name}: {value}", text, flags=re.MULTILINE)
        assert count == 1
    settings.write_text(text)
    return http


def licensed(folder):
    """Checks that each component in the folder has its licence beside it."""
    components = [line.split() for line in (folder / "components").read_text().splitlines()]
    assert {"libssl3", "libgrpc++1.51", "xgrammar", "node-markdown-it"} <= {words[1] for words in components}
    for source, name, *_ in components:
        if source == "deb":
            assert (folder / "licenses" / f"{name}.txt").stat().st_size > 100
    notice = (folder / "NOTICE").read_text()
    assert "xgrammar" in notice and "markdown-it" in notice and "libgrpc29" in notice
    assert "## Unreleased" in (folder / "CHANGELOG.md").read_text()


def test_the_debian_package_installs_serves_drains_and_goes(release, tmp_path):
    system = Chroot(tmp_path / "system")
    (package,) = release.glob("*.deb")
    (system.folder / "tmp" / package.name).write_bytes(package.read_bytes())
    system.run("apt-get", "update", "-qq")
    system.run("apt-get", "install", "-y", "-qq", "--no-install-recommends", f"/tmp/{package.name}")
    assert system.run("sh", "-c", "command -v cc gcc g++ python3", check=False).stdout == ""
    licensed(system.folder / "usr/share/doc/tessera")
    settings = system.folder / "etc/tessera/tessera.yaml"
    port = choose_ports(settings)
    unit = (system.folder / "usr/lib/systemd/system/tessera.service").read_text()
    command = shlex.split(re.search("^ExecStart=(.*)", unit, re.MULTILINE)[1])
    grace = int(re.search(r"^TimeoutStopSec=(\d+)", unit, re.MULTILINE)[1])
    assert grace > 5 + 120 + 5  # the file's drain-delay and drain-timeout, and the last answers
    with serving(system.command(*command, user=NOBODY), tmp_path / "log", port) as url:
        answer = json.load(ask(url))
        assert answer["usage"]["completion_tokens"] == 8
        system.run("tessera-load", "--url", url, "--requests", "4")
    chosen = settings.read_text()
    system.run("apt-get", "install", "-y", "-qq", "--reinstall", f"/tmp/{package.name}")
    assert settings.read_text() == chosen, "an upgrade changed the settings"
    system.run("apt-get", "purge", "-y", "-qq", "tessera")
    assert not settings.exists() and not (system.folder / "usr/lib/tessera").exists()


def test_the_tarball_serves_and_drains_without_any_package(release, tmp_path):
    system = Chroot(tmp_path / "system")
    (archive,) = release.glob("*.tar.gz")
    with tarfile.open(archive) as file:
        file.extractall(system.folder / "opt")
    (folder,) = (system.folder / "opt").iterdir()
    licensed(folder)
    inside = "/" + str(folder.relative_to(system.folder))
    port = choose_ports(folder / "tessera.yaml")
    # From any folder: the model's path in the file is relative to the current one.
    command = system.command("env", "-C", inside, "bin/tessera-server", "--config", "tessera.yaml", user=NOBODY)
    with serving(command, tmp_path / "log", port) as url:
        assert json.load(ask(url))["usage"]["completion_tokens"] == 8
        system.run(f"{inside}/bin/tessera-load", "--url", url, "--requests", "4")
    version = system.run(f"{inside}/bin/tessera-server", "--version").stdout
    assert re.fullmatch(r"tessera-server [0-9.]+ \(.+\)\n", version)


def test_the_bill_of_materials_names_each_component_once(release):
    (file,) = release.glob("*.spdx.json")
    bill = json.loads(file.read_text())
    assert bill["spdxVersion"] == "SPDX-2.3"
    packages = {package["SPDXID"]: package for package in bill["packages"]}
    assert len(packages) == len(bill["packages"]) > 20
    assert all(re.fullmatch(r"SPDXRef-[A-Za-z0-9.-]+", name) for name in packages)
    names = {package["name"]: package for package in bill["packages"]}
    assert names["libssl3"]["versionInfo"]
    assert names["libgrpc++1.51"]["externalRefs"][0]["referenceLocator"].startswith("pkg:deb/debian/libgrpc++1.51@")
    assert names["xgrammar"]["externalRefs"][0]["referenceLocator"].startswith("pkg:pypi/xgrammar@")
    related = {entry["relatedSpdxElement"] for entry in bill["relationships"]}
    assert related == set(packages)


def test_the_unit_is_one_that_systemd_understands(tmp_path):
    program = needed("systemd-analyze", "systemd")
    unit = tmp_path / "tessera.service"
    unit.write_text((ROOT / "deploy/package/tessera.service").read_text().replace(
        "/usr/bin/tessera-server", str(PROGRAMS / "tessera-server")))
    done = subprocess.run([program, "verify", "--man=no", unit], text=True, capture_output=True, check=False)
    assert done.returncode == 0 and "tessera.service" not in done.stderr, done.stderr
