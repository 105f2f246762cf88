"""Machines get new addresses: dLegerPeers has the new ones, the recorded configuration the old ones."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from member_group import MemberGroup, Writer

from dledger.chaos.machine import World
from dledger.peers.dialling import Dialler
from dledger.peers.links import PeerConnection

OLD, NEW = 40911, 50911
FAILOVER_S = 0.2
"""Limit of a failover. It is far below the election time-out of 0.4 s, so no node waited for the time-out."""


class Moving(MemberGroup):
    """A group whose peer ports can all change."""

    port = OLD

    def address(self, name: str) -> str:  # type: ignore[override]
        return f"{name}:{self.port}"

    def move(self, *names: str) -> None:
        """Restart these machines at other addresses, which are in the dLegerPeers of all nodes."""
        for name in self.founders:
            self.world.kill(name)
            del self.nodes[name]
        self.port = NEW
        self.seeds = {name: f"{name}:{NEW if name in names else OLD}" for name in self.founders}
        for name in self.founders:
            self._static[name] = dict(self.seeds)
            self.start(name)

    def strayed(self, name: str) -> list[str]:
        """The statements of a node about members that it did not reach at their recorded addresses."""
        statements = self.nodes[name].status()["statements"]
        assert isinstance(statements, list)
        return [text for text in statements if "dLegerPeers" in text]


def recorded(world: World) -> Moving:
    """A group with an entry that records the members and their addresses."""
    group = Moving(world)
    group.await_leader()
    world.run_for(0.5)
    group.command(lambda client: client.prefer([]))
    world.run_for(0.5)
    return group


connect = Dialler._connect


async def silent_at_the_old_port(
    self: Dialler, make: Callable[[], PeerConnection], host: str
) -> PeerConnection:
    """A connect without a refusal at the old addresses: each try waits for its time-out."""
    if self._port == OLD:
        await asyncio.sleep(3600)
    return await connect(self, make, host)


def fail_over(group: MemberGroup) -> str:
    """Kill the leader and wait for another, which must be quick. Returns the killed node."""
    leader, begin = group.await_leader(), group.world.now
    group.world.kill(leader)
    group.await_leader(2)
    assert (group.world.now - begin) / 1e9 < FAILOVER_S
    return leader


@pytest.mark.parametrize("silent", [False, True])
def test_a_group_whose_machines_all_moved_elects_a_leader_and_takes_the_new_addresses(
    silent: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: once there was any entry, the recorded addresses overrode dLegerPeers for ever."""
    with World(1) as world:
        group = recorded(world)
        if silent:
            monkeypatch.setattr(Dialler, "_connect", silent_at_the_old_port)
        group.move(*group.founders)
        group.await_leader(15)
        world.run_for(2.0)
        writer = Writer(group, "writer")
        for name in group.founders:
            others = [other for other in group.founders if other != name]
            told = group.strayed(name)
            assert len(told) == 2
            for other, text in zip(others, told, strict=True):
                assert text.startswith(
                    f"{other} answers at {other}:{NEW} of dLegerPeers, not at {other}:{OLD}"
                )
        # A failover is as fast as ever: who was reached at the new address is refused there.
        group.start(fail_over(group))
        world.run_for(3.0)
        # What the statement says: one by one they are recorded anew.
        for name in group.founders:
            group.insist(lambda client, name=name: client.remove_member(name))
            group.insist(lambda client, name=name: client.add_member(name, group.address(name)))
            group.await_voters(*group.founders)
        world.run_until(lambda: not any(group.strayed(name) for name in group.founders), 15)
        group.settle(group.founders, writer)


def test_one_member_that_moved_is_reached_and_the_others_stay_where_they_are() -> None:
    with World(2) as world:
        group = recorded(world)
        group.move("n2")
        group.await_leader()
        world.run_for(4.0)
        assert [len(group.strayed(name)) for name in group.founders] == [1, 1, 0]
        group.settle(group.founders)


def test_old_addresses_in_dleger_peers_cost_a_failover_nothing() -> None:
    """The recorded address is right and dLegerPeers is not: a refusal at the recorded address shows that the
    leader died."""
    with World(3) as world:
        group = recorded(world)
        for name in group.founders:
            world.kill(name)
        wrong = {name: f"{name}:41000" for name in group.founders}
        for name in group.founders:
            del group.nodes[name]
            group._static[name] = wrong | {name: group.address(name)}
            group.start(name)
        group.await_leader()
        world.run_for(2.0)
        killed = fail_over(group)
        assert not any(group.strayed(name) for name in group.alive())
        group.start(killed)
        group.settle(group.founders)
