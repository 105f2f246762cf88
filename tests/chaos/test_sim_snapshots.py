"""Snapshots, installs and retention of three real nodes in simulation (safety.md S14, S20, S21)."""

from __future__ import annotations

import asyncio
import errno
import random
from collections.abc import Iterable, Mapping

import node_group
import pytest

from dledger.chaos.machine import World
from dledger.formats.entry import Kind
from dledger.formats.snapshot import Manifest
from dledger.host import Role
from dledger.log.retention import RetentionSettings
from dledger.node.node import Node
from dledger.runtime.files import Files
from dledger.snapshots import catalog as catalog_module

NAMES = node_group.NAMES
SMALL = {
    "segment_size": 64 * 1024,
    "max_entry_bytes": 16 * 1024,
    "index_units_per_file": 64,
    "retention": RetentionSettings(interval_s=0.1, snapshots_kept=8),
    "push_bytes": 16 * 1024,
}


BALLAST = 200_000


class HeavyHost(node_group.ListHost):
    """A host whose snapshot is sent in a dozen pieces."""

    def snapshot(self) -> Iterable[tuple[str, bytes]]:
        seed = random.Random(self.digest)
        return [*super().snapshot(), ("ballast", seed.randbytes(BALLAST))]

    async def restore(self, parts: Mapping[str, bytes], index: int, pos: int) -> None:
        assert parts["ballast"] == random.Random(parts["digest"]).randbytes(BALLAST)
        await super().restore(parts, index, pos)


class Scene:
    """A group with small segments, and the operations of a test on it."""

    def __init__(self, world: World, host: type[HeavyHost] = HeavyHost, **settings: object) -> None:
        self.world = world
        self.group = node_group.Group(world, host, **(SMALL | settings))
        self.group.kind = Kind.MESSAGE
        self.count = 0

    def start(self, name: str) -> None:
        """Start a stopped node, and forget the objects of its last process."""
        self.group.nodes.pop(name, None)
        self.group.hosts.pop(name, None)
        self.group.start(name)
        self.world.run_until(lambda: name in self.group.nodes, 1)

    def alive(self, name: str) -> bool:
        return self.world.nodes[name].process is not None

    def living(self) -> tuple[str, ...]:
        return tuple(name for name in NAMES if self.alive(name))

    def fill(self, segments: int) -> int:
        """Append until the log is this many segments longer. Returns the index of the last entry."""
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
        """Delete old entries of one node."""
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

    def sent(self, name: str) -> int:
        """Bytes of snapshots that a node's present process has sent."""
        return self.group.nodes[name].snapshots.sender.bytes

    def first(self, name: str) -> int:
        return self.group.nodes[name].log.first_index

    def settle(self) -> None:
        """Heal and start everything; all nodes agree in the end."""
        self.world.heal()
        for name in NAMES:
            if not self.alive(name):
                self.start(name)
        self.world.run_for(1.0)
        leader = self.group.await_leader()
        last = self.group.append(leader, [b"the last"])
        self.group.await_applied(NAMES, last)
        self.world.run_until(lambda: all(self.group.nodes[name].elector.may_vote for name in NAMES), 5)
        self.check()

    def check(self) -> None:
        """Check equal state at equal indexes, equal snapshots at equal places, and that logs begin where they
        should."""
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
        """(leader, a stopped follower that is behind the beginning of the others' logs)."""
        leader = self.group.await_leader()
        last = self.fill(1)
        self.group.await_applied(NAMES, last)
        victim = next(name for name in NAMES if name != leader)
        self.world.kill(victim)
        last = self.fill(5)
        others = self.living()
        self.group.await_applied(others, last)
        self.world.run_for(0.1)  # snapshots of all boundaries are published
        self.cut_front(others, last - 30)
        return leader, victim


def test_a_follower_behind_the_log_start_comes_back_by_install() -> None:
    with World(1, settings=node_group.SETTINGS) as world:
        scene = Scene(world)
        leader, victim = scene.behind()
        assert scene.first(leader) > 60
        scene.start(victim)
        world.run_until(lambda: scene.group.hosts[victim].restores, 5)
        scene.settle()
        assert 60 < scene.first(victim) <= scene.first(leader)
        assert scene.group.hosts[victim].begins == scene.first(victim)
        world.kill(victim)  # and it starts again from what it has
        scene.start(victim)
        scene.settle()


