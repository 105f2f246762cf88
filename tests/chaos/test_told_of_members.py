"""The members as `member list` shows them to operators, in cases where it once showed something wrong."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from member_group import MemberGroup
from serve_group import ServeGroup

from dledger.chaos.machine import World
from dledger.errors import NodeFailed
from dledger.messages import Health
from dledger.node.node import Node
from dledger.node.trust import REMOVED


def row_of(node: Node, member: str) -> dict[str, Any]:
    """One row of `member list`."""
    members: Any = node.reconfiguration.overview()["members"]
    return next(row for row in members if row["id"] == member)


def test_a_member_that_was_stopped_is_not_connected() -> None:
    """Regression: the member was shown as "leaving" for as long as its successor led."""
    with World(1) as world:
        group = ServeGroup(world, ("n0", "n1", "n2"))
        world.run_for(1)
        leader = next(name for name in group.names if group.nodes[name][0].serving)
        group._stops[leader].set()
        world.run_for(10)
        others = [group.nodes[name][0] for name in group.names if name != leader]
        row = row_of(next(node for node in others if node.serving), leader)
        assert not row["connected"] and not row["health"]


def test_the_list_tells_that_the_disks_of_leader_and_learner_are_full() -> None:
    with World(1) as world:
        group = MemberGroup(world)
        group.await_leader()
        group.start("n3")
        group.insist(lambda client: client.add_member("n3", group.address("n3"), stays=True))
        world.run_for(1)
        for name in (*group.founders, "n3"):
            disk = world.nodes[name].disk
            disk.room(disk.used() + 10_000)
        world.run_for(5)
        leader = group.await_leader()
        for name in (*group.founders, "n3"):
            health = row_of(group.nodes[leader], name)["health"]
            assert health == int(group.nodes[name].health.flags) == Health.DISK_FULL


class Ending(MemberGroup):
    """A group whose nodes may end because of their disks."""

    def start(self, name: str, **settings: object) -> None:
        self.world.node(name)
        static = self._static.setdefault(name, {**self.seeds, name: self.address(name)})
        main = partial(self._main, name=name, static=static, more=settings)
        self.world.restart(name, main, may_raise=(NodeFailed,))


@pytest.mark.parametrize("slow", [20, 50, 200])
def test_who_is_removed_while_it_is_refilled_says_so(slow: int) -> None:
    """The commit that ends the refill of the node is also the commit of its removal."""
    with World(1) as world:
        group = Ending(world, ("n0", "n1", "n2", "n3"))
        leader = group.await_leader()
        world.run_for(1.0)
        gone = next(name for name in group.founders if name != leader)
        group.append_some(3)
        world.nodes[gone].disk.fail("fsync", 1, f"/store/dledger-{gone}")
        group.append_some(1)
        world.run_until(lambda: world.nodes[gone].process is None, 5)
        group.fill(leader, 200, 3000)
        world.nodes[gone].disk.mend()
        world.nodes[gone].disk.slow(slow)
        group.start(gone)
        world.run_until(lambda: group.nodes[gone].log.last_index >= 0, 20)
        world.run_until(lambda: group.nodes[leader].peers.connected(gone), 20)
        node = group.nodes[gone]
        group.command(lambda client: client.remove_member(gone))
        world.run_until(lambda: node.members.removed(node.commit_index), 15)
        world.run_for(1.0)
        assert REMOVED in node.trust.reasons
