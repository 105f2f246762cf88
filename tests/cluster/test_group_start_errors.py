"""What a program says when it cannot start: the port, or the key and the line."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from dledger.local.cluster import ClusterSpec, LocalCluster, find_base_port, properties_text

LIMIT_S = 30


@pytest.fixture
def group(tmp_path: Path) -> LocalCluster:
    """Configuration files of a group that nobody started."""
    return LocalCluster.create(
        tmp_path / "group", ClusterSpec(base_port=find_base_port(start=29000), nodes=1)
    )


def run(module: str, *arguments: str) -> tuple[int, str]:
    """Exit code and everything printed; TimeoutExpired if the program starts instead of ending."""
    done = subprocess.run(
        [sys.executable, "-m", f"dledger.{module}", *arguments],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def broker_with(group: LocalCluster, text: str) -> tuple[int, str]:
    path = group.directory / "conf" / "broken.conf"
    path.write_text(text)
    return run("broker", "-c", str(path))


def refused(outcome: tuple[int, str], *words: str) -> None:
    code, output = outcome
    assert code != 0
    for word in words:
        assert word in output, output
    assert "Traceback" not in output, output


@pytest.mark.parametrize("what", ["port", "raft_port", "http_port"])
def test_a_broker_names_the_port_that_is_in_use(what: str, group: LocalCluster) -> None:
    port = getattr(group.spec, what)("n0")
    with socket.create_server(("127.0.0.1", port)):
        refused(run("broker", "-c", str(group.directory / "conf" / "broker-n0.conf")), str(port))


def test_a_nameserver_names_the_port_that_is_in_use(group: LocalCluster) -> None:
    with socket.create_server(("127.0.0.1", group.spec.namesrv_port)):
        refused(
            run("namesrv", "-c", str(group.directory / "conf" / "namesrv.conf")), str(group.spec.namesrv_port)
        )


def test_a_missing_file_is_named(group: LocalCluster) -> None:
    refused(run("broker", "-c", str(group.directory / "nowhere.conf")), "nowhere.conf")
    refused(run("namesrv", "-c", str(group.directory / "nowhere.conf")), "nowhere.conf")


@pytest.mark.parametrize("module", ["broker", "namesrv"])
@pytest.mark.parametrize("value", ["abc", "70000", "-1"])
def test_a_bad_value_names_key_and_line(module: str, value: str, group: LocalCluster) -> None:
    name = "broker-n0.conf" if module == "broker" else "namesrv.conf"
    lines = (group.directory / "conf" / name).read_text().splitlines()
    lines = [line for line in lines if not line.startswith("listenPort=")]
    lines.insert(1, f"listenPort={value}")
    path = group.directory / "conf" / "broken.conf"
    path.write_text("\n".join(lines) + "\n")
    refused(run(module, "-c", str(path)), "listenPort", "2")


@pytest.mark.parametrize("line", ["=10911", "nonsense", "listenPrt=10911"])
def test_a_line_that_cannot_be_right_is_named(line: str, group: LocalCluster) -> None:
    """No key, no value, or a key that is nearly one that exists."""
    properties = properties_text(group.broker_properties("n0"))
    outcome = broker_with(group, f"# comment\n{line}\n{properties}")
    refused(outcome, line.partition("=")[0])
    assert re.search(r"\b(line )?2\b", outcome[1]), outcome


def test_a_node_that_is_not_among_its_peers_is_refused(group: LocalCluster) -> None:
    properties = {**group.broker_properties("n0"), "dLegerSelfId": "n7"}
    refused(broker_with(group, properties_text(properties)), "dLegerSelfId", "n7")


def test_a_second_process_on_the_same_store_is_refused(group: LocalCluster) -> None:
    """Other ports, same directory: the lock says no, whoever holds the ports."""
    group.start()
    try:
        moved = ClusterSpec(base_port=find_base_port(start=29300), nodes=1)
        properties = LocalCluster(group.directory, moved).broker_properties("n0")
        refused(broker_with(group, properties_text(properties)), str(group.store("n0")))
    finally:
        group.stop()


def test_a_second_process_is_refused_although_the_lock_files_are_removed(group: LocalCluster) -> None:
    """With the same ports the ports say no, with others the directory does; the first one goes on."""
    group.start()
    try:
        files = [group.store("n0") / "lock", group.store("n0") / "dledger-n0" / "lock"]
        moved = ClusterSpec(base_port=find_base_port(start=29300), nodes=1)
        same = properties_text(group.broker_properties("n0"))
        other = properties_text(LocalCluster(group.directory, moved).broker_properties("n0"))
        for text, word in ((same, str(group.spec.port("n0"))), (other, str(group.store("n0")))):
            for file in files:
                file.unlink(missing_ok=True)
            outcome = broker_with(group, text)
            refused(outcome, word)
            assert outcome[0] == 1
        assert "broker-n0" in group.running()
        client = [sys.executable, "-m", "dledger", "status", "--dir", str(group.directory)]
        done = subprocess.run(client, capture_output=True, text=True, timeout=LIMIT_S, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    finally:
        group.stop()


def test_a_port_that_is_held_for_a_moment_is_waited_for(group: LocalCluster) -> None:
    with socket.create_server(("127.0.0.1", group.spec.namesrv_port)) as holder:
        process = subprocess.Popen(
            [sys.executable, "-m", "dledger.namesrv", "-c", str(group.directory / "conf" / "namesrv.conf")],
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            holder.close()
            assert process.stdout is not None
            assert "boot success" in process.stdout.readline()
        finally:
            process.terminate()
            process.wait(LIMIT_S)


def test_who_holds_the_port_is_named(group: LocalCluster) -> None:
    port = group.spec.raft_port("n0")
    with socket.create_server(("127.0.0.1", port)):
        outcome = run("broker", "-c", str(group.directory / "conf" / "broker-n0.conf"))
    refused(outcome, f":{port}: ", "The setting is dLegerPeers", f"by process {os.getpid()} (")
    assert outcome[0] == 1
    assert not (group.store("n0") / "dledger-n0").exists(), "the ports come first"
