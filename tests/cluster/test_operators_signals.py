"""Signals that operators and scripts send to servers, none of which ends a process.

SIGHUP reads certificates and log files again, SIGUSR1 and SIGUSR2 are noted.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.dledger.certificates import Authority

LIMIT_S = 60


class Server:
    """One server as a process, with what it logs."""

    def __init__(self, program: str, directory: Path, ports: list[int]) -> None:
        self.program = program
        files = Authority(directory).issue("n0", "n0")
        certificate, key = files.certificate, files.key
        self.certificate = certificate
        peers = f"n0-127.0.0.1:{ports[1]}"
        tls = {
            "tls.peer.certPath": certificate,
            "tls.peer.keyPath": key,
            "tls.peer.trustCertPath": files.authority,
        }
        of_clients = {"tls.server.certPath": certificate, "tls.server.keyPath": key}
        common = {"bindAddress": "127.0.0.1"}
        self.settings: dict[str, object] = {
            "namesrv": common
            | of_clients
            | {"listenPort": ports[0], "logDir": directory / "logs", "kvConfigPath": directory / "kv.json"},
            "broker": common
            | of_clients
            | tls
            | {
                "brokerIP1": "127.0.0.1",
                "listenPort": ports[0],
                "vipChannelEnabled": "false",
                "logDir": directory / "logs",
                "storePathRootDir": directory / "store",
                "mapedFileSizeCommitLog": 16 << 20,
                "dLegerSelfId": "n0",
                "dLegerPeers": peers,
            },
            "serve": common
            | tls
            | {
                "dLegerGroup": "g",
                "storePathRootDir": directory / "store",
                "mapedFileSizeCommitLog": 16 << 20,
                "dLegerSelfId": "n0",
                "dLegerPeers": peers,
            },
        }[program]
        self.log = directory / "logs" / f"{program}.log" if program != "serve" else directory / "err"
        path = directory / "server.conf"
        path.write_text("".join(f"{key}={value}\n" for key, value in self.settings.items()))
        with (directory / "err").open("w") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "dledger", program, "--config", str(path)],
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        assert self.process.stdout is not None
        assert self.process.stdout.readline(), (directory / "err").read_text()

    def says(self, text: str) -> None:
        """Wait until it has logged this."""
        deadline = time.monotonic() + LIMIT_S
        while not (self.log.exists() and text in self.log.read_text()):
            assert self.process.poll() is None, "it ended"
            assert time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.05)


@pytest.fixture(params=["namesrv", "broker", "serve"])
def server(
    request: pytest.FixtureRequest, tmp_path: Path, unused_tcp_ports: Callable[[int], list[int]]
) -> Iterator[Server]:
    running = Server(request.param, tmp_path, unused_tcp_ports(2))
    yield running
    if running.process.poll() is None:
        running.process.kill()
        running.process.wait(LIMIT_S)


def test_no_signal_of_an_operator_ends_a_server(server: Server) -> None:
    server.process.send_signal(signal.SIGUSR1)
    server.says("SIGUSR1 is ignored")
    server.process.send_signal(signal.SIGUSR2)
    server.says("SIGUSR2 is ignored")
    moved = server.log.with_suffix(".1.log")
    if server.program != "serve":
        server.log.rename(moved)
    server.process.send_signal(signal.SIGHUP)
    server.says("SIGHUP: ")
    told = next(line for line in server.log.read_text().splitlines() if "SIGHUP: " in line)
    if server.program != "serve":
        assert "log file: done" in told
        assert "SIGHUP" not in moved.read_text()
        assert "TLS of " in told
    if server.program != "namesrv":
        assert "TLS between peers: done" in told
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(LIMIT_S) == 0


def test_a_certificate_that_cannot_be_used_is_told_and_the_old_one_stays(server: Server) -> None:
    before = Path(server.certificate).read_text()
    Path(server.certificate).write_text("no certificate\n")
    server.process.send_signal(signal.SIGHUP)
    server.says("SIGHUP: ")
    told = next(line for line in server.log.read_text().splitlines() if "SIGHUP: " in line)
    assert "TLS" in told
    assert "TLS between peers: done" not in told
    Path(server.certificate).write_text(before)
    server.process.send_signal(signal.SIGHUP)
    server.says("TLS of clients: done" if server.program != "serve" else "TLS between peers: done")
