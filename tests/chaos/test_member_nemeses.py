"""Exchanges of members in trials: the commands of the operator, and how they go on after other faults."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from dledger.chaos.scenarios.plan import Fault
from dledger.chaos.trials import member_nemeses
from dledger.chaos.trials.arena import Arena
from dledger.chaos.trials.disk_nemeses import bring_back
from dledger.chaos.trials.nemeses import choose
from dledger.local.cluster import ClusterError
from dledger.peers.log_client import DLedgerClient, RequestFailed

OPERATOR, GROUP = 1, 0
"""Numbers (`pick`) of faults in which the operator makes the new member a voter, or the group does."""


class Group:
    """A group of three members and a spare, without processes. Every `fails`-th command gets no answer."""

    def __init__(self, fails: int = 0) -> None:
        self.size = 3
        self.nodes = ("n0", "n1", "n2", "n3")
        self.members: tuple[str, ...] = self.nodes[:3]
        self.rows: dict[str, dict[str, Any]] = {
            node: {"id": node, "role": "voter", "stays": False} for node in self.members
        }
        self.preferred: list[str] = []
        self.commands: list[str] = []
        self.notes: list[str] = []
        self.cluster = SimpleNamespace(raft_addr=lambda node: f"{node}:1", state=lambda node: {})
        self.fails = fails
        self._asked = 0

    def arena(self) -> Arena:
        return cast(Arena, self)

    def leader(self) -> str:
        return "n0"

    def note(self, text: str) -> None:
        self.notes.append(text)

    def enlist(self) -> None:
        if len(self.members) > 3:
            raise ClusterError("there is no spare node")
        self.members = (*self.members, *(node for node in self.nodes if node not in self.members))
        self.commands.append(f"start {self.members[-1]}")

    def dismiss(self, node: str) -> None:
        self.members = tuple(one for one in self.members if one != node)
        self.commands.append(f"end {node}")

    # What the leader answers

    def ask(
        self, cluster: object, question: Callable[[DLedgerClient], Awaitable[Any]], limit_s: float
    ) -> Any:
        self._asked += 1
        if self.fails and self._asked % self.fails == 0:
            raise RequestFailed("no answer from a leader")
        return asyncio.run(cast(Any, question(cast(DLedgerClient, Client(self)))))


class Client:
    """The commands that an exchange uses."""

    def __init__(self, group: Group) -> None:
        self._group = group

    async def members(self) -> dict[str, Any]:
        rows = [dict(row) for row in self._group.rows.values()]
        for row in self._group.rows.values():
            row["role"] = "learner" if row["stays"] else "voter"  # the group makes it a voter in a moment
        return {"members": rows, "pending": False}

    async def add_member(self, node: str, address: str, *, stays: bool) -> None:
        assert address == f"{node}:1"
        self._group.commands.append(f"add {node}")
        self._group.rows[node] = {"id": node, "role": "learner", "stays": stays}

    async def promote_member(self, node: str) -> None:
        self._group.commands.append(f"promote {node}")
        self._group.rows[node]["stays"] = False

    async def remove_member(self, node: str) -> None:
        self._group.commands.append(f"remove {node}")
        del self._group.rows[node]

    async def prefer(self, nodes: list[str]) -> None:
        self._group.preferred = list(nodes)


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(member_nemeses, "PAUSE_S", 0.0)


def strike(monkeypatch: pytest.MonkeyPatch, group: Group, leaving: str, pick: int) -> None:
    monkeypatch.setattr(member_nemeses, "ask", group.ask)
    member_nemeses.exchange(group.arena(), [leaving], Fault(0, "member", "any", 0, pick))


@pytest.mark.parametrize(("pick", "promotes"), [(GROUP, []), (OPERATOR, ["promote n3"])])
def test_the_spare_gets_a_vote_before_the_other_member_is_removed(
    monkeypatch: pytest.MonkeyPatch, pick: int, promotes: list[str]
) -> None:
    group = Group()
    strike(monkeypatch, group, "n1", pick)
    assert group.commands == ["start n3", "add n3", *promotes, "remove n1", "end n1"]
    assert group.members == ("n0", "n2", "n3") and set(group.rows) == set(group.members)
    assert group.notes == ["n3 has joined the group, and n1 has left it"]


def test_commands_without_an_answer_are_given_again(monkeypatch: pytest.MonkeyPatch) -> None:
    group = Group(fails=2)
    strike(monkeypatch, group, "n0", OPERATOR)
    assert group.commands == ["start n3", "add n3", "promote n3", "remove n0", "end n0"]


def test_an_interrupted_exchange_is_completed_first(monkeypatch: pytest.MonkeyPatch) -> None:
    group = Group()
    group.enlist()
    strike(monkeypatch, group, "n2", GROUP)
    assert group.commands == ["start n3", "add n3", "remove n2", "end n2"]


def test_the_group_has_its_size_again_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    group = Group()
    monkeypatch.setattr(member_nemeses, "ask", group.ask)
    member_nemeses.settle(group.arena())
    assert not group.commands
    group.enlist()
    member_nemeses.settle(group.arena())
    assert len(group.members) == group.size == len(group.rows)


def test_what_does_not_come_in_time_is_an_error_with_the_last_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    group = Group(fails=1)
    monkeypatch.setattr(member_nemeses, "CHANGE_LIMIT_S", 0.05)
    with pytest.raises(ClusterError, match=r"n3 does not become a voter: no answer from a leader"):
        strike(monkeypatch, group, "n1", GROUP)


def test_another_leader_is_preferred(monkeypatch: pytest.MonkeyPatch) -> None:
    group = Group(fails=2)
    group.ask(None, lambda client: client.members(), 1.0)  # so that the first try gets no answer
    monkeypatch.setattr(member_nemeses, "ask", group.ask)
    look = member_nemeses.prefer(group.arena(), ["n2"], Fault(0, "preferred", "any", 0))
    look()
    assert group.preferred == ["n2"] and group.notes == ["n2 is preferred, and n0 leads"]


def test_faults_strike_members_only() -> None:
    group = Group()
    group.members = ("n0", "n2", "n3")
    found = [choose(group.arena(), Fault(0, "kill", "any", 0, pick))[0] for pick in range(3)]
    assert found == ["n0", "n2", "n3"]
    assert choose(group.arena(), Fault(0, "kill", "all", 0)) == ["n0", "n2", "n3"]


def test_a_fault_of_a_node_that_has_left_needs_no_new_start() -> None:
    group = Group()
    group.members = ("n0", "n2", "n3")
    bring_back(group.arena(), ["n1"])
    assert not group.commands
