"""`dledger serve` as real processes: several groups over one port, hand-over, exit codes, TLS."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from certificates import Authority

from dledger.formats.store_files import decode_json

ROOT = Path(__file__).resolve().parents[2]
SEGMENT = str(16 * 1024 * 1024)
pytestmark = pytest.mark.slow


class Serving:
    """Processes of `serve`, and the other commands against them."""

    def __init__(self, directory: Path, ports: list[int]) -> None:
        self.directory = directory
        self.addresses = {f"n{number}": f"127.0.0.1:{port}" for number, port in enumerate(ports)}
        self.peers = ";".join(f"{node}-{address}" for node, address in self.addresses.items())
        self.processes: dict[str, subprocess.Popen[str]] = {}

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "dledger", *arguments]

    def start(self, node: str, *arguments: str) -> None:
        with (self.directory / f"{node}.log").open("a") as log:
            self.processes[node] = subprocess.Popen(
                self.command(
                    "serve", "--id", node, "--peers", self.peers, "--bind", "127.0.0.1",
                    "--store", str(self.directory / node), "--segment-size", SEGMENT, *arguments,
                ),
                stdout=subprocess.PIPE, stderr=log, text=True, env=self.environment,
            )  # fmt: skip

    def ready(self, node: str) -> str:
        stdout = self.processes[node].stdout
        assert stdout is not None
        return stdout.readline()

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, "PYTHONPATH": str(ROOT)}

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(*arguments),
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def ask(self, command: str, *arguments: str) -> dict[str, object]:
        done = self.run(command, "--json", "--timeout", "30", "--peers", self.peers, *arguments)
        assert done.returncode == 0, done.stderr
        answer = json.loads(done.stdout)
        assert isinstance(answer, dict)
        return answer

    def leader(self, *arguments: str) -> str | None:
        nodes = self.ask("status", *arguments)["nodes"]
        assert isinstance(nodes, list)
        return next((node["id"] for node in nodes if node["serving"]), None)

    def stop(self, node: str) -> int:
        process = self.processes.pop(node)
        process.send_signal(signal.SIGTERM)
        return process.wait(60)

    def state(self, node: str, group: str) -> dict[str, object]:
        return decode_json((self.directory / node / group / "count").read_bytes())


@pytest.fixture
def serving(tmp_path: Path, unused_tcp_ports: Callable[[int], list[int]]) -> Iterator[Serving]:
    serving = Serving(tmp_path, unused_tcp_ports(3))
    yield serving
    for process in serving.processes.values():
        process.kill()
        process.wait(60)


def until(look: Callable[[], object], limit_s: float = 60) -> None:
    deadline = time.monotonic() + limit_s
    while not look():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_several_groups_share_the_ports_and_stop_in_order(serving: Serving) -> None:
    groups = ("--group", "blue", "--group", "green")
    for node in serving.addresses:
        serving.start(node, *groups)
    for node in serving.addresses:
        assert serving.ready(node) == f"dledger ready: {node} of blue, green at {serving.addresses[node]}\n"
    for number in range(3):
        serving.ask("append", "--group", "blue", f"blue {number}")
    index = serving.ask("append", "--group", "green", "green")["index"]
    got = serving.ask("get", "--group", "green", str(index))
    assert bytes.fromhex(str(got["body"])) == b"green"
    for node in serving.addresses:
        assert serving.ask("get", "--group", "green", "--node", node, str(index)) == got
    stranger = serving.run("get", "--peers", serving.peers, "--node", "n7", "0")
    assert stranger.returncode == 2 and "--node n7 is not one of --peers" in stranger.stderr
    nameless = serving.run("status", "--peers", serving.peers)
    assert nameless.returncode == 4 and "there are: blue, green" in nameless.stdout

    first = serving.leader("--group", "blue")
    assert first is not None
    assert serving.stop(first) == 0
    assert "handed_over=True" in (serving.directory / f"{first}.log").read_text()
    serving.ask("append", "--group", "blue", "after")
    serving.start(first, *groups)
    assert serving.ready(first).startswith("dledger ready")
    serving.ask("append", "--group", "blue", "all again")
    until(lambda: _equal(serving, "--group", "blue"))
    for node in list(serving.processes):
        assert serving.stop(node) == 0
    # Who stops later has applied entries that opened the terms of those that took over: not counted.
    states = [serving.state(node, "blue") for node in serving.addresses]
    counted = [(state["count"], state["digest"]) for state in states]
    assert counted[0][0] == 5 and counted[0] == counted[1] == counted[2]
    assert [serving.state(node, "green")["count"] for node in serving.addresses] == [1, 1, 1]


def _equal(serving: Serving, *arguments: str) -> bool:
    nodes = serving.ask("status", *arguments)["nodes"]
    assert isinstance(nodes, list)
    return len(dict.fromkeys(node["applied_index"] for node in nodes)) == 1


def test_a_group_that_fails_leaves_the_others_running(serving: Serving) -> None:
    groups = ("--group", "blue", "--group", "green")
    for node in serving.addresses:
        serving.start(node, *groups)
    for node in serving.addresses:
        serving.ready(node)
    serving.ask("append", "--group", "blue", "x")
    serving.ask("append", "--group", "green", "x")
    serving.stop("n0")
    identity = serving.directory / "n0" / "blue" / "dledger-n0" / "identity"
    identity.write_bytes(b"rotten")
    serving.start("n0", *groups)
    assert serving.ready("n0") == f"dledger ready: n0 of green at {serving.addresses['n0']}\n"
    serving.ask("append", "--group", "green", "y")
    assert serving.stop("n0") == 70


def test_serve_over_tls_from_a_configuration_file(serving: Serving) -> None:
    authority = Authority(serving.directory)
    for node in serving.addresses:
        files = authority.issue(node, node)
        (serving.directory / f"{node}.conf").write_text(
            f"# a node\ndLegerGroup=secret\ntls.peer.certPath={files.certificate}\n"
            f"tls.peer.keyPath={files.key}\ntls.peer.trustCertPath={files.authority}\n"
        )
        serving.start(node, "--config", str(serving.directory / f"{node}.conf"))
    for node in serving.addresses:
        serving.ready(node)
    files = authority.issue("operator", "operator")
    access = ("--tls-cert", files.certificate, "--tls-key", files.key, "--tls-ca", files.authority)
    serving.ask("append", "over TLS", *access)
    plain = serving.run("append", "x", "--timeout", "1", "--peers", serving.peers)
    assert plain.returncode == 1
    for node in list(serving.processes):
        assert serving.stop(node) == 0


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((), "dLegerGroup is missing"),
        (("--group", "g", "--group", "g"), "names a group twice"),
        (("--group", "../g"), "usable as a directory name"),
        (("--group", "g", "--id", "n9"), "not in dLegerPeers"),
        (
            ("--group", "g", "--peers", "n0-127.0.0.1:1;n1-n1..example.com:1"),
            "dLegerPeers: n1: 'n1..example.com'",
        ),
        (("--group", "g", "--bind", "a..b"), "bindAddress: 'a..b' is neither"),
        (("--group", "g", "--tls-cert", "x"), "must all be set, or none"),
        (("--group", "g", "--tls-cert", "x", "--tls-key", "x", "--tls-ca", "x"), "TLS files cannot be used"),
        (("--group", "g", "--config", "nowhere"), "no such file"),
    ],
)
def test_wrong_settings_are_said(arguments: tuple[str, ...], text: str, serving: Serving) -> None:
    serving.start("n0", *arguments)
    assert serving.processes["n0"].wait(60) == 2
    assert text in (serving.directory / "n0.log").read_text()


@pytest.mark.parametrize(
    ("store", "port", "text"), [("n0", 1, "in use by another"), ("b", 0, "cannot listen")]
)
def test_a_port_or_a_store_in_use_is_said_and_may_be_tried_again(
    store: str, port: int, text: str, serving: Serving
) -> None:
    """Exit code 1, as of a broker."""
    serving.start("n0", "--group", "g")
    serving.ready("n0")
    first = serving.processes["n0"]
    again = f"n0-{list(serving.addresses.values())[port]}"
    serving.start("n0", "--group", "g", "--store", str(serving.directory / store), "--peers", again)
    assert serving.processes["n0"].wait(60) == 1
    assert text in (serving.directory / "n0.log").read_text()
    first.kill()
    first.wait(60)


def test_bytes_that_are_no_text_are_appended_as_they_are(serving: Serving) -> None:
    serving.peers = f"n0-{serving.addresses['n0']}"
    serving.start("n0", "--group", "g")
    serving.ready("n0")
    done = subprocess.run(
        [os.fsencode(part) for part in serving.command("append", "--json", "--peers", serving.peers)]
        + [b"\xff\xfe \xc3\xa4"],
        env=serving.environment,
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    got = serving.ask("get", str(json.loads(done.stdout)["index"]))
    assert bytes.fromhex(str(got["body"])) == b"\xff\xfe \xc3\xa4"
