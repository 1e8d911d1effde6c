"""Attacks on descriptors, memory and the start of a server: see attack_test.py."""

import contextlib
import json
import os
import re
import resource
import signal
import subprocess
import threading
import time
import unittest

from attack_case import SERVER, SLOWER, of, serve, serve_without_type_checks, unfinished, with_keys
from attacked_server import MIB, PATIENCE, Http2, eventually, flags_of


class Descriptors(unittest.TestCase):
    def test_idle_connections_stop_neither_front_end(self):
        limit, idle = of((256, 300), (1024, 1200))
        with serve(descriptors=limit) as server, contextlib.ExitStack() as clients:
            for _ in range(idle):
                with contextlib.suppress(OSError):
                    clients.enter_context(server.connect())
            for _ in range(3):
                with contextlib.suppress(OSError):
                    clients.enter_context(server.connect(server.grpc))
            self.assertTrue(server.logged(f"limit of {limit} open files"), "the shares are told")
            self.assertTrue(server.grpc_serves(), "while they are open")
            self.assertLess(server.health(), 2 * SLOWER)
            clients.close()
            self.assertTrue(server.grpc_serves(), "when they have gone")

    def test_idle_grpc_connections_stop_neither_front_end(self):
        limit, idle = of((256, 300), (1024, 1200))
        with serve(descriptors=limit) as server, contextlib.ExitStack() as clients:
            for _ in range(idle):
                with contextlib.suppress(OSError):
                    clients.enter_context(server.connect(server.grpc))
            self.assertLess(server.health(), 2 * SLOWER)
            clients.close()
            self.assertTrue(server.grpc_serves(), "when they have gone")

    def test_silent_grpc_connections_make_way_for_a_new_one(self):
        with serve("--grpc-max-connections", "20") as server, contextlib.ExitStack() as clients:
            for _ in range(22):
                clients.enter_context(server.connect(server.grpc))
            self.assertTrue(server.grpc_serves(10), "within some seconds of silence")

    def test_the_soft_limit_is_raised_to_the_hard_one(self):
        with serve(setup=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (64, 4096))) as server:
            self.assertEqual(resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE), (4096, 4096))

    def test_a_server_out_of_descriptors_says_so_once_and_recovers(self):
        with serve_without_type_checks() as server, contextlib.ExitStack() as clients:
            number = server.process.pid
            used = {int(name) for name in os.listdir(f"/proc/{number}/fd")}
            free = min(set(range(len(used) + 1)) - used)
            limits = resource.prlimit(number, resource.RLIMIT_NOFILE)
            resource.prlimit(number, resource.RLIMIT_NOFILE, (free, limits[1]))
            for port in (server.http, server.grpc):
                for _ in range(5):
                    clients.enter_context(server.connect(port))
            eventually(lambda: len(server.lines("cannot accept")) >= 2, "a line of each")
            time.sleep(1)
            self.assertEqual(len(server.lines("cannot accept")), 2)
            resource.prlimit(number, resource.RLIMIT_NOFILE, limits)
            self.assertTrue(server.grpc_serves())
            self.assertLess(server.health(), 2 * SLOWER)

    def test_too_few_descriptors_are_named(self):
        result = subprocess.run([SERVER, *flags_of()], capture_output=True, text=True, timeout=PATIENCE,
                                preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (8, 8)))
        self.assertEqual(result.returncode, 1, result.stderr)
        self.assertIn("open files", result.stderr)

    @unittest.skipIf(SLOWER > 1, "a sanitizer's own address space is larger")
    def test_too_little_address_space_is_named(self):
        result = subprocess.run(
            [SERVER, *flags_of()], capture_output=True, text=True, timeout=PATIENCE,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (700 << 20, 700 << 20)))
        self.assertEqual(result.returncode, 1, result.stderr)
        self.assertIn("address space", result.stderr)

    def test_a_server_without_standard_streams_serves(self):
        def close_them():
            os.close(0)
            os.close(1)

        with serve(setup=close_them) as server:
            self.assertLess(server.health(), 2 * SLOWER)
            self.assertTrue(server.grpc_serves())
            for number in (0, 1):  # else a connection gets them, and the text printed there
                self.assertEqual(os.readlink(f"/proc/{server.process.pid}/fd/{number}"), "/dev/null")


