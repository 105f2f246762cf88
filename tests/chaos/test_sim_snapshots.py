"""Snapshots, installs and retention of three real nodes in simulation (safety.md S14, S20, S21)."""

from __future__ import annotations

import node_group
import pytest

from chaos.sim import World
from dledger.election.elector import Elector
from dledger.host import Role
from dledger.log.retention import RetentionSettings
from formats.snapshot import Manifest

NAMES = node_group.NAMES
SMALL = {
    "segment_size": 64 * 1024,
    "max_entry_bytes": 16 * 1024,
    "index_units_per_file": 64,
    "retention": RetentionSettings(interval_s=0.1, snapshots_kept=8),
    "push_bytes": 16 * 1024,
}


class Scene:
    """A group with small segments, and what a test does with it."""

    def __init__(self, world: World, **settings: object) -> None:
        self.world = world
        self.group = node_group.Group(world, **(SMALL | settings))
        self.count = 0

    def alive(self, name: str) -> bool:
        return self.world.nodes[name].process is not None

    def living(self) -> tuple[str, ...]:
        return tuple(name for name in NAMES if self.alive(name))

    def fill(self, segments: int) -> int:
        """Append until the log is so many segments longer; the index of the last entry."""
        leader = self.group.await_leader()
        log = self.group.nodes[leader].log
        goal = log.end_pos + segments * SMALL["segment_size"]  # type: ignore[operator]
        last = log.last_index
        while log.end_pos < goal:
            self.count += 1
            bodies = [b"%d-%d" % (self.count, part) + bytes(3000) for part in range(6)]
            last = self.group.append(leader, bodies)
            self.group.await_applied((leader,), last)
        return last

    def delete_before(self, name: str, index: int) -> None:
        """Retention by hand, on one node."""
        process = self.world.nodes[name].process
        assert process is not None
        process.loop.call_soon(self.group.nodes[name].snapshots.retainer.delete_before, index)

    def cut_front(self, names: tuple[str, ...], index: int) -> None:
        """Let the logs of these nodes begin as near to `index` as segments allow."""
        before = [self.first(name) for name in names]
        for name in names:
            self.delete_before(name, index)
        self.world.run_until(
            lambda: all(self.first(name) > first for name, first in zip(names, before, strict=True)), 5
        )

    def first(self, name: str) -> int:
        return self.group.nodes[name].log.first_index

    def settle(self) -> None:
        """Everything heals and starts; all agree in the end."""
        self.world.heal()
        for name in NAMES:
            if not self.alive(name):
                self.group.start(name)
        self.world.run_for(1.0)
        leader = self.group.await_leader()
        last = self.group.append(leader, [b"the last"])
        self.group.await_applied(NAMES, last)
        self.world.run_until(lambda: all(self.group.nodes[name].elector.may_vote for name in NAMES), 5)
        self.check()

    def check(self) -> None:
        """Equal state at equal index, equal snapshots at equal places, logs that begin where they should."""
        digests = {
            (host.begins + len(host.entries), host.digest)
            for name, host in self.group.hosts.items()
            if self.alive(name)
        }
        assert len({count for count, _ in digests}) == len(digests), "states differ at one index"
        manifests: dict[int, Manifest] = {}
        for name in self.living():
            node = self.group.nodes[name]
            for manifest in node.snapshots.catalog.manifests:
                assert manifests.setdefault(manifest.pos, manifest) == manifest, "snapshots differ"
                assert node.log.begin_pos <= manifest.pos
            assert node.log.begin_pos == 0 or node.snapshots.catalog.has(node.log.begin_pos)

    def behind(self) -> tuple[str, str]:
        """(leader, a follower that is down and behind the beginning of the others' logs)."""
        leader = self.group.await_leader()
        last = self.fill(1)
        self.group.await_applied(NAMES, last)
        victim = next(name for name in NAMES if name != leader)
        self.world.kill(victim)
        last = self.fill(5)
        others = self.living()
        self.group.await_applied(others, last)
        self.cut_front(others, last)
        return leader, victim


def test_a_follower_behind_the_log_start_comes_back_by_install() -> None:
    with World(1, settings=node_group.SETTINGS) as world:
        scene = Scene(world)
        leader, victim = scene.behind()
        assert scene.first(leader) > 60
        scene.group.start(victim)
        world.run_until(lambda: scene.group.hosts[victim].restores, 5)
        scene.settle()
        assert 60 < scene.first(victim) <= scene.first(leader)
        assert scene.group.hosts[victim].begins == scene.first(victim)
        world.kill(victim)  # and it starts again from what it has
        scene.group.start(victim)
        scene.settle()


def effects_of_an_install(seed: int) -> tuple[int, int]:
    """How many effects follower and leader have from the follower's start until it is refilled."""
    with World(seed, settings=node_group.SETTINGS) as world:
        scene = Scene(world)
        leader, victim = scene.behind()
        process = world.nodes[leader].process
        assert process is not None
        before = process.effects
        scene.group.start(victim)
        world.run_until(lambda: refilled(scene, victim), 5)
        started = world.nodes[victim].process
        assert started is not None
        return started.effects, process.effects - before


def refilled(scene: Scene, name: str) -> bool:
    host, node = scene.group.hosts.get(name), scene.group.nodes.get(name)
    return host is not None and node is not None and bool(host.restores) and node.elector.may_vote


def crash_at(seed: int, effect: int, power: bool, of_leader: bool) -> None:
    with World(seed, settings=node_group.SETTINGS) as world:
        scene = Scene(world)
        leader, victim = scene.behind()
        scene.group.start(victim)
        world.crash_before(leader if of_leader else victim, effect, power=power)
        world.run_for(1.0)
        scene.settle()


@pytest.mark.parametrize("power", [False, True])
def test_a_crash_anywhere_in_an_install_leaves_the_old_state_or_the_new(power: bool) -> None:
    effects, _ = effects_of_an_install(2)
    assert effects > 60
    for effect in range(1, effects + 2, 7):
        crash_at(2, effect, power, of_leader=False)


@pytest.mark.slow
@pytest.mark.parametrize("power", [False, True])
@pytest.mark.parametrize("of_leader", [False, True])
def test_a_crash_before_every_effect_of_an_install(power: bool, of_leader: bool) -> None:
    effects = effects_of_an_install(2)[of_leader]
    for effect in range(1, effects + 2):
        crash_at(2, effect, power, of_leader)
