"""Messages that a node holds while it waits for its disk have a limit; beyond it no entry is lost for
good."""

from __future__ import annotations

from collections.abc import Callable

import node_group
import pytest

from dledger.chaos.machine import World
from dledger.host import Role
from dledger.peers import held


def test_a_follower_that_held_back_too_much_is_compared_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A leader asks a new follower only once where the logs agree. Regression: when that message was dropped,
    the follower never got another entry, because an open connection loses nothing and so the leader did not
    ask again."""
    monkeypatch.setattr(held, "MAX_HELD", 5)
    with World(1) as world:
        group = node_group.Group(world)
        first = group.await_leader()
        group.append(first, [b"one"])
        victim = next(name for name in node_group.NAMES if name != first)
        node = group.nodes[victim]
        process, leading = world.nodes[victim].process, world.nodes[first].process
        assert process is not None and leading is not None
        releases: list[Callable[[], None]] = []
        process.loop.call_soon(lambda: releases.append(node.held.hold()))
        world.run_for(1.0)
        leading.loop.call_soon(group.nodes[first].elections.step_down, "the test wants it")
        world.run_until(lambda: group.nodes[first].role is not Role.LEADER, 1)
        second = group.await_leader()
        world.run_for(1.0)
        process.loop.call_soon(releases[0])
        world.run_for(3.0)
        last = group.append(group.await_leader(), [b"two"])
        group.await_applied(node_group.NAMES, last)
        assert second != victim
