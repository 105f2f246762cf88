"""`dledger` as a user types it: two groups behind one NameServer, a kill, and everything back."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dledger import Message, Producer
from dledger.local.cluster import find_base_port, wait_for


class Shell:
    """Runs `python -m dledger` in a directory that began empty."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def __call__(self, *words: str, code: int = 0) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "dledger", *words],
            cwd=self.directory,
            env={name: value for name, value in os.environ.items() if name != "NAMESRV_ADDR"},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == code, f"{words}: {done.returncode}\n{done.stdout}{done.stderr}"
        return done.stdout

    def json(self, *words: str, code: int = 0) -> Any:
        return json.loads(self(*words, "--json", code=code))


@pytest.fixture
def dledger(tmp_path: Path) -> Iterator[Shell]:
    shell = Shell(tmp_path)
    yield shell
    for directory in ("second", "dledger-data"):
        if (tmp_path / directory).exists():
            shell("down", "--dir", directory)


def test_two_groups_behind_one_name_server(dledger: Shell) -> None:
    port = find_base_port(start=19000)
    namesrv = f"127.0.0.1:{port}"
    small = ("--nodes", "3", "--segment-mb", "16")
    screen = dledger("up", "--base-port", str(port), *small)
    assert "group broker-a  leader n" in screen and namesrv in screen and "kill-leader --wait" in screen
    second = ("--dir", "second")
    beside = ("--group", "broker-b", "--namesrv", namesrv)
    other = dledger.json("up", *second, "--nodes", "1", "--segment-mb", "16", *beside)
    assert other["started"] == ["broker-n0"] and other["namesrv"] == [
        {"addr": namesrv, "pid": None, "own": False}
    ]

    with Producer("walk", namesrv) as producer:
        for group in ("broker-a", "broker-b"):
            producer.create_topic(f"topic-of-{group}", queues=2, broker_name=group)
        for group in ("broker-a", "broker-b"):
            result = producer.send(Message(f"topic-of-{group}", b"hello"))
            assert result.queue.broker_name == group
        killed = dledger.json("kill-leader", "--wait")
        assert killed["leader"] != killed["killed"]
        assert producer.send(Message("topic-of-broker-a", b"after")).queue.broker_name == "broker-a"

    hurt = dledger.json("status", code=1)
    assert [node["id"] for node in hurt["groups"][0]["nodes"] if node["role"] == "DOWN"] == [killed["killed"]]
    assert f"{killed['killed']} is down" in hurt["problems"][0]
    assert dledger.json("restart")["restarted"] == [killed["killed"]]
    assert dledger.json("status")["problems"] == []

    def seen() -> bool:
        groups = dledger.json("status", "--namesrv", namesrv)["groups"]
        return [(group["name"], len(group["nodes"])) for group in groups] == [
            ("broker-a", 3),
            ("broker-b", 1),
        ]

    wait_for(seen, 30, "not all brokers are registered")
    peers = ";".join(f"{node['id']}-{node['raft_addr']}" for node in hurt["groups"][0]["nodes"])
    assert len(dledger.json("status", "--peers", peers)["nodes"]) == 3

    assert dledger.json("down", *second) == {"broker-n0": "stopped"}
    assert dledger.json("status")["problems"] == [], "the NameServer was not its own"
    dledger("up", *second)
    assert "broker-b registered" in dledger("down")
    assert "clients do not find the group" in dledger.json("status", *second, code=1)["problems"][0]
    dledger("status", code=4)
