"""What holds between two steps of a node is looked at in production, too: else the node ends with code 71."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dledger.errors import EXIT_BUG, InvariantBroken, NodeFailed
from dledger.formats.entry import Kind
from dledger.node.invariants import check_order
from dledger.node.node import Node
from dledger.runtime.env import production_env
from tests.dledger.test_node import Group, ListHost

NAMES = ("first", "last", "durable", "committed", "applied")
IN_ORDER = {"first": 10, "last": 20, "durable": 20, "committed": 20, "applied": 20}


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"durable": 15, "committed": 18, "applied": 12},
        {"durable": 9, "committed": 9, "applied": 9},
        {"first": 21, "durable": 20},
        {"first": 0, "last": -1, "durable": -1, "committed": -1, "applied": -1},
    ],
)
def test_a_log_that_lags_or_is_empty_is_in_order(changed: dict[str, int]) -> None:
    check_order(**(IN_ORDER | changed))


@pytest.mark.parametrize("name", ["first", "durable", "committed", "applied"])
def test_each_index_is_looked_at_and_the_text_names_the_numbers(name: str) -> None:
    wrong = IN_ORDER | {name: 77}
    with pytest.raises(InvariantBroken) as broken:
        check_order(**wrong)
    assert all(str(wrong[one]) in str(broken.value) for one in NAMES)


@pytest.mark.parametrize("step", ["a tick", "an append"])
def test_a_node_whose_indexes_are_out_of_order_ends_with_the_code_of_a_bug(
    tmp_path: Path, unused_tcp_ports: Callable[[int], list[int]], step: str
) -> None:
    async def scenario() -> None:
        group = Group(tmp_path, unused_tcp_ports(1))
        node = Node(production_env("n0"), group.config("n0"), ListHost())
        running: Any = asyncio.create_task(node.run())
        async with asyncio.timeout(20):
            while not node.serving:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
            node.applier.applied_index = ahead = node.log.last_index + 1_000_000
            committed = node.commit_index  # its write may end before the node has, and commit the entry
            if step == "an append":
                assert node.appender is not None
                node.appender.add_system(b"x", Kind.RAW)
            with pytest.raises(NodeFailed) as failed:
                await running
        assert failed.value.exit_code == EXIT_BUG and not failed.value.poisons
        assert f"applied {ahead} <= committed {committed} " in failed.value.reason

    asyncio.run(scenario())
