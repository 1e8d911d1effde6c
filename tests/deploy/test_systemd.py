"""The Debian package under systemd itself: a bare Debian 12 is booted in a container, on the network of this machine."""

import contextlib
import re
import subprocess
import urllib.error
import urllib.request

import pytest

from debian import Chroot
from fleet import ROOT, Program, eventually, needed
from test_packages import ask, choose_ports

pytestmark = pytest.mark.long

# The texts for `systemctl edit` in docs/howto/install.md: for secrets, then for ranks.
SECRETS, RANKS = re.findall(r"^```\n(\[Service\]\n.*?)^```", (ROOT / "docs/howto/install.md").read_text(),
                            re.MULTILINE | re.DOTALL)
DYNAMIC_USERS = range(61184, 65520)


class Machine:
    """A system whose process 1 is systemd."""

    def __init__(self, system, log):
        self.folder = system.folder
        self._program = Program(
            [needed("systemd-nspawn", "systemd-container"), "--quiet", "-D", self.folder, "--boot", "--register=no",
             "--keep-unit", "--console=pipe"], log)
        try:
            eventually(self._booted, "systemd")
        except AssertionError:
            self._program.end()
            pytest.skip("systemd does not start in a container here: " + log.read_text()[-300:])

    def _booted(self):
        assert self._program.process.poll() is None
        listed = subprocess.run(["ps", "-o", "pid=", "--ppid", str(self._program.process.pid)], text=True,
                                capture_output=True, check=False).stdout.split()
        self._first = listed[0] if listed else None
        return listed and self.run("systemctl", "is-system-running", check=False).strip() in ("running", "degraded")

    def run(self, *words, check=True):
        """Runs a command inside. Returns its output."""
        done = subprocess.run(["nsenter", "-t", self._first, "-m", "-p", *words], text=True, capture_output=True,
                              check=False)
        assert not check or done.returncode == 0, done.stdout + done.stderr + self.log()
        return done.stdout

    def log(self):
        return self.run("journalctl", "--no-pager", "-u", "tessera", check=False)

    def start(self, url):
        self.run("systemctl", "daemon-reload")
        self.run("systemctl", "restart", "tessera")
        eventually(lambda: healthy(url), "the service: " + self.log()[-1000:])

    def main_process(self):
        return self.run("systemctl", "show", "tessera", "-p", "MainPID", "--value").strip()

    def stop_while_it_answers(self, url, key):
        """Stops the service. Returns how it ended, by systemd."""
        stream = ask(url, key, max_tokens=300, stream=True, ignore_eos=True)
        stream.readline()
        self.run("systemctl", "stop", "tessera")
        assert b"[DONE]" in stream.read()
        return self.run("systemctl", "show", "tessera", "-p", "Result", "-p", "ExecMainStatus").split()

    def end(self):
        self._program.process.terminate()  # an orderly shutdown
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._program.wait()
        self._program.end()


@pytest.fixture(scope="module")
def machine(release, tmp_path_factory):
    needed("systemd-nspawn", "systemd-container")
    folder = tmp_path_factory.mktemp("systemd")
    system = Chroot(folder / "system")
    (package,) = release.glob("*.deb")
    (system.folder / "tmp" / package.name).write_bytes(package.read_bytes())
    system.run("apt-get", "update", "-qq")
    system.run("apt-get", "install", "-y", "-qq", "--no-install-recommends", "systemd", "systemd-sysv", "mpich",
               f"/tmp/{package.name}")
    one = Machine(system, folder / "log")
    yield one
    one.end()


@pytest.fixture
def settings(machine):
    """The file of settings. A test's changes are undone."""
    file = machine.folder / "etc/tessera/tessera.yaml"
    before = file.read_text()
    yield file
    machine.run("systemctl", "revert", "tessera", check=False)
    file.write_text(before)


def healthy(url):
    return urllib.request.urlopen(url + "/health", timeout=5).status == 200


def edit(machine, text):
    """Adds this text as `systemctl edit tessera` does."""
    folder = machine.folder / "etc/systemd/system/tessera.service.d"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "override.conf").write_text(text)


def set_to(file, name, value):
    text, count = re.subn(rf"^(# )?{name}:.*", f"{name}: {value}", file.read_text(), flags=re.MULTILINE)
    assert count == 1
    file.write_text(text)


def test_the_service_has_few_rights_reads_keys_again_and_drains(machine, settings):
    url = f"http://127.0.0.1:{choose_ports(settings)}"
    keys = machine.folder / "etc/tessera/keys"
    keys.write_text("old\n")
    machine.run("groupadd", "--system", "tessera-secrets")
    machine.run("chgrp", "tessera-secrets", "/etc/tessera/keys")
    machine.run("chmod", "640", "/etc/tessera/keys")
    set_to(settings, "api-key-file", "/etc/tessera/keys")
    edit(machine, SECRETS)
    machine.start(url)
    status = machine.run("cat", f"/proc/{machine.main_process()}/status")
    assert int(re.search(r"^Uid:\s+(\d+)", status, re.MULTILINE)[1]) in DYNAMIC_USERS
    assert re.search(r"^NoNewPrivs:\s+1$", status, re.MULTILINE)
    assert ask(url, "old").status == 200
    keys.write_text("new\n")
    machine.run("systemctl", "reload", "tessera")
    eventually(lambda: accepted(url, "new"), "the new key")
    assert not accepted(url, "old")
    lost = machine.main_process()
    machine.run("systemctl", "kill", "-s", "KILL", "tessera")
    eventually(lambda: machine.main_process() not in ("0", lost) and healthy(url), "its restart")
    assert machine.stop_while_it_answers(url, "new") == ["Result=success", "ExecMainStatus=0"]
    assert "draining" in machine.log() and "other users" not in machine.log()


def accepted(url, key):
    try:
        return ask(url, key).status == 200
    except urllib.error.HTTPError as error:
        assert error.code == 401
        return False


def test_two_ranks_serve_and_drain(machine, settings):
    url = f"http://127.0.0.1:{choose_ports(settings)}"
    set_to(settings, "tensor-parallel", 2)
    edit(machine, RANKS)
    machine.start(url)
    assert len(machine.run("sh", "-c", "cat /proc/[0-9]*/comm").split("tessera-server")) == 3
    assert ask(url).status == 200
    assert machine.stop_while_it_answers(url, "none") == ["Result=success", "ExecMainStatus=0"]
