"""One key-value table of three NameServers, as real processes: killed, wiped, paused, without a majority."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dledger.local import wire
from dledger.local.cluster import wait_for
from dledger.namesrv.config import SETTINGS
from dledger.runtime.settings import ConfigError

pytest.importorskip("pysyncobj")

PUT, GET, DELETE, LIST = 100, 101, 102, 219
LIMIT_S = 100
NAMES = ("a", "b", "c")


class Servers:
    """Three NameServers on loopback."""

    def __init__(self, directory: Path, ports: list[int], password: str = "") -> None:
        self.directory = directory
        self.addresses = {name: f"127.0.0.1:{ports[number]}" for number, name in enumerate(NAMES)}
        kv = [f"127.0.0.1:{port}" for port in ports[3:6]]
        for number, name in enumerate(NAMES):
            settings = {
                "listenPort": str(ports[number]),
                "bindAddress": "127.0.0.1",
                "kvPeers": ";".join(kv),
                "kvSelfAddress": kv[number],
                "kvPassword": password,
            }
            (directory / name).mkdir()
            text = "".join(f"{key}={value}\n" for key, value in settings.items() if value)
            (directory / name / "namesrv.conf").write_text(text)
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, found: bool = False) -> None:
        conf = str(self.directory / name / "namesrv.conf")
        with (self.directory / name / "log").open("ab") as log:
            self.running[name] = subprocess.Popen(
                [sys.executable, "-m", "dledger.namesrv", "-c", conf, "--kvFound", str(found).lower()],
                stdout=log,
                stderr=log,
            )

    def kill(self, name: str) -> None:
        self.running[name].kill()
        self.running.pop(name).wait()

    def wipe(self, name: str) -> None:
        shutil.rmtree(self.directory / name / "kvConfig-kv")
        (self.directory / name / "kvConfig.json").unlink(missing_ok=True)

    def ask(self, name: str, code: int, **fields: object) -> wire.Answer:
        return wire.call(self.addresses[name], code, {"namespace": "N", **fields}, timeout_s=10)

    def put(self, name: str, key: str, value: str) -> int:
        try:
            return self.ask(name, PUT, key=key, value=value).code
        except wire.NoAnswer:
            return -1

    def until_put(self, name: str, key: str, value: str) -> None:
        wait_for(lambda: self.put(name, key, value) == 0 or None, LIMIT_S, lambda: self.logs())

    def until_deleted(self, name: str, key: str) -> None:
        def deleted() -> bool:
            try:
                return self.ask(name, DELETE, key=key).code == 0
            except wire.NoAnswer:
                return False

        wait_for(deleted, LIMIT_S, self.logs)

    def table(self, name: str) -> dict[str, str] | None:
        try:
            answer = self.ask(name, LIST)
        except wire.NoAnswer:
            return None
        return json.loads(answer.body)["table"] if answer.code == 0 else None

    def until(self, name: str, expected: dict[str, str]) -> None:
        wait_for(
            lambda: self.table(name) == expected or None,
            LIMIT_S,
            lambda: f"{name}: {self.table(name)}, not {expected}; {self.logs()}",
        )

    def logs(self) -> str:
        return "\n".join((self.directory / name / "log").read_text()[-1500:] for name in NAMES)


@pytest.fixture
def servers(tmp_path: Path, unused_tcp_ports: Callable[[int], list[int]]) -> Iterator[Servers]:
    found = Servers(tmp_path, unused_tcp_ports(6), password="between us")
    yield found
    for process in found.running.values():
        process.send_signal(signal.SIGCONT)
        process.kill()
        process.wait()


@pytest.mark.slow
def test_one_killed_one_wiped_one_paused(servers: Servers) -> None:
    """Nothing that was answered is lost, and all end alike."""
    (servers.directory / "b" / "kvConfig.json").write_text('{"configTable":{"N":{"old":"1"}}}')
    for name in NAMES:
        servers.start(name, found=True)
    expected = {"old": "1"}
    servers.until("c", expected)
    for number, name in enumerate((*NAMES, *NAMES)):
        servers.until_put(name, f"k{number}", name)
        expected[f"k{number}"] = name
    servers.until_deleted("a", "k5")
    del expected["k5"]
    for name in NAMES:
        servers.until(name, expected)

    servers.kill("a")
    servers.until_put("b", "without a", "x")
    expected["without a"] = "x"
    servers.wipe("a")
    servers.start("a")  # no memory: it observes first
    servers.until("a", expected)
    servers.until_put("a", "again", "y")
    expected["again"] = "y"
    servers.kill("b")  # a majority is a, which was wiped, and c
    servers.until_put("c", "without b", "z")
    expected["without b"] = "z"
    servers.start("b")
    for name in NAMES:
        servers.until(name, expected)

    servers.running["c"].send_signal(signal.SIGSTOP)
    servers.until_put("a", "while c sleeps", "w")
    expected["while c sleeps"] = "w"
    servers.running["c"].send_signal(signal.SIGCONT)
    for name in NAMES:
        servers.until(name, expected)
    export = servers.directory / "c" / "kvConfig.json"  # written after the table has changed
    whole = {"configTable": {"N": expected}}
    wait_for(lambda: json.loads(export.read_text()) == whole or None, LIMIT_S, export.read_text)

    for name in ("a", "b"):
        servers.kill(name)
    answer = servers.ask("c", PUT, key="alone", value="x")
    assert answer.code != 0 and answer.remark is not None
    assert servers.table("c") == expected, "reads go on"
    servers.start("a")
    servers.start("b")
    servers.until_put("a", "last", "v")
    expected |= {"last": "v"}
    wait_for(lambda: _alike(servers, expected) or None, LIMIT_S, servers.logs)


def _alike(servers: Servers, expected: dict[str, str]) -> bool:
    """The change that c made alone may have come through, or not: then equally on all."""
    tables = [servers.table(name) for name in NAMES]
    return (
        tables[0] is not None
        and all(table == tables[0] for table in tables)
        and tables[0].items() >= expected.items()
    )


@pytest.mark.slow
def test_a_member_without_memory_waits_for_a_leader(servers: Servers) -> None:
    for name in ("a", "b"):
        servers.start(name)
    (servers.directory / "c" / "log").touch()
    wait_for(lambda: "set kvFound=true" in servers.logs() or None, LIMIT_S, servers.logs)
    answer = servers.ask("a", GET, key="x")
    assert answer.code == 2 and "has not read" in str(answer.remark)


def test_settings_of_the_peers() -> None:
    three = "10.0.0.1:9878;10.0.0.2:9878;10.0.0.3:9878"
    good = {"kvPeers": three, "kvSelfAddress": "10.0.0.2:9878", "kvPassword": "x"}
    assert len(SETTINGS.load(good)[0].kv.peers) == 3
    for changes, said in (
        ({"kvPassword": ""}, "beyond loopback need kvPassword"),
        ({"kvSelfAddress": "10.0.0.9:9878"}, "is not one of kvPeers"),
        ({"kvPeers": "8.8.8.8:9878", "kvSelfAddress": "8.8.8.8:9878"}, "is a public address"),
        ({"kvPeers": "host:9878"}, "expected an IP address"),
    ):
        with pytest.raises(ConfigError, match=said):
            SETTINGS.load(good | changes)
    assert "secret" not in str(SETTINGS.format(SETTINGS.load(good | {"kvPassword": "secret"})[0]))


def test_a_server_that_stood_still_does_not_say_that_the_leader_changed() -> None:
    """PySyncObj gives this reason also where the time-out of a follower is over: the leader may lead on."""
    from pysyncobj import FAIL_REASON

    from dledger.namesrv.kv_member import why_no_answer

    text, may_have_happened = why_no_answer(FAIL_REASON.LEADER_CHANGED)
    assert may_have_happened and "changed" not in text and "does not know" in text
    assert why_no_answer(FAIL_REASON.MISSING_LEADER) == ("there is no leader among kvPeers", False)
