"""The image, built without a daemon from a bare Debian 12, and run as a cluster would."""

import json
import pathlib
import re
import signal
import subprocess
import urllib.request

import pytest

import debian
from fleet import PROGRAMS, ROOT, Program, eventually, free_ports, needed

pytestmark = pytest.mark.long


class Buildah:
    """Images and containers in a folder of their own."""

    def __init__(self, folder):
        self.program = needed("buildah", "buildah")
        self.storage = ["--root", str(folder / "root"), "--runroot", str(folder / "runroot"), "--storage-driver", "vfs"]

    def run(self, *words):
        done = subprocess.run([self.program, *self.storage, *map(str, words)], text=True, capture_output=True,
                              check=False, cwd=ROOT)
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        return done.stdout.strip()


@pytest.fixture(scope="module")
def buildah(tmp_path_factory):
    """Buildah with a base image `debian12`."""
    made = Buildah(tmp_path_factory.mktemp("images"))
    container = made.run("from", "scratch")
    made.run("add", "--quiet", container, debian.base(), "/")
    made.run("commit", "--quiet", "--rm", container, "debian12")
    return made


CUDA = pytest.param("cuda", marks=[pytest.mark.compiles, pytest.mark.cuda])
ARGUMENTS = {"given": ["PACKAGES=given"], "compiled": ["PACKAGES=compiled"],
             "cuda": ["PACKAGES=compiled", "PRESET=cuda", "CUDA_ARCHITECTURES=90a-real"]}
LARGEST = {"given": 300, "compiled": 300, "cuda": 2000}  # MB