def effects_of_an_install(seed: int) -> tuple[int, int]:
    """How many effects follower and leader have from the follower's start until it is refilled."""
    with World(seed, settings=node_group.SETTINGS) as world:
        scene = Scene(world)
        leader, victim = scene.behind()
        process = world.nodes[leader].process
        assert process is not None
        before = process.effects
        scene.start(victim)
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
        old = scene.group.nodes[victim].log.durable_index
        scene.start(victim)
        world.crash_before(leader if of_leader else victim, effect, power=power)
        world.run_for(0.3)
        if not of_leader and not scene.alive(victim):
            # What is there without help of the others: the old log whole, or the snapshot's.
            world.isolate(victim)
            scene.start(victim)
            world.run_until(lambda: scene.group.nodes[victim].elections._timer, 2)
            log = scene.group.nodes[victim].log
            assert (log.first_index == 0 and log.last_index >= old) or log.first_index > old + 1
            assert scene.group.hosts[victim].begins == log.first_index
        scene.settle()


@pytest.mark.parametrize("power", [False, True])
@pytest.mark.sample(1)
def test_a_crash_anywhere_in_an_install_leaves_the_old_state_or_the_new(power: bool) -> None:
    effects, _ = effects_of_an_install(2)
    assert effects > 100
    for effect in range(1, effects + 2, 5):
        crash_at(2, effect, power, of_leader=False)


@pytest.mark.soak
@pytest.mark.parametrize("power", [False, True])
@pytest.mark.parametrize("of_leader", [False, True])
@pytest.mark.parametrize("seed", [2, 3])
def test_a_crash_before_every_effect_of_an_install(seed: int, power: bool, of_leader: bool) -> None:
    effects = effects_of_an_install(seed)[of_leader]
    for effect in range(1, effects + 2):
        crash_at(seed, effect, power, of_leader)


def half_done(scene: Scene, victim: str) -> bool:
    incoming = scene.group.nodes[victim].snapshots.receiver._incoming
    return incoming is not None and incoming.size > BALLAST // 2


@pytest.mark.parametrize("seed", [4, 5, 6])
def test_an_install_goes_on_with_another_leader(seed: int) -> None:
    with World(seed, settings=node_group.SETTINGS) as world:
        scene = Scene(world)
        leader, victim = scene.behind()
        scene.start(victim)
        world.run_until(lambda: half_done(scene, victim), 5)
        world.kill(leader)
        world.run_until(lambda: refilled(scene, victim), 5)
        second = scene.group.await_leader()
        assert second != leader
        assert 0 < scene.sent(second) < BALLAST * 0.6, "the second leader began anew"
        scene.settle()


@pytest.mark.parametrize("power", [False, True])
def test_an_install_goes_on_after_a_crash_of_either_side(power: bool) -> None:
    with World(7, settings=node_group.SETTINGS) as world:
        scene = Scene(world)
        leader, victim = scene.behind()
        scene.start(victim)
        world.run_until(lambda: half_done(scene, victim), 5)
        sent = scene.sent(leader)
        (world.power_cut if power else world.kill)(victim)
        scene.start(victim)
        world.run_until(lambda: refilled(scene, victim), 5)
        assert scene.group.await_leader() == leader
        assert scene.sent(leader) - sent < BALLAST * 0.6, "what was fsynced was sent again"
        scene.settle()


def test_what_was_read_for_a_peer_that_died_in_its_install_is_given_back() -> None:
    """Regression: the leader kept the whole snapshot in memory for as long as the peer stayed away."""
    with World(4, settings=node_group.SETTINGS) as world:
        scene = Scene(world)
        leader, victim = scene.behind()
        scene.start(victim)
        sender = scene.group.nodes[leader].snapshots.sender
        world.run_until(lambda: half_done(scene, victim), 5)
        assert sender._loaded is not None
        world.kill(victim)
        world.run_for(0.5)
        assert sender._loaded is None
        scene.start(victim)
        world.run_until(lambda: refilled(scene, victim), 5)
        scene.settle()


