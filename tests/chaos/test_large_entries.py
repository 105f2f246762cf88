"""Entries of megabytes on links of a few megabytes a second: heartbeats and votes do not wait behind them.

A frame of 4 MB takes 1.6 s at 20 Mbit/s, four times the shortest election time-out.
"""

from __future__ import annotations

from random import Random

import pytest
from node_group import NAMES, SETTINGS, Group

from dledger.chaos.machine import World
from dledger.protocol import PROTOCOL_WITH_PIECES

BODY = Random(1).randbytes(4_000_000)  # not to be compressed
MBIT = 1_000_000 / 8


def narrow(world: World, rate: float) -> None:
    for number, one in enumerate(NAMES):
        for other in NAMES[number + 1 :]:
            world.network.bandwidth(one, other, rate)


@pytest.mark.parametrize("mbit", [20, 10])
def test_a_leader_stays_while_it_sends_entries_of_four_megabytes(mbit: int) -> None:
    with World(mbit, settings=SETTINGS) as world:
        group = Group(world)
        leader = group.await_leader()
        group.await_applied(NAMES, group.append(leader, [b"small"]))
        term = group.nodes[leader].term
        narrow(world, mbit * MBIT)
        last = -1
        for number in range(3):
            last = group.append(leader, [b"%d" % number + BODY])
        world.run_until(lambda: all(group.applied(name) >= last for name in NAMES), 120 * 8 / mbit)
        assert [group.nodes[name].term for name in NAMES] == [term] * 3
        assert group.leader() == leader


def test_a_new_leader_is_elected_while_links_are_full_and_sends_what_the_last_one_began() -> None:
    with World(5, settings=SETTINGS) as world:
        group = Group(world)
        leader = group.await_leader()
        group.await_applied(NAMES, group.append(leader, [b"small"]))
        narrow(world, 20 * MBIT)
        committed = group.append(leader, [b"0" + BODY])
        others = tuple(name for name in NAMES if name != leader)
        group.append(leader, [b"1" + BODY, b"2" + BODY])
        world.run_until(lambda: any(group.applied(name) >= committed for name in others), 20)
        before = group.nodes[leader].term
        world.kill(leader)
        began = world.time
        second = group.await_leader()
        assert world.time - began < 5.0
        group.start(leader)
        last = group.append(second, [b"3" + BODY])
        world.run_until(lambda: all(group.applied(name) >= last for name in NAMES), 60)
        assert group.nodes[second].term <= before + 2
        assert any(body == b"0" + BODY for *_, body in group.hosts[second].entries)


def test_a_deposed_leader_forgets_what_it_had_still_to_send() -> None:
    with World(7, settings=SETTINGS) as world:
        group = Group(world, inflight_bytes=32 * 1024 * 1024)
        leader = group.await_leader()
        group.await_applied(NAMES, group.append(leader, [b"small"]))
        narrow(world, 20 * MBIT)
        for number in range(5):
            group.append(leader, [b"%d" % number + BODY])
        node = group.nodes[leader]
        target = next(name for name in NAMES if name != leader)
        assert node.peers.backlog(target) > 3 * len(BODY)
        process = world.nodes[leader].process
        assert process is not None
        process.loop.call_soon(
            lambda: node.elections.perform(node.elector.higher_term(node.term + 1, world.time))
        )
        world.run_for(0.1)
        assert node.peers.backlog(target) <= len(BODY)


def test_read_points_are_found_while_the_window_is_full() -> None:
    """At 100 Mbit/s a full window of 16 MiB takes 1.3 s. Regression: no round of heartbeats was answered in
    time."""
    with World(9, settings=SETTINGS) as world:
        group = Group(world)
        leader = group.await_leader()
        group.await_applied(NAMES, group.append(leader, [b"small"]))
        narrow(world, 100 * MBIT)
        node = group.nodes[leader]
        random = Random(2)
        group.append(leader, [random.randbytes(64_000) for _ in range(250)])
        process = world.nodes[leader].process
        assert process is not None
        took: list[float] = []

        async def read() -> None:
            began = world.time
            await node.reads.read_index(1.0)
            took.append(world.time - began)

        tasks: list[object] = []
        for _ in range(6):
            process.loop.call_soon(lambda: tasks.append(process.loop.create_task(read())))
            world.run_for(0.15)
        assert min(node.peers.backlog(name) for name in NAMES if name != leader) > 1_000_000, "still full"
        assert len(took) == 6 and max(took) < 0.1


def test_peers_of_an_older_version_get_whole_frames_in_order() -> None:
    with World(11, settings=SETTINGS) as world:
        group = Group(world, protocol_max=PROTOCOL_WITH_PIECES - 1)
        leader = group.await_leader()
        for number in range(4):
            last = group.append(leader, [b"%d" % number + BODY, b"small"])
        world.run_until(lambda: all(group.applied(name) >= last for name in NAMES), 10)
        assert group.leader() == leader
