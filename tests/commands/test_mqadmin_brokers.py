"""What `dledger mqadmin updateBrokerConfig` asks whom. On a real group:
tests/cluster/test_group_administration.py."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from dledger.admin.asking import ClusterView
from dledger.client import ClientError
from dledger.commands.declared.mqadmin.program import main
from dledger.commands.declared.mqadmin.table import COMMANDS
from dledger.commands.mqadmin.call import Call
from dledger.commands.mqadmin.options import parse
from dledger.commands.mqadmin.output import Output
from dledger.remoting.bodies import BrokerData, ClusterInfo

TABLE = {"a": BrokerData("C", "a", {0: "a:0", 2: "a:2", 3: "a:3"}), "b": BrokerData("D", "b", {0: "b:0"})}


@pytest.mark.parametrize(
    ("where", "asked"),
    [
        ("-c C", ["a:0", "a:2", "a:3"]),
        ("-c C -a true", ["a:0", "a:2", "a:3"]),
        ("-b a:2", ["a:2"]),
        ("-b a:2 -c C", ["a:2"]),
    ],
)
def test_a_setting_of_a_cluster_is_changed_at_all_members(where: str, asked: list[str]) -> None:
    told: list[str] = []

    async def cluster() -> ClusterView:
        return ClusterView(ClusterInfo(TABLE, {"C": ["a"], "D": ["b"]}))

    async def change(address: str, properties: dict[str, str]) -> None:
        assert properties == {"k": "1"}
        told.append(address)
        if address == "a:2" and len(asked) > 1:
            raise ClientError("away")

    command = COMMANDS["updateBrokerConfig"]
    given = parse(command.options, f"{where} -k k -v 1".split())
    brokers: Any = SimpleNamespace(cluster=cluster, change_settings=change)
    call = Call(cast(Any, SimpleNamespace(brokers=brokers)), given, Output(True), "n:1")
    asyncio.run(command.run(call))
    assert told == asked and call.failed == (len(asked) > 1)


@pytest.mark.parametrize(
    "words",
    [
        ["updateBrokerConfig", "-k", "traceOn", "-v", "true"],
        ["getBrokerConfig"],
        ["brokerStatus"],
        ["cleanExpiredCQ"],
        ["cleanUnusedTopic"],
        ["deleteExpiredCommitLog"],
    ],
)
def test_the_broker_that_b_names_is_asked_without_a_nameserver(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It fails, as nobody listens there: but at the broker, and not for want of a NameServer."""
    monkeypatch.delenv("NAMESRV_ADDR", raising=False)
    assert main([*words, "-b", "127.0.0.1:1"]) == 1
    told = capsys.readouterr().err
    assert "127.0.0.1:1: cannot connect" in told
    assert "NameServer" not in told