def test_an_install_goes_on_after_a_reconnection() -> None:
    with World(8, settings=node_group.SETTINGS) as world:
        scene = Scene(world)
        leader, victim = scene.behind()
        scene.start(victim)
        world.run_until(lambda: half_done(scene, victim), 5)
        sent = scene.sent(leader)
        process = world.nodes[leader].process
        assert process is not None
        process.loop.call_soon(scene.group.nodes[leader].peers.refresh)  # closes every connection
        world.run_until(lambda: refilled(scene, victim), 5)
        assert scene.sent(leader) - sent < BALLAST * 0.6
        scene.settle()


@pytest.mark.parametrize("seed", [9, 10])
def test_a_wiped_node_joins_a_group_whose_log_begins_late(seed: int) -> None:
    with World(seed, settings=node_group.SETTINGS) as world:
        scene = Scene(world)
        leader, victim = scene.behind()
        world.nodes[victim].disk.remove("/store")
        scene.start(victim)
        world.run_until(lambda: refilled(scene, victim), 5)
        scene.settle()
        node = scene.group.nodes[victim]
        world.run_until(lambda: node.role is Role.FOLLOWER, 5)
        # it counts: the group lives with it and one of the old ones
        world.kill(leader)
        last = scene.fill(1)
        scene.group.await_applied(scene.living(), last)
        scene.settle()


def test_while_it_is_installed_a_node_does_not_vote() -> None:
    with World(11, settings=node_group.SETTINGS) as world:
        scene = Scene(world)
        _, victim = scene.behind()
        scene.start(victim)
        world.run_until(lambda: scene.group.nodes[victim].snapshots.receiver.replacing, 5)
        assert not scene.group.nodes[victim].elector.may_vote
        world.run_until(lambda: scene.group.hosts[victim].restores, 5)
        assert not scene.group.nodes[victim].elector.may_vote
        world.run_until(lambda: refilled(scene, victim), 5)


def test_a_damaged_snapshot_is_not_sent_and_the_next_one_serves() -> None:
    with World(12, settings=node_group.SETTINGS) as world:
        scene = Scene(world)
        leader, victim = scene.behind()
        scene.fill(3)
        manifests = scene.group.nodes[leader].snapshots.catalog.manifests
        assert len(manifests) >= 2
        path = f"/store/dledger-{leader}/snapshots/{manifests[0].pos:020d}/ballast"
        world.nodes[leader].disk.inode(path).content[1000] ^= 1
        scene.start(victim)
        world.run_until(lambda: scene.group.hosts[victim].restores, 5)
        assert scene.group.hosts[victim].begins == manifests[1].index + 1
        world.run_until(lambda: refilled(scene, victim), 5)


def test_a_disk_that_is_full_when_a_received_snapshot_is_published_only_delays_the_install() -> None:
    """Regression: the follower answered "all of it", which means installed, and was left behind."""
    with World(1, settings=node_group.SETTINGS) as world:
        scene = Scene(world)
        _, victim = scene.behind()
        scene.start(victim)
        catalog = scene.group.nodes[victim].snapshots.catalog
        publish = catalog.publish
        tries = []

        async def full_at_first(manifest: Manifest, parts: Mapping[str, bytes]) -> None:
            tries.append(manifest.index)
            if len(tries) < 3:
                raise OSError(errno.ENOSPC, "planted")
            await publish(manifest, parts)

        catalog.publish = full_at_first  # type: ignore[method-assign]
        world.run_until(lambda: refilled(scene, victim), 10)
        assert tries[:3] == [tries[0]] * 3
        scene.settle()


@pytest.mark.parametrize("seed", range(3))
def test_a_node_that_was_installed_votes_at_once(seed: int) -> None:
    """Regression: the node waited for a refill, and the loss of the leader then left the group without
    one."""
    with World(seed, settings=node_group.SETTINGS) as world:
        scene = Scene(world)
        leader, victim = scene.behind()
        scene.start(victim)
        node = scene.group.nodes[victim]
        world.run_until(lambda: node.snapshots.receiver.done, 5)
        world.power_cut(leader)
        world.run_until(lambda: scene.group.leader() is not None, 5)
        assert node.elector.may_vote and not node.trust.reasons


