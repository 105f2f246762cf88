"""`scripts/cluster` as a user or a script meets it: exit codes, JSON, groups side by side."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dledger.local.cluster import find_base_port

ROOT = Path(__file__).resolve().parents[2]
NODE_KEYS = {"id", "pid", "addr", "raft_addr", "store", "role", "term", "end_index", "committed_index"}


def cluster(command: str, directory: Path, *arguments: str) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of one command."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "cluster.py"), command, "--dir", str(directory), *arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


def succeed(command: str, directory: Path, *arguments: str) -> dict[str, Any]:
    code, output, error = cluster(command, directory, "--json", *arguments)
    assert code == 0, error
    value = json.loads(output)
    assert isinstance(value, dict)
    return value


@pytest.fixture
def directories(tmp_path: Path) -> Iterator[tuple[Path, Path]]:
    pair = (tmp_path / "one", tmp_path / "two")
    yield pair
    for directory in pair:
        cluster("stop", directory)


def test_the_life_of_a_group(directories: tuple[Path, Path]) -> None:
    directory, _ = directories
    port = str(find_base_port(start=11000))
    started = succeed("start", directory, "--base-port", port, "--segment-mb", "16")
    assert started["namesrv"][0]["addr"] == f"127.0.0.1:{port}"
    assert isinstance(started["namesrv"][0]["pid"], int)
    (group,) = started["groups"]
    assert [node["id"] for node in group["nodes"]] == ["n0", "n1", "n2"]
    assert all(node.keys() == NODE_KEYS for node in group["nodes"])
    assert sorted(node["role"] for node in group["nodes"]) == ["FOLLOWER", "FOLLOWER", "LEADER"]
    assert all(Path(node["store"]).is_dir() for node in group["nodes"])

    again = succeed("start", directory)
    assert again["namesrv"] == started["namesrv"], "start keeps what runs, and the ports it was given"

    killed = succeed("kill-leader", directory, "--wait")
    assert killed["killed"] == group["leader"]
    assert killed["leader"] != group["leader"]
    status = succeed("status", directory)["groups"][0]
    assert status["leader"] == killed["leader"]
    roles = {node["id"]: node["role"] for node in status["nodes"]}
    assert roles[killed["killed"]] == "DOWN"

    healed = succeed("restart", directory)["groups"][0]
    assert all(node["pid"] for node in healed["nodes"])
    assert len({node["committed_index"] for node in healed["nodes"]}) == 1
    one = succeed("restart", directory, "--node", "n1")["groups"][0]
    before = {node["id"]: node["pid"] for node in healed["nodes"]}
    after = {node["id"]: node["pid"] for node in one["nodes"]}
    assert after["n1"] != before["n1"]
    assert (after["n0"], after["n2"]) == (before["n0"], before["n2"])

    stopped = succeed("stop", directory)
    assert stopped == dict.fromkeys(("broker-n0", "broker-n1", "broker-n2", "namesrv"), "stopped")
    assert cluster("status", directory)[0] == 3
    assert cluster("kill-leader", directory)[0] == 3
    assert cluster("stop", directory)[0] == 0


def test_groups_side_by_side(directories: tuple[Path, Path]) -> None:
    """Another directory and other ports: no touch. The same ports: said, and nothing started."""
    one, two = directories
    port = str(find_base_port(start=13000))
    succeed("start", one, "--base-port", port, "--nodes", "1", "--segment-mb", "16")
    code, _, error = cluster("start", two, "--base-port", port, "--nodes", "1", "--segment-mb", "16")
    assert code == 1
    assert port in error
    free = str(find_base_port(start=15000))
    other = succeed("start", two, "--base-port", free, "--nodes", "1", "--segment-mb", "16")
    succeed("stop", two)
    assert other["groups"][0]["leader"] == "n0"
    assert succeed("status", one)["groups"][0]["leader"] == "n0"


def test_several_groups_by_one_command(tmp_path: Path) -> None:
    def dledger(*words: str) -> Any:
        line = [sys.executable, "-m", "dledger", *words, "--json"]
        done = subprocess.run(line, capture_output=True, text=True, timeout=100, check=False)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    place = ("--dir", str(tmp_path / "groups"))
    port = str(find_base_port(start=13000))
    size = ("--groups", "2", "--nodes", "1", "--segment-mb", "16")
    started = dledger("up", *place, *size, "--base-port", port)
    assert started["started"] == ["namesrv", "broker-n0", "broker-b/broker-n0"]
    try:
        address = f"127.0.0.1:{port}"
        dledger("bench", "produce", "--namesrv", address, "--topic", "T", "--messages", "1600")
        queues = dledger("admin", "topic", "show", "T", "--namesrv", address)["queues"]
        assert {row["broker"] for row in queues if row["messages"]} == {"broker-a", "broker-b"}
        assert dledger("kill-leader", *place, "--group", "broker-b")["killed"] == "n0"
        assert dledger("restart", *place)["restarted"] == ["broker-b/n0"]
        leaders = {group["name"]: group["leader"] for group in dledger("status", *place)["groups"]}
        assert leaders == {"broker-a": "n0", "broker-b": "n0"}
    finally:
        stopped = dledger("down", *place)
    assert stopped == {"broker-b/broker-n0": "stopped", "broker-n0": "stopped", "namesrv": "stopped"}


def test_what_cannot_be_done_is_said(tmp_path: Path) -> None:
    code, _, error = cluster("status", tmp_path / "nowhere")
    assert (code, "no group" in error) == (1, True)
    port = str(find_base_port(start=17000))
    size = str(64 * 1024 * 1024)
    code, _, error = cluster("start", tmp_path / "big", "--base-port", port, "--segment-mb", size)
    assert (code, "MiB need" in error) == (1, True)
    assert cluster("explode", tmp_path)[0] == 2
