"""Settings of a node that change while it runs: retention, the scrub, the share at which a disk counts as
full."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from disk_group import DiskGroup
from node_group import NAMES, SETTINGS
from test_sim_retention import Dated, settings

from dledger.chaos.machine import World
from dledger.messages import Health
from dledger.node.node import Node


def retune(world: World, nodes: dict[str, Node], names: Iterable[str] = NAMES, **changes: Any) -> None:
    for name in names:
        process = world.nodes[name].process
        assert process is not None
        process.loop.call_soon(nodes[name].retune, replace(nodes[name].config, **changes))


def test_a_scrub_that_was_off_begins_and_ends_again() -> None:
    with World(1, settings=SETTINGS) as world:
        group = DiskGroup(world, scrub_bytes_per_s=0, scrub_pause_s=0.05)
        group.fill(100)
        scrubs = [group.nodes[name].scrubber for name in NAMES]
        world.run_for(5)
        assert [scrub.passes for scrub in scrubs] == [0, 0, 0]
        retune(world, group.nodes, scrub_bytes_per_s=1 << 20)
        world.run_for(5)
        assert all(scrub.passes > 3 and scrub.found == 0 for scrub in scrubs)
        retune(world, group.nodes, scrub_bytes_per_s=0)
        world.run_for(1)
        before = [scrub.passes for scrub in scrubs]
        world.run_for(5)
        assert [scrub.passes for scrub in scrubs] == before


def test_a_scrub_that_rests_for_hours_or_crawls_hears_of_another_rate() -> None:
    with World(2, settings=SETTINGS) as world:
        group = DiskGroup(world, scrub_bytes_per_s=1, scrub_pause_s=10_000)
        group.fill(700)
        scrub = group.nodes["n0"].scrubber
        world.run_for(5)
        assert scrub.passes == 0 and scrub.checked_bytes > 0
        retune(world, group.nodes, scrub_bytes_per_s=1 << 20, scrub_pause_s=0.05)
        world.run_for(5)
        assert scrub.passes > 1


def test_another_age_counts_at_once_on_the_node_that_was_told() -> None:
    with World(1) as world:
        scene = Dated(world, **settings(reserved_hours=72.0, interval_s=10_000.0))
        for _ in range(20):
            last = scene.add()
        scene.group.await_applied(NAMES, last)
        world.run_for(8)
        assert [scene.first(name) for name in NAMES] == [0, 0, 0]
        config = scene.group.nodes["n1"].config
        retention = replace(config.retention, reserved_hours=1 / 3600)
        retune(world, scene.group.nodes, ["n1"], retention=retention)
        world.run_for(1)
        assert scene.first("n1") > 0 and scene.first("n0") == scene.first("n2") == 0


def test_a_disk_counts_as_full_from_elsewhere_on() -> None:
    with World(3, settings=SETTINGS) as world:
        group = DiskGroup(world, disk_full_ratio=2.0, disk_check_s=0.2)
        group.fill(10)
        retune(world, group.nodes, disk_full_ratio=0.0)
        world.run_for(1)
        assert all(group.nodes[name].elector.health & Health.DISK_FULL for name in NAMES)
        retune(world, group.nodes, disk_full_ratio=2.0)
        world.run_for(1)
        assert not any(group.nodes[name].elector.health & Health.DISK_FULL for name in NAMES)
        group.fill(10)