class SlowHost(HeavyHost):
    """A host that takes time to forget what lies before the beginning of the log."""

    async def log_begins(self, parts: Mapping[str, bytes], index: int, pos: int) -> None:
        await asyncio.sleep(0.2)
        await super().log_begins(parts, index, pos)


@pytest.mark.parametrize("slow_load", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_a_snapshot_at_which_the_log_is_about_to_begin_is_not_thinned_out(seed: int, slow_load: bool) -> None:
    """Regression: a snapshot that was published at the same time, before or after the store noted where its
    log begins, made the older one superfluous."""
    with World(seed, settings=node_group.SETTINGS) as world:
        scene = Scene(world, SlowHost, retention=RetentionSettings(interval_s=0.1, snapshots_kept=3))
        leader = scene.group.await_leader()
        last = scene.fill(6)
        scene.group.await_applied(NAMES, last)
        world.run_for(0.3)
        node = scene.group.nodes[leader]
        catalog = node.snapshots.catalog
        boundaries = [manifest.index for manifest in catalog.manifests]
        load = catalog.load

        async def loaded_slowly(manifest: Manifest) -> dict[str, bytes] | None:
            parts = await load(manifest)
            await asyncio.sleep(0.2)
            return parts

        if slow_load:
            catalog.load = loaded_slowly  # type: ignore[method-assign]
        scene.delete_before(leader, boundaries[1] + 1)
        world.run_for(0.02)
        scene.fill(2)
        world.run_until(lambda: node.log.begin_pos > 0, 5)
        world.run_for(1.0)
        assert catalog.has(node.log.begin_pos)


def test_a_snapshot_that_could_not_be_read_for_a_moment_is_sent() -> None:
    """Regression: the snapshot was never used again in that life of the leader, and nothing reported it."""
    with World(0, settings=node_group.SETTINGS) as world:
        scene = Scene(world)
        leader, victim = scene.behind()
        disk = world.nodes[leader].disk
        disk.fail("read", 3, f"/store/dledger-{leader}/snapshots")
        scene.start(victim)
        world.run_until(lambda: refilled(scene, victim), 10)
        assert not scene.group.nodes[leader].status()["statements"]


def test_a_leader_says_whom_it_cannot_bring_up() -> None:
    with World(0, settings=node_group.SETTINGS) as world:
        scene = Scene(world)
        leader, victim = scene.behind()
        world.nodes[leader].disk.fail("read", 1 << 20, f"/store/dledger-{leader}/snapshots")
        scene.start(victim)
        node = scene.group.nodes[leader]
        world.run_until(lambda: node.status()["statements"], 20)
        assert f"{victim} needs entries before {node.log.first_index}" in str(node.status()["statements"])


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EMFILE])
def test_a_disk_that_is_full_when_an_install_begins_to_replace_the_log_only_delays_it(code: int) -> None:
    """Regression: the node ended, and its exit code said that the store needs repair."""
    with World(1, settings=node_group.SETTINGS) as world:
        scene = Scene(world)
        _, victim = scene.behind()
        scene.start(victim)
        catalog = scene.group.nodes[victim].snapshots.catalog
        say = catalog.say_begins
        tries = []

        async def full_at_first(pos: int, *, replace: bool = False) -> None:
            tries.append(replace)
            if len(tries) in (1, 2, 4):
                raise OSError(code, "planted")
            await say(pos, replace=replace)

        catalog.say_begins = full_at_first  # type: ignore[method-assign]
        world.run_until(lambda: refilled(scene, victim), 10)
        assert tries == [True, True, True, False, False]
        scene.settle()


def test_an_install_makes_the_room_that_it_needs() -> None:
    """Regression: the install waited for room for ever, beside a prepared segment."""
    with World(1, settings=node_group.SETTINGS) as world:
        scene = Scene(world)
        _, victim = scene.behind()
        scene.start(victim)
        disk = world.nodes[victim].disk
        catalog = scene.group.nodes[victim].snapshots.catalog
        say = catalog.say_begins
        tries = []

        async def full_from_now_on(pos: int, *, replace: bool = False) -> None:
            tries.append(pos)
            if len(tries) == 1:
                disk.room(disk.used())
            await say(pos, replace=replace)

        catalog.say_begins = full_from_now_on  # type: ignore[method-assign]
        world.run_until(lambda: scene.group.nodes[victim].snapshots.receiver.done, 10)


