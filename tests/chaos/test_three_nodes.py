"""Three real, unchanged nodes in one virtual world: the leader dies, nothing is lost, and one seed gives one
course of events."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import node_group
import pytest

from dledger.chaos.machine import World
from dledger.chaos.machine.trace import first_difference
from dledger.formats.entry import Kind

ROOT = Path(__file__).resolve().parents[2]
EXPECTED = [b"before %d" % number for number in range(50)] + [
    b"after %d" % number for number in range(50, 100)
]


@pytest.mark.parametrize("seed", range(5))
def test_a_crash_of_the_leader_loses_nothing(seed: int) -> None:
    with World(seed, settings=node_group.SETTINGS) as world:
        group = node_group.scenario(world)
        one, other, third = (group.hosts[name].entries for name in node_group.NAMES)
        assert one == other == third
        assert [body for _, _, kind, body in one if kind == Kind.RAW] == EXPECTED
        assert [index for index, _, _, _ in one] == list(range(len(one)))
        logs = [group.nodes[name].log for name in node_group.NAMES]
        assert len(dict.fromkeys((log.last_index, log.end_pos, log.last_chain) for log in logs)) == 1


@pytest.mark.parametrize("seed", range(3))
def test_a_power_cut_of_all_three_loses_nothing_that_was_committed(seed: int) -> None:
    with World(seed, settings=node_group.SETTINGS) as world:
        group = node_group.Group(world)
        leader = group.await_leader()
        bodies = [b"entry %d" % number for number in range(20)]
        group.await_applied((leader,), group.append(leader, bodies))
        group.append(leader, [b"perhaps"])
        for name in node_group.NAMES:
            world.power_cut(name)
        for name in node_group.NAMES:
            group.start(name)
        world.run_until(lambda: all(world.nodes[name].boots == 2 for name in node_group.NAMES), 1)
        world.run_for(0.01)
        leader = group.await_leader()
        group.await_applied(node_group.NAMES, group.append(leader, [b"last"]))
        for name in node_group.NAMES:
            kept = [body for _, _, kind, body in group.hosts[name].entries if kind == Kind.RAW]
            assert kept[:20] == bodies and kept[20:] in ([b"last"], [b"perhaps", b"last"])


def settled(group: node_group.Group, leader: str, index: int) -> bool:
    """Whether an entry is applied by its leader, or the leader will never acknowledge it."""
    return index <= group.applied(leader) or leader != group.leader()


def crash_and_return(seed: int, effect: int, follower: bool, power: bool) -> None:
    """Crash a member before one of its next effects while the leader appends. All logs must become equal."""
    with World(seed, settings=node_group.SETTINGS) as world:
        group = node_group.Group(world)
        leader = group.await_leader()
        victim = next(name for name in node_group.NAMES if (name == leader) != follower)
        world.crash_before(victim, effect, power=power)
        acknowledged: list[bytes] = []
        for number in range(60):
            if leader != group.leader():
                break
            bodies = [b"%d" % number]
            index = group.append(leader, bodies)
            if index < 0:
                break
            world.run_until(partial(settled, group, leader, index), 3)
            if index <= group.applied(leader):
                acknowledged += bodies
        assert world.nodes[victim].process is None, "the effect was never reached"
        group.start(victim)
        world.run_for(0.05)
        leader = group.await_leader()
        group.await_applied(node_group.NAMES, group.append(leader, [b"last"]))
        one, other, third = (group.hosts[name].entries for name in node_group.NAMES)
        assert one == other == third
        kept = [body for _, _, kind, body in one if kind == Kind.RAW]
        assert [body for body in kept if body in acknowledged] == acknowledged


@pytest.mark.parametrize("power", [False, True])
@pytest.mark.sample(1)
def test_a_leader_may_crash_before_any_effect(power: bool) -> None:
    for effect in range(1, 60, 7):
        crash_and_return(effect, effect, follower=False, power=power)


@pytest.mark.parametrize("power", [False, True])
@pytest.mark.sample(1)
def test_a_follower_may_crash_before_any_effect(power: bool) -> None:
    for effect in range(1, 60, 7):
        crash_and_return(effect, effect, follower=True, power=power)


def test_one_seed_gives_one_trace_of_the_whole_group() -> None:
    environment = {**os.environ, "PYTHONHASHSEED": "77", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(Path(node_group.__file__)), "3"]
    elsewhere = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=600, check=True
    )
    first = node_group.run(3)
    assert first_difference(first, node_group.run(3)) is None
    assert first_difference(first, elsewhere.stdout.split("\n")) is None
    assert len(first) > 1000


def test_each_node_can_tell_when_and_why_its_role_changed() -> None:
    with World(1, settings=node_group.SETTINGS) as world:
        group = node_group.Group(world)
        first = group.await_leader()
        world.kill(first)
        world.run_until(lambda: group.leader() not in (None, first), 10)
        second = group.await_leader()
        changes = group.nodes[second].role_changes()
        assert changes[0]["why"] == "the node started"
        won = [change for change in changes if change["role"] == "LEADER"]
        assert [(one["leader"], one["why"]) for one in won] == [(second, "quorum of votes")]
        times = [int(str(change["at_ms"])) for change in changes]
        assert times == sorted(times)
