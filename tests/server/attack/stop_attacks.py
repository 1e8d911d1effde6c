"""Attacks on the end of a server: see attack_test.py."""

import os
import re
import signal
import subprocess
import tempfile
import time
import unittest

from attack_case import SERVER, SLOWER, with_keys
from attacked_server import PATIENCE, Server, eventually, flags_of

LONG = "/" + "a" * 3000


def is_read(server, what):
    """Waits until the reload, whose signal was sent, has failed."""
    eventually(lambda: server.lines(f"reload: .*{what}"), f"a line about {what}", 20)


def ends(process):
    """Returns the exit status after SIGTERM."""
    process.send_signal(signal.SIGTERM)
    return process.wait(PATIENCE)


class Stop(unittest.TestCase):
    def test_a_reader_of_the_log_that_stops_does_not_keep_the_server(self):
        read, write = os.pipe()
        process = subprocess.Popen([SERVER, *flags_of()], stderr=write)
        os.close(write)
        try:
            log = b""
            while b"ready after" not in log:
                log += os.read(read, 65536)
            server = Server.__new__(Server)
            server.http = int(re.search(rb"listening http://\S+:(\d+)", log).group(1))
            for _ in range(40):  # 120 KB, more than a pipe holds
                self.assertEqual(server.ask("GET", LONG)[0], 404)
            self.assertLess(server.health(), 2 * SLOWER)
            self.assertEqual(ends(process), 0)
            while piece := os.read(read, 65536):
                log += piece
        finally:
            process.kill()
            process.wait()
            os.close(read)

    def test_lines_that_no_reader_took_are_counted(self):
        read, write = os.pipe()
        process = subprocess.Popen([SERVER, *flags_of("--access-log", "off")], stderr=write)
        os.close(write)
        try:
            log = b""
            while b"ready after" not in log:
                log += os.read(read, 65536)
            for _ in range(4000):
                process.send_signal(signal.SIGHUP)  # each has a line
                time.sleep(0.0005)
            time.sleep(1)
            os.set_blocking(read, False)
            with self.assertRaises(BlockingIOError):
                while True:
                    os.read(read, 65536)
            process.send_signal(signal.SIGHUP)
            os.set_blocking(read, True)
            log = b""
            while not re.search(rb"\d+ lines of the log are lost", log):
                log += os.read(read, 65536)
        finally:
            process.kill()
            process.wait()
            os.close(read)

    def test_a_fifo_in_place_of_a_key_file_keeps_no_server(self):
        with with_keys() as keys, Server(SERVER, "--api-key-file", keys.name) as server:
            os.unlink(keys.name)
            os.mkfifo(keys.name)
            server.process.send_signal(signal.SIGHUP)
            is_read(server, "api-key-file")
            status = server.ask("GET", "/v1/models", headers={"Authorization": "Bearer right-key"})[0]
            self.assertEqual(status, 200, "nothing has changed")
            self.assertEqual(ends(server.process), 0)

    def test_a_fifo_in_place_of_a_certificate_keeps_no_server(self):
        with tempfile.TemporaryDirectory() as folder:
            key, certificate = f"{folder}/key.pem", f"{folder}/cert.pem"
            subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1",
                            "-nodes", "-keyout", key, "-out", certificate, "-days", "2", "-subj", "/CN=localhost"],
                           check=True, capture_output=True)
            with Server(SERVER, "--tls-key", key, "--tls-cert", certificate) as server:
                for path, what in ((certificate, "TLS certificate"), (key, "TLS key")):
                    os.rename(path, path + ".kept")
                    os.mkfifo(path)
                    server.process.send_signal(signal.SIGHUP)
                    is_read(server, what)
                    os.unlink(path)
                    os.rename(path + ".kept", path)
                os.unlink(key)
                os.mkfifo(key)
                time.sleep(2)  # gRPC's front end looks each second
                self.assertEqual(ends(server.process), 0)
