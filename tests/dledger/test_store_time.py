"""Store time never goes back within a log, whatever the clock does (safety.md S15)."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
from test_log_store import SEGMENT, Session, forget_units, overwrite, position, use

from dledger.formats.entry import (
    HEADER_SIZE,
    INDEX_UNIT,
    INDEX_UNIT_SIZE,
    MAGIC,
    Kind,
    encode_entry,
    unpack_header,
)
from dledger.formats.record import STORE_TIMESTAMP_AT, system_record
from dledger.log.appender import Appender
from dledger.log.base import LogBase
from dledger.log.hot_tail import Batch
from dledger.log.reading import store_time_of
from dledger.log.store import LogStore
from dledger.log.store_clock import StoreClock
from dledger.runtime import Env
from dledger.runtime.env import production_env
from dledger.runtime.log import Log

pytestmark = pytest.mark.usefixtures("index_in_memory")


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


def rotten_end(directory: Path, at: int) -> tuple[Path, int, bytes]:
    """A store of five records, the last one rotten from byte `at` on: where it is, and what was there."""

    async def fill(session: Session) -> None:
        seal(session, 5)
        await session.durable()

    use(directory, fill, env=clocked(Clock()))
    file, offset, size = position(directory, 4)
    whole = file.read_bytes()[offset : offset + size]
    overwrite(file, offset + at, bytes(20))
    return file, offset, whole


def seal(session: Session, count: int = 1, size: int = 1) -> list[int]:
    """System entries of one turn of the loop; their store times."""
    appender = Appender(
        session.log, session.term, pending_bytes=1 << 30, pending_entries=1 << 30, schedule_pump=lambda: None
    )
    for _ in range(count):
        appender.add_system(bytes(size))
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
        assert told.warnings == [("the clock is behind the newest record", {"by_ms": 1001})]
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


def test_what_is_due_by_the_clock_is_not_stored_with_an_earlier_time(tmp_path: Path) -> None:
    """A timer message that was due 1 ms after the first send of a turn, and was delivered in the same turn,
    had a store time 1 ms before its own time."""
    clock = Clock()

    async def work(session: Session) -> None:
        appender = Appender(
            session.log, 1, pending_bytes=1 << 30, pending_entries=1 << 30, schedule_pump=lambda: None
        )
        assert appender.clock_ms() == 1_000_000
        first = appender.now_ms()
        clock.ms += 1
        assert appender.clock_ms() == first == appender.now_ms()
        appender.take()
        assert appender.clock_ms() == first + 1
        appender.now_ms()
        clock.ms -= 5
        assert appender.clock_ms() == first - 4, "it may go back"

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
    file, offset, whole = rotten_end(tmp_path, HEADER_SIZE)

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


def held(log: LogStore, monkeypatch: pytest.MonkeyPatch) -> tuple[asyncio.Event, asyncio.Event]:
    """(reached, go on): an examination stands still where it knows the log's end and has not told yet."""
    learn, reached, go_on = log._chain_and_time, asyncio.Event(), asyncio.Event()

    async def slow(index: int) -> tuple[int | None, int]:
        found = await learn(index)
        reached.set()
        await go_on.wait()
        return found

    monkeypatch.setattr(log, "_chain_and_time", slow)
    return reached, go_on


def test_an_entry_is_whole_again_only_when_its_store_time_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found in review: in between the node could be elected, and seal with a slow clock."""
    file, offset, whole = rotten_end(tmp_path, HEADER_SIZE)

    async def work(session: Session) -> None:
        log = session.log
        reached, go_on = held(log, monkeypatch)
        overwrite(file, offset, whole)
        examining = asyncio.create_task(log.examine(4, 4))
        await reached.wait()
        assert list(log.faulty) == [(4, 4)]
        go_on.set()
        await examining
        assert not log.faulty and log.newest_ms == 1_000_000

    use(tmp_path, work, env=clocked(Clock(7)))


def test_what_is_appended_while_the_end_is_examined_has_its_own_chain_value(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found in review: the chain value of the entry before took its place."""
    file, offset, whole = rotten_end(tmp_path, HEADER_SIZE)

    async def work(session: Session) -> None:
        log = session.log
        log.last_chain = None  # as when its header is rotten
        reached, go_on = held(log, monkeypatch)
        overwrite(file, offset, whole)
        examining = asyncio.create_task(log.examine(4, 4))
        await reached.wait()
        chain = unpack_header(whole).chain_crc
        entry = encode_entry(5, 1, log.end_pos, system_record(b"y", 0, 1), chain, Kind.RAW)
        appended = unpack_header(entry).chain_crc
        log.append(Batch(5, 5, 1, log.end_pos, log.end_pos + len(entry), entry, [len(entry)], None, appended))
        go_on.set()
        await examining
        assert log.last_chain == appended and not log.faulty

    use(tmp_path, work, env=clocked(Clock(7)))


