"""Whole brokers with small segments in simulation: retention, and a broker brought up by a snapshot."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from dledger.audit.findings import Severity
from dledger.chaos.machine import Settings, World
from dledger.chaos.machine.disk import Directory
from dledger.config import NodeConfig
from dledger.host import Host
from dledger.log.retention import RetentionSettings
from dledger.node.node import Node
from dledger.runtime.env import Env
from tests.audit.engine import audit
from tests.broker.sim_group import NAMES, SimGroup

SEGMENT = 64 * 1024


def small_node(env: Env, config: NodeConfig, host: Host) -> Node:
    """A node whose segments hold about a dozen messages of the test."""
    retention = RetentionSettings(interval_s=0.1)
    small = replace(
        config,
        segment_size=SEGMENT,
        max_entry_bytes=16 * 1024,
        index_units_per_file=64,
        retention=retention,
        push_bytes=16 * 1024,
    )
    return Node(env, small, host)


class Group(SimGroup):
    """Brokers with small segments, and bodies that fill them."""

    def __init__(self, world: World) -> None:
        super().__init__(world, small_node)

    def node(self, name: str) -> Node:
        node = self.brokers[name].node
        assert isinstance(node, Node)
        return node

    def cut_front(self, names: list[str], index: int) -> None:
        for name in names:
            process = self.world.nodes[name].process
            assert process is not None
            process.loop.call_soon(self.node(name).snapshots.retainer.delete_before, index)
        self.world.run_until(lambda: all(self.node(name).log.first_index > index - 40 for name in names), 5)
        self.world.run_for(0.5)


def export(place: Directory, target: Path) -> None:
    """A simulated directory as a real one."""
    target.mkdir(parents=True, exist_ok=True)
    for name, thing in place.names.items():
        if isinstance(thing, Directory):
            export(thing, target / name)
        else:
            (target / name).write_bytes(bytes(thing.content))


def copies(world: World, target: Path) -> list[Path]:
    """The stores as they are at this instant."""
    for name in NAMES:
        export(world.nodes[name].disk.directory("/store"), target / name)
    return [target / name for name in NAMES]


def assert_clean(stores: list[Path], but: str = "") -> None:
    """There is no finding beyond information, and the one that is named."""
    report = audit(stores)
    found = {one.code for one in report.ordered() if one.severity > Severity.INFO}
    assert found == ({but} if but else set()), report.ordered()
    assert len(report.replicas) == 3


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.sample(1)
def test_a_broker_brought_up_by_a_snapshot_serves_as_master(seed: int, tmp_path: Path) -> None:
    with World(seed, settings=Settings()) as world:
        group = Group(world)
        first = group.led()
        group.do(partial(group.produce, size=4000, count=30))
        victim = next(name for name in NAMES if name != first)
        world.run_for(1.5)  # a checkpoint
        world.kill(victim)
        group.do(partial(group.produce, size=4000, count=120))
        others = group.alive()
        group.cut_front(others, group.node(first).log.last_index - 40)
        group.check(first)
        before = group.low
        assert before > 0
        group.start(victim)
        world.run_until(lambda: victim in group.brokers, 5)
        world.run_until(lambda: group.node(victim).log.first_index > 0, 5)
        assert_clean(copies(world, tmp_path / "installing"), but="INSTALLING")
        world.run_until(lambda: group.node(victim).snapshots.receiver.done, 5)
        assert_clean(copies(world, tmp_path / "installed"))
        world.run_until(
            lambda: (
                victim in group.brokers
                and group.brokers[victim].store.applied_index == group.node(first).commit_index
            ),
            10,
        )
        assert group.node(victim).status()["installs_done"] == 1
        group.do(partial(group.produce, size=4000, count=10))
        # now it has to lead
        world.kill(first)
        leader = group.led()
        if leader != victim:
            process = world.nodes[leader].process
            assert process is not None
            process.loop.call_soon(
                lambda: process.loop.create_task(group.node(leader).leadership.transfer(victim))
            )
            world.run_until(lambda: group.leader == victim, 5)
        group.do(partial(group.produce, size=4000, count=10))
        group.check(victim)
        assert group.low == before
        # and it starts again from what it has
        group.start(first)
        world.run_for(1.0)
        world.power_cut(victim)
        group.led()
        group.start(victim)
        world.run_until(lambda: victim in group.brokers, 5)
        world.run_for(2.5)  # a checkpoint
        stores = copies(world, tmp_path / "at last")
        assert_clean(stores)
        for name in ("counters", "manifest"):
            path = max((stores[2] / "dledger-n2" / "snapshots").iterdir()) / name
            path.write_bytes(path.read_bytes()[:-1] + b"!")
            report = audit(stores)
            assert [found.code for found in report.findings if found.severity] == ["SNAPSHOT_DAMAGED"]
        queue = group.brokers[victim].store.queues.get("T", 0)
        assert queue is not None and queue.bounds.min == before
        digests: dict[int, str] = {}
        for name in group.alive():
            for manifest in group.node(name).snapshots.catalog.manifests:
                assert digests.setdefault(manifest.pos, manifest.digest) == manifest.digest


@pytest.mark.parametrize("seed", [4, 5])
def test_retention_moves_on_while_messages_flow_and_survives_a_power_loss_of_all(seed: int) -> None:
    with World(seed, settings=Settings()) as world:
        group = Group(world)
        leader = group.led()
        for _ in range(3):
            group.do(partial(group.produce, size=4000, count=60))
            leader = group.led()
            group.cut_front(group.alive(), group.node(leader).log.last_index - 20)
            group.check(leader)
            assert group.low > 0
            for name in NAMES:
                world.power_cut(name)
            for name in NAMES:
                group.start(name)
            leader = group.led()
            group.check(leader)
