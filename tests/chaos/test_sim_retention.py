"""Retention of three real nodes in simulation: by age, by hour, by a filling disk (features.md L4)."""

from __future__ import annotations

from dataclasses import replace

import pytest
from test_sim_snapshots import NAMES, SMALL, Scene, refilled

from dledger.chaos.machine import Settings, World
from dledger.formats.entry import Kind
from dledger.log.reading import store_time_of
from dledger.log.retention import HOUR_MS, RetentionSettings

ALL_DAY = tuple(range(24))
DAY_MS = 24 * HOUR_MS
EPOCH_HOUR = Settings().epoch_ms // HOUR_MS % 24


class Dated(Scene):
    """A scene whose entries are records with a store time."""

    def add(self, count: int = 6) -> int:
        leader = self.group.await_leader()
        node = self.group.nodes[leader]
        process = self.world.nodes[leader].process
        assert process is not None
        added: list[int] = []

        def seal() -> None:
            assert node.appender is not None
            for _ in range(count):
                added.append(node.appender.add_system(bytes(3000), Kind.RAW))

        process.loop.call_soon(seal)
        self.world.run_until(lambda: added, 1)
        self.group.await_applied((leader,), added[-1])
        return added[-1]

    def store_times(self, name: str) -> list[int]:
        """Store times in ms of a node's newest entries, which are in memory."""
        log = self.group.nodes[name].log
        places = [log.locate(index) for index in range(log.first_index, log.last_index + 1)]
        return [store_time_of(data) for data in (log.view(*place) for place in places) if data is not None]


def settings(**changes: object) -> dict[str, object]:
    retention = RetentionSettings(
        reserved_hours=5 / 3600, delete_hours=ALL_DAY, clean_forcibly=True, interval_s=0.1
    )
    return SMALL | {"retention": replace(retention, **changes)}  # type: ignore[arg-type]


def test_segments_go_when_their_last_record_is_old_enough() -> None:
    with World(1) as world:
        scene = Dated(world, **settings())
        for _ in range(20):
            scene.add()
            world.run_for(0.5)
        for name in NAMES:
            node = scene.group.nodes[name]
            assert node.log.first_index > 0
            # 10 s were written at 12 entries a second; 5 s are to be kept, and at most a segment more is
            kept = node.log.last_index - node.log.first_index
            assert 55 < kept < 60 + 25 + 12
        last = scene.add()
        scene.group.await_applied(NAMES, last)
        world.run_for(8.0)
        first = scene.first("n0")
        assert all(scene.first(name) == first for name in NAMES), "they agree on the age of a segment"
        assert scene.group.nodes["n0"].log._segments.starts == [scene.group.nodes["n0"].log.begin_pos]


def test_a_leader_whose_clock_was_days_slow_makes_nothing_old() -> None:
    """Regression: records that are not messages took the time of the wall clock as it was (safety.md S15)."""
    with World(1) as world:
        scene = Dated(world, **settings(reserved_hours=72.0))
        for _ in range(15):
            scene.add()
        world.run_for(1)
        leader = scene.group.await_leader()
        world.clock_jump(leader, -4 * DAY_MS)
        for _ in range(6):
            scene.add()
        world.run_for(1)
        world.clock_jump(leader, 4 * DAY_MS)
        for _ in range(10):
            last = scene.add()
        scene.group.await_applied(NAMES, last)
        world.run_for(1)
        assert [scene.first(name) for name in NAMES] == [0, 0, 0]
        times = scene.store_times("n0")
        assert times == sorted(times) and times[0] > 0 and len(times) > 60


def test_store_time_goes_on_from_the_newest_record_under_any_leader() -> None:
    with World(4) as world:
        scene = Dated(world, **settings(reserved_hours=72.0))
        scene.add()
        first = scene.group.await_leader()
        for name in NAMES:  # whoever comes next is slow, and remembers nothing but what its log says
            if name != first:
                world.clock_jump(name, -DAY_MS)
                world.kill(name)
                scene.group.start(name)
        last = scene.add()
        scene.group.await_applied(NAMES, last)
        world.kill(first)
        second = scene.group.await_leader()
        assert second != first
        scene.add()
        times = scene.store_times(second)
        assert times == sorted(times) and len(times) > 13


def test_what_was_stamped_by_a_clock_years_ahead_expires_all_the_same() -> None:
    """The store time of the entry is reached in ten years, and all later entries have the same store time."""
    with World(5) as world:
        scene = Dated(world, **settings(), max_clock_skew_ms=0)
        scene.add()
        leader = scene.group.await_leader()
        world.clock_jump(leader, 3650 * DAY_MS)
        world.run_for(61.0)  # until it is believed
        stamped = scene.add(60)
        world.clock_jump(leader, -3650 * DAY_MS)
        for name in NAMES:  # what it knows of the time when something was written is in its files alone
            assert scene.first(name) <= stamped
        for _ in range(30):
            last = scene.add()
            world.run_for(0.5)
        scene.group.await_applied(NAMES, last)
        assert min(scene.store_times("n0")[1:]) > Settings().epoch_ms + 3000 * DAY_MS
        for name in NAMES:
            assert scene.first(name) > stamped
            assert last - scene.first(name) > 55, "five seconds are kept"