@pytest.mark.parametrize("damage", ["time", "unit"])
def test_a_rotten_entry_that_becomes_the_last_one_says_no_time(tmp_path: Path, damage: str) -> None:
    """Found in review: the time was believed unchecked, and would have held the whole group's for good."""

    async def fill(session: Session) -> None:
        seal(session, 6)
        await session.durable()

    use(tmp_path, fill, env=clocked(Clock()))
    file, offset, _ = position(tmp_path, 4)

    async def work(session: Session) -> None:
        log = session.log
        if damage == "time":
            overwrite(file, offset + HEADER_SIZE + STORE_TIMESTAMP_AT, b"\x01")
        else:
            index_file = sorted((tmp_path / "index").iterdir())[0]
            unit = INDEX_UNIT.pack(MAGIC, log.locate(4)[0], 10, 4, 1)
            overwrite(index_file, 4 * INDEX_UNIT_SIZE, unit)
        assert await log.truncate(5)
        assert log.newest_ms == 1_000_000
        assert (list(log.faulty) == [(4, 4)]) is (damage == "time")

    use(tmp_path, work, env=clocked(Clock(7)))


def test_a_log_that_begins_later_and_lost_the_rest_goes_on_from_where_it_begins(tmp_path: Path) -> None:
    bodies = 6000

    async def fill(session: Session) -> None:
        while session.log.end_pos < SEGMENT:
            seal(session, 1, bodies)
        await session.durable()

    use(tmp_path, fill, env=clocked(Clock()))
    places: list[tuple[int, int]] = []

    async def look(session: Session) -> None:
        log = session.log
        places.append((log.last_index, log.locate(log.last_index)[0]))
        places.append((log.last_index - 1, log.last_chain or 0))

    use(tmp_path, look, env=clocked(Clock()))
    (last, pos), (before, _) = places
    assert pos == SEGMENT
    file, offset, _ = position(tmp_path, last)
    overwrite(file, offset + HEADER_SIZE, bytes(20))

    async def work(session: Session) -> None:
        log = session.log
        assert list(log.faulty) == [(last, last)] and log.newest_ms < 0
        data, _ = await log.read_range(before, before)
        base = LogBase(before, 1, SEGMENT, unpack_header(data).chain_crc, 1_000_000)
        assert await log.drop_before(base)
        assert await log.truncate(last)
        assert seal(session) == [1_000_000]

    use(tmp_path, work, env=clocked(Clock(7)))


def test_a_leap_that_moves_on_is_never_believed() -> None:
    clock = StoreClock()
    assert clock.look(1_000_000, 0) == 1_000_000
    for number in range(1, 200):  # ten seconds more each second
        assert clock.look(1_000_000 + 11_000 * number, 1000 * number) == 1_000_000 + 1000 * number
    assert clock.look(1_200_000, 200_000) == 1_200_000 and clock.ahead_ms == 0


def test_a_clock_that_goes_back_is_followed_and_its_return_is_a_leap() -> None:
    clock = StoreClock()
    clock.look(1_000_000, 0)
    assert clock.look(500_000, 10) == 500_000
    assert clock.look(1_000_020, 20) == 500_010 and clock.ahead_ms == 500_010
    assert clock.look(1_000_020 + 60_000, 60_020) == 1_060_020 and clock.ahead_ms == 0