class Memory(unittest.TestCase):
    def test_bodies_without_a_key_are_not_read(self):
        with with_keys() as keys, serve("--api-key-file", keys.name) as server:
            before = server.resident()
            with contextlib.ExitStack() as clients:
                for _ in range(of(40, 150)):
                    client = clients.enter_context(server.connect())
                    client.settimeout(0.2)
                    with contextlib.suppress(OSError):
                        client.sendall(unfinished(8 * MIB) + b" " * (8 * MIB - 1))
                self.assertLess(server.resident() - before, 24 * MIB * SLOWER)

    def test_bodies_with_a_key_stay_within_the_budget(self):
        with serve("--request-memory", "64MiB") as server:
            before = server.resident()
            with contextlib.ExitStack() as clients:
                for _ in range(of(40, 150)):
                    client = clients.enter_context(server.connect())
                    client.settimeout(0.2)
                    with contextlib.suppress(OSError):
                        client.sendall(unfinished(8 * MIB) + b" " * (8 * MIB - 1))
                self.assertLess(server.resident() - before, 96 * MIB * SLOWER)
                self.assertLess(server.health(), 1 * SLOWER)
            eventually(lambda: server.ask("POST", "/tokenize", {"prompt": "a"})[0] == 200,
                       "the bytes came back")

    def test_unfinished_grpc_messages_stay_within_the_budget(self):
        with serve("--request-memory", "64MiB") as server:
            before = server.resident()
            with contextlib.ExitStack() as clients:
                for _ in range(of(8, 20)):
                    with contextlib.suppress(OSError):
                        client = clients.enter_context(Http2(server, seconds=1))
                        for stream in range(1, of(129, 201), 2):
                            client.begin(stream, "/tessera.v1.Inference/Tokenize")
                            client.data(stream, b"\0" + (6 * MIB).to_bytes(4, "big"))
                            for _ in range(64):
                                client.data(stream, b" " * 16000)
                self.assertLess(server.resident() - before, 128 * MIB * SLOWER)
                self.assertLess(server.health(), 1 * SLOWER)
            eventually(server.grpc_serves, "the bytes came back")

    def test_grpc_tells_each_connection_how_many_calls_it_may_have(self):
        with serve("--grpc-max-streams", "7") as server, Http2(server) as client:
            self.assertEqual(client.settings().get(3), 7)  # SETTINGS_MAX_CONCURRENT_STREAMS

    def test_no_body_takes_more_memory_than_is_told_at_start(self):
        size = of(MIB, 8 * MIB)
        numbers = [5] * (size // 2 - 60)
        bodies = [("/tokenize", {"prompt": "".join("qzxwvkj"[i * 7919 % 7] for i in range(size - 99)),
                                 "return_token_strs": True}),
                  ("/tokenize", {"prompt": "tell me a story " * ((size - 99) // 16)}),
                  ("/tokenize", {"content": "\U00010348" * (size // 4 - 20), "with_pieces": True}),
                  ("/detokenize", {"tokens": numbers}),
                  ("/v1/completions", {"prompt": numbers}),
                  ("/v1/completions", {"prompt": "a", "stop_token_ids": numbers})]
        for path, body in bodies:
            limits = ("--http-max-body", size, "--grpc-max-message", size)
            with self.subTest(path), serve(*limits) as server:
                before = server.resident()
                told = float(server.logged(r"messages, ([0-9]+) MiB while 2 threads parse")) * MIB
                text = json.dumps(body, separators=(",", ":"), ensure_ascii=False).encode()
                status = server.ask("POST", path, text, timeout=5 * PATIENCE)[0]
                self.assertTrue(status == 200 or path != "/tokenize", status)
                self.assertLess(server.most_resident() - before, (told + 32 * MIB) * SLOWER)

    def test_unread_replies_stay_within_the_budget(self):
        with serve("--request-memory", "64MiB") as server, contextlib.ExitStack() as clients:
            before = server.resident()
            # A reply of 10 MB, more than the kernel keeps for a connection.
            body = json.dumps({"prompt": "ab " * 1_000_000, "return_token_strs": True}).encode()
            for _ in range(of(8, 24)):
                client = clients.enter_context(server.connect(receive_bytes=4096))
                client.sendall(unfinished(len(body)).replace(b"/v1/completions", b"/tokenize") + body)
            eventually(lambda: server.ask("POST", "/tokenize", {"prompt": "a"})[0] == 200, "its turn")
            time.sleep(1)
            self.assertLess(server.resident() - before, 200 * MIB * SLOWER)
            self.assertLess(server.health(), 1 * SLOWER)

    def test_sequences_that_are_swapped_out_stay_within_what_is_told(self):
        """Each priority preempts those below, whose compressed slots go to the memory of the host."""
        with serve("--kv", "leankv", "--kv-memory", "24MiB", "--max-sequences", "16") as server:
            told = float(server.logged(r"([0-9.]+) MiB of the host's memory for swapped-out")) * MIB
            # The first long prompt writes the workspace, which is only reserved before.
            server.ask("POST", "/v1/completions", {"prompt": "once upon a time there was a cat " * 100, "max_tokens": 1})
            before = server.resident()
            threads = []
            for priority in range(4, -5, -1):
                for number in range(of(6, 16)):
                    body = {"prompt": f"once {number} upon a time there was a cat " * 100, "ignore_eos": True,
                            "max_tokens": of(200, 900), "priority": priority}
                    threads.append(threading.Thread(target=server.ask, args=(
                        "POST", "/v1/completions", body, None, 5 * PATIENCE * SLOWER)))
                    threads[-1].start()
                time.sleep(0.3)
            for thread in threads:
                thread.join()
            metrics = server.ask("GET", "/metrics")[2].decode()
            self.assertGreater(float(re.search(r"num_preemptions_total\S* (\d+)", metrics).group(1)), 4)
            self.assertLess(server.most_resident() - before, (told + 10 * MIB) * SLOWER)

    def test_silent_clients_do_not_shut_health_out(self):
        limit, silent = of((20, 40), (100, 200))
        with serve("--http-max-connections", limit) as server, contextlib.ExitStack() as clients:
            for _ in range(silent):
                clients.enter_context(server.connect())
            self.assertLess(server.health(), 2 * SLOWER)


class Start(unittest.TestCase):
    def fails(self, *flags, limited=True):
        limit = 2048 * MIB * SLOWER  # of the address space, so that no machine is filled
        result = subprocess.run([SERVER, *flags_of(*flags)], capture_output=True, text=True, timeout=PATIENCE,
                                preexec_fn=None if SLOWER > 1 or not limited else
                                lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)))
        self.assertEqual(result.returncode, 1, result.stderr)
        return result.stderr.splitlines()[-1]  # an earlier line has the settings

    def test_an_empty_key_opens_no_server(self):
        self.assertIn("api-key", self.fails("--api-key", ""))

    def test_a_config_that_is_no_file_is_named(self):
        self.assertIn("/tmp", self.fails("--config", "/tmp"))
        self.assertIn("/dev/zero", self.fails("--config", "/dev/zero"))

    def test_a_file_without_an_end_is_named_and_not_read(self):
        for flag in ("--api-key-file", "--chat-template", "--tenants", "--tls-cert"):
            with self.subTest(flag):
                more = ("--tls-key", "/dev/zero") if flag == "--tls-cert" else ()
                self.assertIn("/dev/zero", self.fails(flag, "/dev/zero", *more))

    def test_memory_that_is_not_there_is_named(self):
        error = self.fails("--kv-memory", "4TiB", limited=False)
        self.assertRegex(error, r"the KV cache.*needs \d+ bytes.*and \d+ bytes.*are free")

    def test_an_open_server_and_an_open_key_file_are_mentioned(self):
        with serve("--host", "0.0.0.0") as server:
            self.assertTrue(server.logged("warning.*without an API key"))
        with with_keys() as keys:
            for mode in (0o644, 0o640):
                os.chmod(keys.name, mode)
                with serve("--api-key-file", keys.name) as server:
                    self.assertEqual(bool(server.logged("warning.*other users can read")), mode == 0o644)

    def test_the_memory_of_the_kv_cache_is_taken_at_start(self):
        with serve("--kv-memory", "200MiB") as server:
            self.assertGreater(server.resident(), 200 * MIB)

    def test_no_signal_of_a_terminal_or_log_rotation_kills(self):
        with serve() as server:
            for number in (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
                server.process.send_signal(number)
            time.sleep(0.1)
            self.assertLess(server.health(), 2 * SLOWER)
