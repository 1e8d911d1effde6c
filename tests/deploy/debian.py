"""A bare Debian 12 in a folder, for tests of packages and images. Needs root and debootstrap."""

import os
import pathlib
import shutil
import subprocess

import pytest

from fleet import ROOT, needed

BASE = ROOT / "build/deploy/debian12"  # kept: it takes a minute or two


def base():
    """Returns the folder of a bare Debian 12. Skips the test where it cannot be had."""
    if os.geteuid() != 0:
        pytest.skip("not root, which chroot needs")
    program = needed("debootstrap", "debootstrap")
    if not BASE.exists():
        partial = BASE.with_suffix(".partial")
        shutil.rmtree(partial, ignore_errors=True)
        partial.parent.mkdir(parents=True, exist_ok=True)
        done = subprocess.run([program, "--variant=minbase", "bookworm", partial], text=True,
                              capture_output=True, check=False)
        if done.returncode != 0:
            pytest.skip("debootstrap cannot fetch Debian 12: " + done.stdout[-200:] + done.stderr[-200:])
        partial.rename(BASE)
    # Docker's own image of Debian has this too: a package's files are not forced to the disk one by one.
    (BASE / "etc/dpkg/dpkg.cfg.d/unsafe-io").write_text("force-unsafe-io\n")
    # Behind a proxy that opens TLS, downloads need its certificate.
    for certificate in pathlib.Path("/usr/local/share/ca-certificates").glob("*.crt"):
        folder = BASE / "usr/local/share/ca-certificates"
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copy(certificate, folder)
    return BASE


class Chroot:
    """A copy of the bare system."""

    def __init__(self, folder):
        self.folder = folder
        subprocess.run(["cp", "-a", "--reflink=auto", base(), folder], check=True)
        shutil.copy("/etc/resolv.conf", folder / "etc/resolv.conf")

    def command(self, *words, user="0:0"):
        """Returns the command that runs `words` inside, in the process that it starts."""
        # A mount namespace of its own: /proc is gone with the process.
        return ["unshare", "--mount", "sh", "-c", 'mount -t proc proc "$1/proc" && shift && exec chroot "$@"', "sh",
                str(self.folder), f"--userspec={user}", str(self.folder), *map(str, words)]

    def run(self, *words, check=True):
        """Runs a command inside. Returns the finished process."""
        done = subprocess.run(self.command(*words), text=True, capture_output=True, check=False,
                              env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "DEBIAN_FRONTEND": "noninteractive"}
                              | {name: os.environ[name] for name in os.environ if name.endswith("_proxy")})
        assert not check or done.returncode == 0, done.stdout + done.stderr
        return done
