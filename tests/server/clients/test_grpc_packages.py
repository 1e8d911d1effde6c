"""The clients as their users install them: the Python package by pip, the C++ one by CMake."""

import subprocess
import sys

import pytest

from tessera_server import ROOT


def run(*command):
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_python_package(server, tmp_path):
    run(sys.executable, "-m", "venv", tmp_path / "venv")
    python = tmp_path / "venv/bin/python"
    installed = subprocess.run([python, "-m", "pip", "install", "--quiet", ROOT / "clients/python"],
                               capture_output=True, text=True, timeout=600, check=False)
    if "No matching distribution" in installed.stderr or "connection" in installed.stderr.lower():
        pytest.skip("no network to install the package's dependencies")
    assert installed.returncode == 0, installed.stderr
    assert "get_weather(" in run(python, ROOT / "clients/python/example.py", server.grpc)


def test_the_cpp_client(server, tmp_path):
    run("cmake", "-S", ROOT / "clients/cpp", "-B", tmp_path)
    run("cmake", "--build", tmp_path, "-j", "2")
    printed = run(tmp_path / "chat", server.grpc, "Tell me a story.")
    assert "tokens]" in printed