@pytest.fixture(scope="module", params=["given", pytest.param("compiled", marks=pytest.mark.compiles), CUDA])
def image(request, buildah):
    """The root folder of the image, and its configuration. Its package is given, or compiled inside."""
    if request.param == "given":
        packages = ROOT / "build/packages"
        done = subprocess.run(["sh", ROOT / "deploy/release.sh", PROGRAMS.parent, packages], text=True,
                              capture_output=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    name = f"localhost/tessera-{request.param}"
    arguments = ["BASE=localhost/debian12", "COMMIT=abc1234", *ARGUMENTS[request.param]]
    buildah.run("build", "--isolation", "chroot", "--format", "docker",
                *(f"--build-arg={argument}" for argument in arguments), "-t", name, ".")
    container = buildah.run("from", "--pull-never", name)
    config = json.loads(buildah.run("inspect", "--type", "image", name))["Docker"]["config"]
    yield buildah.run("mount", container), config
    buildah.run("rm", container)


def contained(root, config, *arguments):
    """Returns the command that runs the image as its user, its root read-only, /tmp writable; no network of its
    own. Everything is gone with its process."""
    script = ('mount --bind "$1" "$1" && mount -o remount,bind,ro "$1" && mount -t proc proc "$1/proc"'
              ' && mount --rbind /dev "$1/dev" && mount -t tmpfs tmpfs "$1/tmp"'
              ' && root=$1 user=$2 && shift 2 && exec chroot --userspec="$user:$user" "$root" "$@"')
    return ["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", script, "sh", root, config["User"],
            *config["Entrypoint"], *arguments]


def health_check(root, config):
    """Returns the exit status of the image's own health check."""
    test = config["Healthcheck"]["Test"]
    assert test[0] == "CMD"
    return subprocess.run(["chroot", f"--userspec={config['User']}", root, *test[1:]], check=False,
                          capture_output=True).returncode


def test_the_image_serves_read_only_without_root_and_drains_in_its_grace_period(image, tmp_path):
    root, config = image
    assert int(config["User"]) > 0 and config["StopSignal"] in ("SIGTERM", "15", 15)
    http, grpc = free_ports(2)
    config["Healthcheck"]["Test"] = [word.replace("/8080", f"/{http}") for word in config["Healthcheck"]["Test"]]
    arguments = [*config["Cmd"], "--http-port", str(http), "--grpc-port", str(grpc), "--drain-delay", "200ms"]
    program = Program(contained(root, config, *arguments), tmp_path / "log")
    try:
        url = f"http://127.0.0.1:{http}"
        eventually(lambda: urllib.request.urlopen(url + "/health").status == 200, "the image")
        (server,) = descendants(program.process.pid, "tessera-server")
        status = (server / "status").read_text()
        assert re.search(r"^Uid:\s+10001\s+10001\s+10001\s+10001$", status, re.MULTILINE)
        assert re.search(r"^(\S+ ){4}/ ro[, ]", (server / "mountinfo").read_text(), re.MULTILINE)
        assert health_check(root, config) == 0
        stream = urllib.request.urlopen(urllib.request.Request(
            url + "/v1/completions", headers={"Content-Type": "application/json"},
            data=b'{"prompt": "Once upon a time", "max_tokens": 300, "ignore_eos": true, "stream": true}'), timeout=60)
        stream.readline()
        (tini,) = descendants(program.process.pid, "tini")
        subprocess.run(["kill", f"-{signal.SIGTERM.value}", tini.name], check=True)
        assert b"[DONE]" in stream.read()
        assert program.process.wait(30) == 0, program.log.read_text()
        assert "stopped" in program.log.read_text()
        assert health_check(root, config) != 0
    finally:
        program.end()


def descendants(parent, name):
    """Returns the folders in /proc of the processes of this name below a parent."""
    found = []
    listed = subprocess.run(["ps", "-o", "pid=,comm=", "--ppid", str(parent)], text=True, capture_output=True,
                            check=False).stdout
    for line in listed.splitlines():
        process, command = line.split()
        if command == name[:15]:
            found.append(pathlib.Path("/proc") / process)
        found += descendants(process, name)
    return found


def test_the_image_has_what_the_chart_starts_and_no_compiler(image, request):
    root, _ = image
    for program in ("tessera-server", "tessera-load", "tini", "mpirun", "hydra_pmi_proxy", "sh", "sleep"):
        assert subprocess.run(["chroot", root, "sh", "-c", f"command -v {program}"], check=False,
                              capture_output=True).returncode == 0, program
    for program in ("cc", "g++", "cmake", "curl"):
        assert subprocess.run(["chroot", root, "sh", "-c", f"command -v {program}"], check=False,
                              capture_output=True).returncode != 0, program
    size = int(subprocess.run(["du", "-sxm", root], text=True, capture_output=True, check=True).stdout.split()[0])
    name = request.node.callspec.params["image"]
    print(f"{name}: {size} MB")
    assert size < LARGEST[name]


@pytest.mark.parametrize("image", [pytest.param("compiled", marks=pytest.mark.compiles), CUDA], indirect=True)
def test_an_image_that_is_compiled_names_its_commit(image):
    done = subprocess.run(contained(*image, "--version"), text=True, capture_output=True, check=True)
    assert re.fullmatch(r"tessera-server [0-9.]+ \(abc1234\)\n", done.stdout)


@pytest.mark.parametrize("image", [CUDA], indirect=True)
def test_the_image_for_gpus_has_cuda_s_libraries_and_says_that_there_is_no_gpu(image):
    root, config = image
    folder = "/usr/lib/tessera"
    listed = subprocess.run(["chroot", root, "ldd", f"{folder}/libtessera_cuda.so"], text=True, capture_output=True,
                            check=True).stdout
    assert "not found" not in listed
    for library in ("libcublasLt.so.13", "libnccl.so.2"):
        assert f"{library} => {folder}/{library} " in listed
    done = subprocess.run(contained(root, config, *config["Cmd"], "--device", "cuda"), text=True, capture_output=True,
                          check=False, timeout=60)
    assert done.returncode == 1
    assert "the CUDA backend finds no GPU" in done.stderr


def test_the_bill_of_materials_has_every_package_of_the_image(image):
    root, _ = image
    bill = json.loads((pathlib.Path(root) / "usr/share/doc/tessera/image.spdx.json").read_text())
    versions = {package["name"]: package["versionInfo"] for package in bill["packages"]}
    listed = subprocess.run(["dpkg-query", f"--admindir={root}/var/lib/dpkg", "-W", "-f", "${Package} ${Version}\n"],
                            text=True, capture_output=True, check=True).stdout
    installed = dict(line.split() for line in listed.splitlines())
    assert len(installed) > 80
    assert installed.items() <= versions.items()
    assert "xgrammar" in versions and "nlohmann-json3-dev" in versions
