"""The commands for members and leader, against real nodes on loopback."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import pytest
from test_node import group_of_three

from dledger.commands import member as member_commands
from dledger.commands.delete import delete_before
from dledger.messages import Code
from dledger.node import member_requests
from dledger.node.node import Node
from dledger.peers.log_client import DLedgerClient, RequestFailed
from dledger.runtime.env import production_env
from dledger.runtime.settings import ConfigError
from tests.command_line import options, run
from tests.steady import steady


@pytest.fixture
def free(unused_tcp_ports: object) -> list[int]:
    return unused_tcp_ports(4)  # type: ignore[operator, no-any-return]


def test_a_group_is_told_what_to_do(
    tmp_path: Path,
    free: list[int],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    patient_dials: None,
) -> None:
    monkeypatch.setattr(member_requests, "HAND_OVER_S", 60.0)

    async def scenario() -> None:
        async with group_of_three(tmp_path, free[:3]) as group:
            await group.append([b"a%d" % number for number in range(100)])
            await group.agree(100)
            steady(group.nodes.values())
            peers = ";".join(f"{node}-{address}" for node, address in group.peers.items())

            async def run(*words: str) -> str:
                args = options(*words, "--peers", peers, "--timeout", "60")
                assert await member_commands.run(production_env("operator"), args) == 0
                return capsys.readouterr().out

            assert (await run("member", "list")).count("voter") == 3
            address = f"127.0.0.1:{free[3]}"
            grown = {**group.peers, "n3": address}
            directory = str(tmp_path / "n3")
            group.start("n3", replace(group.config("n0"), self_id="n3", store_dir=directory, peers=grown))
            said = await run("member", "add", "n3", address, "--wait", "60", "--json")
            assert json.loads(said)["done"]
            steady([group.nodes["n3"]])
            state = json.loads(await run("member", "list", "--json"))
            assert [row["role"] for row in state["members"]] == ["voter"] * 4
            assert await group.agree(100)
            await run("transfer", "n3")
            await group.until(lambda: group.nodes["n3"].serving)
            first = next(name for name in group.peers)
            await run("member", "remove", first)
            assert "preferred: n3" in await run("prefer", "n3")
            assert "the setting of each node" in await run("prefer", "--reset")
            await group.append([b"without the first"])
            with pytest.raises(RequestFailed, match="not a member") as error:
                await run("member", "remove", first)
            assert error.value.code is Code.CONFIG_REFUSED
            node: Node = group.nodes["n3"]
            assert node.status()["voters"] == ["n1", "n2", "n3"]

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [(["n1"], 0, "n1 leads\n"), ([], 0, "n1 leads\n"), (["n2"], 1, "n1 leads, not n2\n")],
)
def test_a_transfer_that_another_won_is_not_done(
    words: list[str], code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    class Client(DLedgerClient):
        async def transfer(self, node: str | None = None) -> str:
            return "n1"

    async def scenario() -> int:
        args = options("transfer", *words, "--peers", "n1-127.0.0.1:1")
        return await member_commands._transfer(Client(production_env("operator"), {}), args)

    assert asyncio.run(scenario()) == code
    assert capsys.readouterr().out == said


@pytest.mark.parametrize(
    "words",
    [
        ["member"],
        ["member", "add", "n1"],
        ["member", "remove"],
        ["transfer", "a", "b"],
        ["prefer"],
        ["prefer", "--reset", "n1", "--peers", "n1-127.0.0.1:1"],
        ["prefer", "n1", "--reset", "--peers", "n1-127.0.0.1:1"],
    ],
)
def test_wrong_usage_is_exit_code_2(words: list[str]) -> None:
    assert run(*words) == 2


def test_delete_before_of_a_node_that_is_not_there_is_wrong_usage() -> None:
    """As of `get`: exit code 2."""
    args = options("delete-before", "5", "--peers", "n0-127.0.0.1:1", "--node", "n9")
    with pytest.raises(ConfigError, match="--node n9 is not one of --peers"):
        asyncio.run(delete_before(production_env("operator"), args))
