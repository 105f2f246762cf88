"""Retention of stand-alone nodes: their log is the data, so they delete nothing without a request."""

from __future__ import annotations

from typing import Any

import pytest
from serve_group import ServeGroup

from dledger.chaos.machine import World
from dledger.log.retention import HOUR_MS, RetentionSettings
from dledger.node.node import Node


def written(world: World, **changes: Any) -> tuple[ServeGroup, Node]:
    """A node with several segments, all covered by snapshots."""
    group = ServeGroup(world, **changes)
    group.append(*[bytes(6000)] * 40)
    [node] = group.nodes["n0"]
    world.run_until(lambda: len(node.snapshots.catalog.manifests) >= 3, 10)
    world.run_for(1)
    return group, node


def days_go_by(world: World) -> None:
    """Let four days pass, with rounds of retention in every hour of the last one."""
    world.clock_jump("n0", 73 * HOUR_MS)
    for _ in range(24):
        world.clock_jump("n0", HOUR_MS)
        world.run_for(21)


def disk_fills(world: World, group: ServeGroup, ratio: float) -> None:
    disk = group.disk("n0")
    disk.room(int(disk.used() / ratio))
    world.run_for(60)


def test_a_stand_alone_node_keeps_what_is_old() -> None:
    """Regression: the node used the broker's settings, and deleted committed entries after 72 hours."""
    with World(1) as world:
        _, node = written(world)
        days_go_by(world)
        assert node.log.first_index == 0


@pytest.mark.parametrize("ratio", [0.87, 0.95, 1.0])
def test_a_stand_alone_node_with_a_full_disk_deletes_nothing_and_refuses(ratio: float) -> None:
    with World(2) as world:
        group, node = written(world)
        disk_fills(world, group, ratio)
        days_go_by(world)
        assert node.log.first_index == 0
        assert ratio < 0.9 or group.append(b"one more") == ["DISK_FULL"]
        group.disk("n0").room(None)
        world.run_for(3)
        assert isinstance(group.append(b"with room again")[0], int)


def test_entries_of_a_stand_alone_node_go_when_somebody_asks() -> None:
    with World(3) as world:
        _, node = written(world)
        process = world.nodes["n0"].process
        assert process is not None
        process.loop.call_soon(node.snapshots.retainer.delete_before, 20)
        world.run_for(3)
        assert 0 < node.log.first_index <= 20


def test_the_age_that_was_set_is_that_of_what_goes() -> None:
    with World(4) as world:
        _, node = written(world, retention=RetentionSettings(reserved_hours=24))
        world.run_for(60)
        assert node.log.first_index == 0
        days_go_by(world)
        assert node.log.first_index > 0


def test_a_full_disk_makes_the_oldest_go_where_that_was_set() -> None:
    with World(5) as world:
        group, node = written(world, retention=RetentionSettings(clean_forcibly=True))
        disk_fills(world, group, 0.87)
        assert node.log.first_index > 0
