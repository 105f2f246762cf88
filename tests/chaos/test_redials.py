"""Connections that the other side closes at once are dialled again at a bounded rate."""

from __future__ import annotations

import pytest
from node_group import NAMES, SETTINGS, Group

from dledger.chaos.machine import World
from dledger.election.identity import Hello
from dledger.peers import held
from dledger.peers.links import PeerConnection
from dledger.peers.peers import Peers


def test_a_follower_that_can_hold_no_more_is_not_stormed_with_connections(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The follower's disk hangs while its vote is saved. Regression: it closed each new connection at once,
    1,700 a second."""
    monkeypatch.setattr(held, "MAX_HELD", 20)
    made = [0]
    introduced = Peers._introduced

    def counted(self: Peers, connection: PeerConnection, hello: Hello) -> None:
        made[0] += 1
        introduced(self, connection, hello)

    monkeypatch.setattr(Peers, "_introduced", counted)
    with World(5, settings=SETTINGS) as world:
        group = Group(world)
        first = group.await_leader()
        group.await_applied(NAMES, group.append(first, [b"one"]))
        victim = next(name for name in NAMES if name != first)
        world.nodes[victim].disk.hang()
        world.nodes[first].process.loop.call_soon(group.nodes[first].elections.step_down, "the test wants it")  # type: ignore[union-attr]
        world.run_until(lambda: group.nodes[first].term > 1, 5)
        second = group.await_leader()
        world.run_for(3)
        assert group.nodes[victim].held._messages, "it waits for its disk"
        made[0] = 0
        for _ in range(20):
            group.append(second, [b"more"])
            world.run_for(1)
        assert made[0] < 100
        assert group.leader() == second
        world.nodes[victim].disk.resume()
        group.await_applied(NAMES, group.append(second, [b"last"]))