def test_a_snapshot_is_not_given_up_for_one_error_behind_too_many_open_files(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    errors = [errno.EMFILE] * 12 + [errno.EIO]
    load = catalog_module._load

    def failing(files: Files, path: str, manifest: Manifest) -> dict[str, bytes] | str:
        if errors:
            raise OSError(errors.pop(0), "planted")
        return load(files, path, manifest)

    with World(0, settings=node_group.SETTINGS) as world:
        scene = Scene(world)
        leader, victim = scene.behind()
        node = scene.group.nodes[leader]
        monkeypatch.setattr(catalog_module, "_load", failing)
        scene.start(victim)
        world.run_until(lambda: refilled(scene, victim), 10)
        assert not errors and node.snapshots.catalog.has(node.log.begin_pos)


def test_appends_wait_for_one_segment_at_most_while_many_are_freed() -> None:
    """Regression: the lock of the disk was held until all segments were removed."""
    with World(1, settings=node_group.SETTINGS) as world:
        scene = Scene(world)
        last = scene.fill(60)
        scene.group.await_applied(NAMES, last)
        world.run_for(1)
        leader = scene.group.await_leader()
        for name in NAMES:
            world.nodes[name].disk.slow(30)

        def append_s() -> float:
            began = world.time
            index = scene.group.append(leader, [bytes(100)])
            world.run_until(lambda: scene.group.nodes[leader].commit_index >= index, 10)
            return world.time - began

        usual = max(append_s() for _ in range(10))
        segments = len(scene.group.nodes[leader].log._segments.starts)
        for name in NAMES:
            scene.delete_before(name, last)
        world.run_for(0.002)
        ends = world.time + 3
        worst = 0.0
        while world.time < ends:
            worst = max(worst, append_s())
        assert len(scene.group.nodes[leader].log._segments.starts) < segments - 40
        assert worst < 3 * usual


def test_retention_on_every_node_and_restarts() -> None:
    with World(13, settings=node_group.SETTINGS) as world:
        scene = Scene(world)
        for _ in range(4):
            last = scene.fill(3)
            scene.group.await_applied(NAMES, last)
            scene.cut_front(NAMES, last - 20)
            world.run_for(0.1)
            for name in NAMES:
                node = scene.group.nodes[name]
                assert last - 60 < node.log.first_index <= last - 20
                assert len(node.log._segments.starts) <= 4
                assert len(node.snapshots.catalog.manifests) <= 4
                files = world.nodes[name].disk.directory(f"/store/dledger-{name}/index").names
                assert min(int(file) for file in files) == node.log.first_index // 64 * 64 * 32
            for name in NAMES:
                world.power_cut(name)
            for name in NAMES:
                scene.start(name)
            scene.settle()


def test_nothing_goes_before_the_store_says_where_the_log_will_begin() -> None:
    """Regression: an audit at that moment missed units of queues that retention had removed."""
    with World(5, settings=node_group.SETTINGS) as world:
        scene = Scene(world)
        name = scene.group.await_leader()
        last = scene.fill(3)
        scene.group.await_applied(NAMES, last)
        node, host = scene.group.nodes[name], scene.group.hosts[name]
        catalog = node.snapshots.catalog
        say_begins, log_begins = catalog.say_begins, host.log_begins
        course = []

        async def full_at_first(pos: int, *, replace: bool = False) -> None:
            course.append("full" if len(course) < 2 else "said")
            if course[-1] == "full":
                raise OSError(errno.ENOSPC, "planted")
            await say_begins(pos, replace=replace)

        async def told(parts: Mapping[str, bytes], index: int, pos: int) -> None:
            course.append("told")
            assert catalog.begins == pos
            assert node.log.first_index <= index
            await log_begins(parts, index, pos)

        catalog.say_begins = full_at_first  # type: ignore[method-assign]
        host.log_begins = told  # type: ignore[method-assign]
        scene.cut_front((name,), last - 20)
        assert course[:4] == ["full", "full", "said", "told"]


class Run:
    """One seed of random appends, retention, kills, power cuts, partitions and wiped stores."""

    def __init__(self, world: World, seed: int) -> None:
        self.world = world
        self.scene = Scene(world)
        self.group = self.scene.group
        self.acknowledged: dict[int, bytes] = {}
        self.installs = 0
        self.seen: dict[int, tuple[int, int, int, bytes]] = {}
        self.random = random.Random(seed)
        self.sealed: list[node_group.Sealed] = []
        self.looked: dict[tuple[str, int], int] = {}
        self.restored: dict[tuple[str, int], int] = {}
        self.count = 0

    def step(self) -> None:
        chance = self.random.random()
        alive = self.scene.living()
        if chance < 0.45:
            self.append()
        elif chance < 0.65 and alive:
            name = self.random.choice(alive)
            if name in self.group.nodes:
                self.scene.delete_before(name, self.group.nodes[name].log.last_index - 10)
        elif chance < 0.72 and alive:
            stop = self.world.power_cut if self.random.random() < 0.6 else self.world.kill
            stop(self.random.choice(alive))
        elif chance < 0.82:
            dead = [name for name in NAMES if not self.scene.alive(name)]
            if dead:
                self.group.start(self.random.choice(dead))
        elif chance < 0.88:
            if self.random.random() < 0.5:
                self.world.isolate(self.random.choice(NAMES))
            else:
                self.world.partition(*self.random.sample(NAMES, 2), directed=self.random.random() < 0.5)
        elif chance < 0.95:
            self.world.heal()
        self.world.run_for(self.random.choice((0.001, 0.01, 0.05, 0.2, 0.8)))
        self.look()

    def append(self) -> None:
        leader = self.group.leader()
        if leader is None:
            return
        self.count += 1
        bodies = [b"%d-%d" % (self.count, part) + bytes(3000) for part in range(self.random.randint(1, 25))]
        self.group.seal(leader, bodies, self.sealed)

    def look(self) -> None:
        for name, host in self.group.hosts.items():
            key = (name, self.world.nodes[name].processes)
            self.restored[key] = host.restores
            for entry in host.entries[max(self.looked.get(key, 0) - host.begins, 0) :]:
                assert self.seen.setdefault(entry[0], entry) == entry, f"{name} differs at {entry[0]}"
            self.looked[key] = host.begins + len(host.entries)
        node_group.take_acknowledged(self.sealed, self.acknowledged)

    def finish(self) -> None:
        self.scene.settle()
        self.look()
        for index, body in self.acknowledged.items():
            assert self.seen[index][3] == body, f"acknowledged entry {index} is lost"


def run_seed(seed: int, steps: int = 150) -> tuple[int, int]:
    """Play one seed. Returns (entries acknowledged, states restored from a snapshot)."""
    with World(seed, settings=node_group.SETTINGS) as world:
        run = Run(world, seed)
        run.group.await_leader()
        for _ in range(steps):
            run.step()
        run.finish()
        return len(run.acknowledged), sum(run.restored.values())


def test_random_faults_and_retention_lose_nothing() -> None:
    results = [run_seed(seed) for seed in range(4)]
    assert sum(count for count, _ in results) > 800
    assert sum(restores for _, restores in results) > 3, "no install was tried"


@pytest.mark.soak
@pytest.mark.parametrize("first", range(100, 300, 20))
def test_random_faults_and_retention_lose_nothing_in_many_seeds(first: int) -> None:
    results = [run_seed(seed) for seed in range(first, first + 20)]
    assert sum(restores for _, restores in results) > 20


def test_a_voter_that_starts_with_one_segment_behind_its_snapshot_elects_no_shorter_log() -> None:
    with World(3, settings=node_group.SETTINGS) as world:
        scene = Scene(world)
        leader = scene.group.await_leader()
        last = scene.fill(3)
        scene.group.await_applied(NAMES, last)
        world.run_for(0.5)
        scene.cut_front(NAMES, last)
        world.run_for(0.5)
        voter, late = (name for name in NAMES if name != leader)
        world.isolate(late)
        acknowledged = scene.group.append(leader, [b"acknowledged"] * 3)
        scene.group.await_applied((leader, voter), acknowledged)
        world.power_cut(leader)
        world.kill(voter)
        scene.start(voter)
        world.heal()
        world.run_until(
            lambda: any(scene.group.nodes[name].role is Role.LEADER for name in (voter, late)), 10
        )
        assert scene.group.nodes[voter].role is Role.LEADER
        assert scene.group.nodes[voter].log.last_index >= acknowledged
        scene.settle()


def test_an_installed_node_that_starts_again_joins() -> None:
    with World(1, settings=node_group.SETTINGS) as world:
        scene = Scene(world)
        leader = scene.group.await_leader()
        last = scene.fill(1)
        scene.group.await_applied(NAMES, last)
        victim = next(name for name in NAMES if name != leader)
        world.kill(victim)
        last = scene.fill(5)
        scene.group.await_applied(scene.living(), last)
        scene.cut_front(scene.living(), last)
        scene.start(victim)
        world.run_until(lambda: scene.group.hosts[victim].restores, 5)
        scene.settle()
        world.kill(victim)
        scene.start(victim)
        scene.settle()
        assert scene.alive(victim)


@pytest.mark.parametrize("left", ["a leader that begins late", "a leader that holds everything"])
def test_an_installed_snapshot_that_rots_before_any_entry_follows_is_made_good(
    left: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log is empty then, and nothing shows what lies before it. It is filled like a new log, and stays
    filled after another start."""
    with World(3) as world:
        scene = Scene(world)
        leader = scene.group.await_leader()
        victim, other = (name for name in NAMES if name != leader)
        scene.fill(1)
        world.kill(victim)
        scene.fill(4)
        scene.delete_before(leader, scene.group.nodes[leader].log.last_index)
        world.run_until(lambda: scene.group.nodes[leader].log.begin_pos > 0, 5)
        installed: list[int] = []

        def cut_off(node: Node, leader: str, manifest: Manifest) -> None:
            node_installed(node, leader, manifest)
            if not installed:
                installed.append(node.log.last_index)
                world.isolate(victim)

        node_installed = Node.installed
        monkeypatch.setattr(Node, "installed", cut_off)
        scene.start(victim)
        world.run_until(lambda: bool(installed), 10)
        world.run_for(0.2)
        log = scene.group.nodes[victim].log
        assert log.begin_pos > 0 and log.last_index == log.first_index - 1 == installed[0]
        world.kill(victim)
        world.nodes[victim].disk.flip(
            f"/store/dledger-{victim}/snapshots/{log.begin_pos:020d}/manifest", 20, 1
        )
        scene.start(victim)
        world.run_for(1.0)
        node = scene.group.nodes[victim]
        assert (node.log.begin_pos, node.log.last_index) == (0, -1) and node.trust.reasons
        if left == "a leader that holds everything":
            process = world.nodes[leader].process
            assert process is not None
            process.loop.create_task(scene.group.nodes[leader].leadership.transfer(other))
            world.run_until(lambda: scene.group.leader() == other, 10)
        world.heal()
        last = scene.fill(1)
        scene.group.await_applied(NAMES, last)
        assert (scene.group.nodes[victim].log.begin_pos == 0) == (scene.group.leader() == other)
        world.kill(victim)
        scene.start(victim)
        world.run_for(1.0)
        node = scene.group.nodes[victim]
        assert node.log.last_index >= last and not node.trust.reasons


def test_a_snapshot_that_finds_no_room_leaves_nothing_behind() -> None:
    """A half-written snapshot would occupy the last free bytes, but retention needs a block to note where the
    log begins."""
    with World(5) as world:
        scene = Scene(world, pool_segments=3)
        leader = scene.group.await_leader()
        scene.fill(2)
        world.run_for(5)
        full = next(name for name in NAMES if name != leader)
        disk = world.nodes[full].disk
        disk.room(disk.used() + 150_000)  # the host's state has 200,000
        scene.fill(2)
        world.run_for(1)
        assert scene.alive(full) and any("not" in line and "snapshot" in line for line in world.recent_log)
        assert not [path for path in disk.files("/store") if ".tmp/" in path]
