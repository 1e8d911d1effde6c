"""Fixtures that several files of tests share."""

import subprocess

import pytest

from fleet import PROGRAMS, ROOT, needed


@pytest.fixture(scope="session")
def release(tmp_path_factory):
    """The folder of a release's packages."""
    needed("patchelf", "patchelf")
    needed("dpkg-shlibdeps", "dpkg-dev")
    folder = tmp_path_factory.mktemp("release")
    done = subprocess.run(["sh", ROOT / "deploy/release.sh", PROGRAMS.parent, folder], text=True,
                          capture_output=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder
