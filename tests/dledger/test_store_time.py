"""Store time never goes back within a log, whatever the clock does (safety.md S15)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from test_log_store import SEGMENT, Session, forget_units, overwrite, position, use

from dledger.log.appender import Appender
from dledger.log.base import LogBase
from dledger.log.reading import store_time_of
from formats.entry import HEADER_SIZE
from runtime import Env
from runtime.env import production_env
from runtime.log import Log


class Clock:
    """A wall clock that says what it is told."""

    def __init__(self, ms: int = 1_000_000) -> None:
        self.ms = ms

    def now_ms(self) -> int:
        return self.ms


class Told:
    """A log of the program that keeps its warnings."""

    def __init__(self) -> None:
        self.warnings: list[tuple[str, dict[str, object]]] = []

    def child(self, name: str) -> Log:
        return self  # type: ignore[return-value]

    def info(self, text: str, **fields: object) -> None: ...

    def warning(self, text: str, **fields: object) -> None:
        self.warnings.append((text, fields))


def clocked(clock: Clock, told: Told | None = None) -> Env:
    return replace(production_env(), wall=clock, log=told or Told())  # type: ignore[arg-type]


def seal(session: Session, count: int = 1) -> list[int]:
    """System entries of one turn of the loop; their store times."""
    appender = Appender(
        session.log, session.term, pending_bytes=1 << 30, pending_entries=1 << 30, schedule_pump=lambda: None
    )
    for _ in range(count):
        appender.add_system(b"x")
    times = []
    for batch in appender.take():
        session.log.append(batch)
        at = 0
        for size in batch.sizes:
            times.append(store_time_of(batch.data, at))
            at += size
    return times


def test_a_clock_that_goes_back_is_not_followed_and_warned_of_once(tmp_path: Path) -> None:
    clock, told = Clock(), Told()

    async def work(session: Session) -> None:
        assert seal(session, 3) == [1_000_000] * 3
        clock.ms += 10
        assert seal(session) == [1_000_010]
        clock.ms -= 1000
        assert seal(session) == [1_000_010] and not told.warnings
        clock.ms -= 1
        assert seal(session) + seal(session) == [1_000_010] * 2
        assert told.warnings == [("clock is behind the newest record", {"by_ms": 1001})]
        clock.ms += 5000
        assert seal(session) == [1_004_009]
        clock.ms -= 2000
        assert seal(session) == [1_004_009] and len(told.warnings) == 2, "it was right in between"

    use(tmp_path, work, env=clocked(clock, told))


def test_within_a_turn_of_the_loop_all_have_one_time(tmp_path: Path) -> None:
    clock = Clock()

    async def work(session: Session) -> None:
        appender = Appender(
            session.log, 1, pending_bytes=1 << 30, pending_entries=1 << 30, schedule_pump=lambda: None
        )
        first = appender.now_ms()
        clock.ms -= 100
        assert appender.now_ms() == first
        appender.take()
        assert appender.now_ms() == first - 100, "nothing was stored yet"

    use(tmp_path, work, env=clocked(clock))


@pytest.mark.parametrize("units", ["there", "lost"])
def test_a_store_that_is_opened_again_goes_on_from_its_newest_record(tmp_path: Path, units: str) -> None:
    async def fill(session: Session) -> None:
        seal(session, 5)
        await session.durable()

    async def go_on(session: Session) -> None:
        assert seal(session) == [1_000_000]

    use(tmp_path, fill, env=clocked(Clock()))
    if units == "lost":
        forget_units(tmp_path, 2)
    use(tmp_path, go_on, env=clocked(Clock(7)))


def test_what_was_cut_may_hold_later_times_and_what_is_left_counts(tmp_path: Path) -> None:
    clock = Clock()

    async def fill(session: Session) -> None:
        seal(session, 5)
        clock.ms += 1000
        seal(session, 5)
        await session.durable()

    async def cut(session: Session) -> None:
        assert await session.log.truncate(5)
        clock.ms = 7
        assert seal(session)[0] >= 1_000_000

    use(tmp_path, fill, env=clocked(clock))
    use(tmp_path, cut, env=clocked(clock))


@pytest.mark.parametrize("how", ["mended", "examined"])
def test_a_newest_record_that_was_rotten_counts_when_it_is_repaired(tmp_path: Path, how: str) -> None:
    async def fill(session: Session) -> None:
        seal(session, 5)
        await session.durable()

    use(tmp_path, fill, env=clocked(Clock()))
    file, offset, size = position(tmp_path, 4)
    whole = file.read_bytes()[offset : offset + size]
    overwrite(file, offset + HEADER_SIZE, bytes(20))

    async def go_on(session: Session) -> None:
        log = session.log
        assert list(log.faulty) == [(4, 4)] and log.newest_ms < 0
        if how == "mended":
            await log.mend(4, 4, whole)
        else:
            overwrite(file, offset, whole)
            await log.examine(4, 4)
        assert not log.faulty and seal(session) == [1_000_000]

    use(tmp_path, go_on, env=clocked(Clock(7)))


def test_a_log_that_begins_behind_a_snapshot_goes_on_from_its_time(tmp_path: Path) -> None:
    async def work(session: Session) -> None:
        seal(session, 5)
        await session.durable()
        await session.log.reset(LogBase(1000, 1, 100 * SEGMENT, 77, 5_000_000))
        assert seal(session) == [5_000_000]

    use(tmp_path, work, env=clocked(Clock()))