def test_a_node_whose_clock_is_days_ahead_frees_nothing_that_is_younger() -> None:
    with World(6) as world:
        scene = Dated(world, **settings(reserved_hours=72.0, interval_s=3.0))
        for _ in range(15):
            scene.add()
        leader = scene.group.await_leader()
        follower = next(name for name in NAMES if name != leader)
        world.kill(follower)
        world.clock_jump(follower, 4 * DAY_MS)
        scene.group.start(follower)
        for _ in range(15):
            last = scene.add()
            world.run_for(0.5)
        scene.group.await_applied(NAMES, last)
        assert [scene.first(name) for name in NAMES] == [0, 0, 0]


def test_a_clock_that_was_ahead_for_a_moment_marks_nothing() -> None:
    """Store time never goes back: one stamp of ten years ahead would be on all messages of the next ten
    years."""
    with World(4) as world:
        scene = Dated(world, **settings(reserved_hours=72.0))
        scene.add()
        leader = scene.group.await_leader()
        world.clock_jump(leader, 3650 * DAY_MS)
        scene.add()
        world.run_for(4)
        scene.add()
        leapt, ahead = scene.group.nodes[leader].status()["reasons"]  # type: ignore[misc]
        assert "the clock of this machine jumped 315360000 s ahead" in leapt
        assert "s ahead of those of most members" in ahead
        world.clock_jump(leader, -3650 * DAY_MS)
        world.run_for(1)
        assert scene.group.nodes[leader].status()["reasons"] == []
        scene.add()
        times = scene.store_times(leader)
        assert times == sorted(times) and times[-1] - times[0] < 10_000


def test_a_clock_that_was_set_right_is_believed_after_a_minute() -> None:
    with World(4) as world:
        scene = Dated(world, **settings(reserved_hours=72.0))
        scene.add()
        leader = scene.group.await_leader()
        for name in NAMES:  # a clock that is ahead alone does not lead
            world.clock_jump(name, DAY_MS)
        world.run_for(50)
        scene.add()
        before = scene.store_times(leader)
        assert before[-1] - before[0] < DAY_MS
        world.run_for(12)
        scene.add()
        assert scene.store_times(leader)[-1] - before[0] >= DAY_MS
        assert scene.group.nodes[leader].status()["reasons"] == []


@pytest.mark.parametrize("hour", [EPOCH_HOUR, (EPOCH_HOUR + 3) % 24])
def test_what_expired_waits_for_its_hour(hour: int) -> None:
    with World(2) as world:
        scene = Dated(world, **settings(delete_hours=(hour,)))
        for _ in range(10):
            scene.add()
        world.run_for(6.0)
        assert all((scene.first(name) > 0) == (hour == EPOCH_HOUR) for name in NAMES)


def test_a_filling_disk_frees_the_oldest_segments_at_any_age() -> None:
    size = 4_000_000
    with World(3, settings=Settings(disk_bytes=size)) as world:
        scene = Dated(world, **settings(reserved_hours=72.0, clean_ratio=0.2, force_ratio=0.3))
        scene.add()
        world.run_for(0.5)
        leader = scene.group.await_leader()
        victim = next(name for name in NAMES if name != leader)
        world.kill(victim)
        for _ in range(150):
            last = scene.add()
        world.run_for(1.0)
        for name in scene.living():
            assert scene.group.nodes[name].snapshots.retainer.used_ratio < 0.35
            assert 0 < scene.first(name) < last
        scene.start(victim)
        world.run_until(lambda: refilled(scene, victim), 5)
        for _ in range(30):
            scene.add()
        scene.settle()


def test_forced_cleaning_may_take_what_a_slow_peer_still_needs() -> None:
    with World(4, settings=Settings(disk_bytes=3_000_000)) as world:
        full = settings(reserved_hours=72.0, clean_ratio=0.2, force_ratio=0.3)
        scene = Dated(world, **full, inflight_bytes=32 * 1024)
        scene.add()
        leader = scene.group.await_leader()
        victim = next(name for name in NAMES if name != leader)
        receiver = scene.group.nodes[victim].snapshots.receiver
        world.partition(leader, victim)
        while scene.first(leader) <= scene.group.nodes[victim].log.last_index:
            scene.add()
            world.run_for(0.02)
        world.heal()
        for _ in range(20):
            scene.add()  # more goes while it is installed
        world.run_until(lambda: receiver.done, 5)
        scene.settle()
