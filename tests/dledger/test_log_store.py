"""The log store on real files: append, roll, reopen, cut, torn tails and rot (safety.md S1, S2, S4, S5)."""

from __future__ import annotations

import asyncio
import errno
import os
import re
import threading
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dledger.errors import NodeFailed
from dledger.formats.entry import HEADER_SIZE, Kind, unpack_header
from dledger.formats.store_files import POISONED_FILE
from dledger.log import flushing
from dledger.log.appender import Appender
from dledger.log.incoming import check_run
from dledger.log.pool import SegmentPool
from dledger.log.segments import MAX_OPEN
from dledger.log.store import LogStore
from dledger.messages import Code
from dledger.runtime.env import Env, production_env
from dledger.runtime.files import OsFile, OsFiles

pytestmark = pytest.mark.usefixtures("index_in_memory")

SEGMENT = 64 * 1024


def new_store(directory: Path, env: Env | None = None, *, sync: bool = True) -> LogStore:
    return LogStore(
        env or production_env(),
        str(directory),
        segment_size=SEGMENT,
        index_units_per_file=512,
        pool_segments=0,
        sync_flush=sync,
    )


class Session:
    """A store with a running flusher, and an appender that seals like a leader."""

    def __init__(self, log: LogStore, term: int = 1, flusher: asyncio.Task[None] | None = None) -> None:
        self.log = log
        self.term = term
        self.flusher = flusher
        self.covers = True

    def append(self, bodies: list[bytes], *, batch: bool = False) -> None:
        appender = Appender(
            self.log,
            self.term,
            pending_bytes=1 << 30,
            pending_entries=1 << 30,
            schedule_pump=lambda: None,
            may_cover=lambda: self.covers,
        )
        if batch:
            appender.reserve(sum(HEADER_SIZE + len(body) for body in bodies))
        for place, body in enumerate(bodies):
            if not batch:
                appender.reserve(HEADER_SIZE + len(body))
            appender.add((body,), len(body), Kind.MESSAGE, len(bodies) - 1 - place if batch else 0)
        for sealed in appender.take():
            self.log.append(sealed)

    async def durable(self) -> None:
        async with asyncio.timeout(20):
            while self.log.durable_index < self.log.last_index:  # noqa: ASYNC110
                await asyncio.sleep(0.001)

    async def indexed(self) -> None:
        """Until all is fsynced, also under ASYNC_FLUSH, and has its index units."""
        async with asyncio.timeout(20):
            while self.log._unwritten or self.log._unindexed:  # noqa: ASYNC110
                await asyncio.sleep(0.001)

    async def failed(self) -> None:
        """Until the flusher has ended."""
        assert self.flusher is not None
        done, _ = await asyncio.wait([self.flusher], timeout=20)
        assert done

    async def bodies(self) -> list[bytes]:
        result = []
        for index in range(self.log.first_index, self.log.last_index + 1):
            pos, size = self.log.locate(index)
            entry = bytes(self.log.view(pos, size) or await self.log.read(pos, size))
            header = unpack_header(entry)
            assert (header.index, header.pos, header.size) == (index, pos, size)
            result.append(entry[HEADER_SIZE:])
        return result


def use(
    directory: Path,
    work: Callable[[Session], Awaitable[None]],
    *,
    env: Env | None = None,
    power_lost: bool = False,
    discard: bool = False,
    term: int = 1,
    sync: bool = True,
) -> None:
    """Open, work, close."""

    async def run() -> None:
        log = new_store(directory, env, sync=sync)
        await log.open(power_lost=power_lost, discard_above_mark=discard)
        flusher = asyncio.create_task(log.run_flusher())
        try:
            await work(Session(log, term, flusher))
        finally:
            if flusher.done():
                flusher.result()
            flusher.cancel()
            await asyncio.gather(flusher, return_exceptions=True)
            await log.close()

    asyncio.run(run())


def fill(directory: Path, count: int, size: int = 100, *, sync: bool = True) -> list[bytes]:
    bodies = [bytes([place % 251]) * size for place in range(count)]

    async def work(session: Session) -> None:
        for start in range(0, count, 10):
            session.append(bodies[start : start + 10])
            await session.durable()

    use(directory, work, sync=sync)
    return bodies


def read_all(directory: Path, *, power_lost: bool = False, discard: bool = False) -> list[bytes]:
    found: list[bytes] = []

    async def work(session: Session) -> None:
        found.extend(await session.bodies())

    use(directory, work, power_lost=power_lost, discard=discard)
    return found


def faulty(directory: Path, *, power_lost: bool = False) -> tuple[list[tuple[int, int]], int]:
    """What is rotten after opening, and the last index."""
    found: list[tuple[int, int]] = []
    last: list[int] = []

    async def work(session: Session) -> None:
        found.extend(session.log.faulty)
        last.append(session.log.last_index)

    use(directory, work, power_lost=power_lost)
    return found, last[0]


def position(directory: Path, index: int) -> tuple[Path, int, int]:
    """File, offset in it and size of an entry."""
    where: list[tuple[int, int]] = []

    async def work(session: Session) -> None:
        where.append(session.log.locate(index))

    use(directory, work)
    pos, size = where[0]
    return directory / "data" / f"{pos - pos % SEGMENT:020d}", pos % SEGMENT, size


def overwrite(file: Path, offset: int, data: bytes) -> None:
    with file.open("r+b") as stream:
        stream.seek(offset)
        stream.write(data)


def forget_units(directory: Path, first: int) -> None:
    """As if the index units from `first` on had not reached the disk before a power loss."""
    for file in sorted((directory / "index").iterdir()):
        start = int(file.name) // 32
        begin = max(first - start, 0) * 32
        if begin < file.stat().st_size:
            overwrite(file, begin, bytes(file.stat().st_size - begin))


@pytest.mark.parametrize("sync", [True, False])
def test_what_was_durable_is_there_after_reopening(tmp_path: Path, sync: bool) -> None:
    bodies = fill(tmp_path, 2000, sync=sync)  # several segments and index files
    assert len(list((tmp_path / "data").iterdir())) >= 4
    assert len(list((tmp_path / "index").iterdir())) >= 3
    assert read_all(tmp_path) == bodies


def test_an_empty_store_opens(tmp_path: Path) -> None:
    assert read_all(tmp_path) == []
    assert read_all(tmp_path) == []


def test_a_torn_tail_above_the_durable_mark_is_cut(tmp_path: Path) -> None:
    bodies = fill(tmp_path, 50)
    file, offset, size = position(tmp_path, 49)
    forget_units(tmp_path, 49)
    overwrite(file, offset + size - 10, b"torn")
    assert read_all(tmp_path) == bodies[:49]
    # and no believable header stays at the cut
    assert file.read_bytes()[offset : offset + HEADER_SIZE] == bytes(HEADER_SIZE)


def test_whole_entries_above_the_mark_are_believed_and_indexed_again(tmp_path: Path) -> None:
    bodies = fill(tmp_path, 50)
    forget_units(tmp_path, 40)
    assert read_all(tmp_path) == bodies
    assert read_all(tmp_path) == bodies


def test_damage_at_or_below_the_mark_is_rot_and_never_cut(tmp_path: Path) -> None:
    fill(tmp_path, 50)
    file, offset, _ = position(tmp_path, 20)
    overwrite(file, offset + HEADER_SIZE, b"rot")
    for power_lost in (False, True):
        assert faulty(tmp_path, power_lost=power_lost) == ([(20, 20)], 49)


@pytest.mark.parametrize("power_lost", [True, False])
def test_damage_above_the_mark_with_a_valid_successor(tmp_path: Path, power_lost: bool) -> None:
    """Only a loss of power can write later entries and not an earlier one."""
    bodies = fill(tmp_path, 50)
    forget_units(tmp_path, 40)
    file, offset, _ = position_without_index(tmp_path, 45)
    overwrite(file, offset + HEADER_SIZE, b"bad")
    if power_lost:
        assert read_all(tmp_path, power_lost=True) == bodies[:45]
    else:
        assert faulty(tmp_path) == ([(45, 45)], 49)


def position_without_index(directory: Path, index: int) -> tuple[Path, int, int]:
    size = HEADER_SIZE + 100
    return directory / "data" / f"{0:020d}", index * size, size


def test_a_lost_index_is_rebuilt_from_the_data(tmp_path: Path) -> None:
    bodies = fill(tmp_path, 1500)
    for file in (tmp_path / "index").iterdir():
        file.unlink()
    assert read_all(tmp_path) == bodies


def test_an_index_file_whose_length_was_forgotten_is_filled_again(tmp_path: Path) -> None:
    """Found by simulation: after a power loss the new file had its name but not its length."""
    bodies = fill(tmp_path, 50)
    os.truncate(next((tmp_path / "index").iterdir()), 0)
    assert read_all(tmp_path, power_lost=True) == bodies


@pytest.mark.parametrize("place", [0, 1, -1])
def test_a_missing_segment_is_there_again_with_all_its_entries_faulty(tmp_path: Path, place: int) -> None:
    """Found by simulation: of a segment before the last one nobody knew that it was empty."""
    fill(tmp_path, 1500)
    names = sorted(file.name for file in (tmp_path / "data").iterdir())
    lost = tmp_path / "data" / names[place]
    first = unpack_header(lost.read_bytes()).index
    behind = names[place + 1 :] if place >= 0 else []
    last = unpack_header((tmp_path / "data" / behind[0]).read_bytes()).index - 1 if behind else 1499
    lost.unlink()
    assert faulty(tmp_path) == ([(first, last)], 1499)
    assert faulty(tmp_path, power_lost=True) == ([(first, last)], 1499), "and so it is at the next start"


def test_stale_entries_of_a_recycled_segment_are_not_believed(tmp_path: Path) -> None:
    fill(tmp_path, 300)
    first = sorted((tmp_path / "data").iterdir())[0]
    content = first.read_bytes()
    last = sorted((tmp_path / "data").iterdir())[-1]
    used, offset, size = position(tmp_path, 299)
    assert used == last
    overwrite(last, offset + size, content[: SEGMENT - offset - size])
    assert len(read_all(tmp_path)) == 300


def test_a_client_batch_is_kept_whole_or_cut_whole(tmp_path: Path) -> None:
    bodies = fill(tmp_path, 10)

    async def work(session: Session) -> None:
        session.append([b"a" * 50, b"b" * 50, b"c" * 50], batch=True)
        await session.durable()

    use(tmp_path, work)
    file, offset, _ = position(tmp_path, 12)
    forget_units(tmp_path, 10)
    overwrite(file, offset, bytes(HEADER_SIZE))
    assert read_all(tmp_path) == bodies


def test_a_client_batch_rolls_as_a_whole(tmp_path: Path) -> None:
    async def work(session: Session) -> None:
        session.append([bytes(30_000)])
        session.append([bytes(20_000), bytes(20_000)], batch=True)
        await session.durable()
        assert session.log.locate(1)[0] == SEGMENT
        assert session.log.range_end(1, 1000)[0] == 2, "frames never split a client batch"

    use(tmp_path, work)


@pytest.mark.parametrize(("limit", "entries"), [(2000, 1000), (1 << 30, 4)])
def test_what_the_leaders_own_disk_lacks_is_pending_though_it_is_committed(
    tmp_path: Path, limit: int, entries: int
) -> None:
    async def work(session: Session) -> None:
        log = session.log
        appender = Appender(log, 1, pending_bytes=limit, pending_entries=entries, schedule_pump=lambda: None)
        for index in range(4):
            assert appender.room and appender.disk_lag == 0
            appender.reserve(HEADER_SIZE + 500)
            assert appender.add((bytes(500),), 500) == index
        assert appender.refusal is Code.LEADER_PENDING_FULL, "not committed"
        (sealed,) = appender.take()
        appender.committed(3, sealed.end_pos)
        assert appender.refusal is Code.LEADER_PENDING_FULL, "committed, and not on this disk"
        assert appender.disk_lag == max(sealed.end_pos / limit, 4 / entries)
        log.append(sealed)
        await session.durable()
        assert appender.room and appender.disk_lag == 0

    use(tmp_path, work)


@pytest.mark.parametrize("where", ["in memory", "on disk"])
def test_a_client_batch_larger_than_a_frame_goes_whole(tmp_path: Path, where: str) -> None:
    """A frame takes what fits its aim, and the rest of the batch with which that ends (S11)."""

    async def work(session: Session) -> None:
        log = session.log
        appender = Appender(log, 1, pending_bytes=1 << 30, pending_entries=1000, schedule_pump=lambda: None)
        for length, size in ((1, 100), (1, 3000), (12, 1000), (1, 100), (5, 2000), (2, 10), (1, 10)):
            appender.reserve(length * (HEADER_SIZE + size))
            for left in reversed(range(length)):
                appender.add((bytes(size),), size, Kind.MESSAGE, left)
        (sealed,) = appender.take()
        log.append(sealed)
        if where == "on disk":
            await session.durable()
            await log.truncate(22)  # index units follow with the next write: this is one
        first, begins = 0, []
        while first <= log.last_index:
            begins.append(first)
            last, size = log.range_end(first, 4096)
            data = log.range_bytes(first, last)
            assert data is not None and len(data) == size
            check_run(bytes(data), first, last, log.locate(first)[0], 1, 1, None)
            first = last + 1
        assert begins == [0, 2, 14, 20]

    use(tmp_path, work)


def test_a_long_log_keeps_few_files_open(tmp_path: Path) -> None:
    bodies = fill(tmp_path, 9000, size=200)  # more segments than may be open

    async def work(session: Session) -> None:
        assert len(session.log._segments.starts) > MAX_OPEN + 8
        assert await session.bodies() == bodies
        assert session.log.range_end(0, 4096)[0] > 0
        assert len(session.log._segments._files) <= MAX_OPEN

    use(tmp_path, work)


def test_cutting_leaves_no_believable_tail(tmp_path: Path) -> None:
    bodies = fill(tmp_path, 1500)

    async def cut(session: Session) -> None:
        await session.log.truncate(100)
        assert session.log.last_index == session.log.durable_index == 99
        session.append([b"new"])
        await session.durable()
        assert session.log.term_of(100) == 2

    use(tmp_path, cut, term=2)
    for power_lost in (False, True):
        assert read_all(tmp_path, power_lost=power_lost) == [*bodies[:100], b"new"]


def test_cutting_what_is_not_yet_written(tmp_path: Path) -> None:
    async def work(session: Session) -> None:
        session.append([b"one", b"two", b"three", b"four"])
        await session.log.truncate(2)
        session.append([b"other"])
        await session.durable()
        assert await session.bodies() == [b"one", b"two", b"other"]

    use(tmp_path, work)
    assert read_all(tmp_path) == [b"one", b"two", b"other"]


def test_cutting_at_a_segment_boundary(tmp_path: Path) -> None:
    bodies = fill(tmp_path, 1000)
    starts: list[int] = []

    async def work(session: Session) -> None:
        index = next(i for i in range(1, 1000) if session.log.locate(i)[0] % SEGMENT == 0)
        starts.append(index)
        await session.log.truncate(index)
        session.append([b"again"])
        await session.durable()

    use(tmp_path, work, term=3)
    assert read_all(tmp_path) == [*bodies[: starts[0]], b"again"]


def test_after_a_failed_write_everything_above_the_mark_is_discarded(tmp_path: Path) -> None:
    bodies = fill(tmp_path, 50)
    forget_units(tmp_path, 40)
    assert read_all(tmp_path, discard=True) == bodies[:40]


def test_discarding_without_any_index_unit_discards_everything(tmp_path: Path) -> None:
    fill(tmp_path, 20)
    forget_units(tmp_path, 0)
    assert read_all(tmp_path, discard=True) == []


def test_a_cut_that_was_interrupted_between_segments_leaves_no_hole(tmp_path: Path) -> None:
    """Segments are retired from the end: what a crash leaves is still one piece."""
    fill(tmp_path, 1500)
    retired: list[str] = []

    async def work(session: Session) -> None:
        give_back = session.log.pool.give_back

        async def note(path: str) -> None:
            retired.append(path)
            await give_back(path)

        session.log.pool.give_back = note  # type: ignore[method-assign]
        await session.log.truncate(10)

    use(tmp_path, work)
    assert len(retired) > 1
    assert retired == sorted(retired, reverse=True)


class BrokenDisk(OsFiles):
    """Every data fsync fails once `broken` is set."""

    broken = False

    def open(self, path: str, create: bool = False) -> OsFile:
        file = super().open(path, create)
        if "/data/" in path:
            real = file.fdatasync

            def fdatasync() -> None:
                if self.broken:
                    raise OSError(5, "Input/output error")
                real()

            file.fdatasync = fdatasync  # type: ignore[method-assign]
            file._syncs_writes = False
        return file


def test_a_failed_fsync_is_final_and_leaves_a_marker(tmp_path: Path) -> None:
    disk = BrokenDisk()
    env = replace(production_env(), files=disk)

    async def work(session: Session) -> None:
        session.append([b"fine"])
        await session.durable()
        disk.broken = True
        session.append([b"lost"])
        await session.failed()
        assert session.log.durable_index == 0

    with pytest.raises(NodeFailed, match="fsync"):
        use(tmp_path, work, env=env)
    assert (tmp_path / POISONED_FILE).exists()


def test_closing_after_a_failed_fsync_certifies_nothing(tmp_path: Path) -> None:
    """Under ASYNC_FLUSH a second fsync may "work" on pages that the first one dropped (S3)."""
    disk = BrokenDisk()
    env = replace(production_env(), files=disk)

    async def work(session: Session) -> None:
        session.append([b"fine"])
        await session.indexed()
        disk.broken = True
        session.append([b"lost"])
        await session.failed()
        disk.broken = False

    with pytest.raises(NodeFailed, match="fsync"):
        use(tmp_path, work, env=env, sync=False)
    assert read_all(tmp_path, discard=True) == [b"fine"]


class FailsOnce(OsFiles):
    """The next data fsync fails, as late as it is allowed to, and is the only one: Linux says it once."""

    def __init__(self) -> None:
        self.armed = False
        self.began = threading.Event()
        self.may_fail = threading.Event()
        self.fsyncs = 0

    def open(self, path: str, create: bool = False) -> OsFile:
        file = super().open(path, create)
        if "/data/" in path:
            real = file.fdatasync

            def fdatasync() -> None:
                self.fsyncs += 1
                if self.armed:
                    self.armed = False
                    self.began.set()
                    self.may_fail.wait(60)
                    raise OSError(5, "Input/output error")
                real()

            file.fdatasync = fdatasync  # type: ignore[method-assign]
            file._syncs_writes = False
        return file


@pytest.mark.parametrize("sync", [True, False], ids=["sync", "async"])
def test_a_failed_fsync_whose_waiter_was_cancelled_is_final_too(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, sync: bool
) -> None:
    """SIGTERM, or another failure of the same disk, cancels the flusher while its fsync is under way."""
    disk = FailsOnce()

    async def run() -> None:
        log = new_store(tmp_path, replace(production_env(), files=disk), sync=sync)
        await log.open(power_lost=False, discard_above_mark=False)
        flusher = asyncio.create_task(log.run_flusher())
        session = Session(log)
        session.append([b"fine"])
        await session.indexed()
        disk.armed, disk.fsyncs = True, 0
        session.append([b"lost"])
        async with asyncio.timeout(20):
            while not disk.began.is_set():  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        flusher.cancel()
        await asyncio.gather(flusher, return_exceptions=True)
        disk.may_fail.set()
        assert not await log.close(), "the run must not be noted as clean"

    asyncio.run(run())
    assert disk.fsyncs == 1, "another one would certify what is lost"
    assert b"Input/output error" in (tmp_path / POISONED_FILE).read_bytes()
    assert "no request waited for it" in caplog.text or "no longer awaited" in caplog.text
    assert read_all(tmp_path, discard=True) == [b"fine"]


def test_an_fsync_that_fails_while_the_log_is_closed_leaves_a_marker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = FailsOnce()
    disk.may_fail.set()

    async def run() -> None:
        log = new_store(tmp_path, replace(production_env(), files=disk), sync=False)
        await log.open(power_lost=False, discard_above_mark=False)
        session = Session(log)
        session.append([b"fine"])
        await log._flush_once()  # the first is fsynced at once, the second in a while: not in this test
        monkeypatch.setattr(flushing, "ASYNC_SYNC_INTERVAL_S", 3600.0)
        session.append([b"lost"])
        await log._flush_once()
        disk.armed = True
        with pytest.raises(OSError, match="Input/output error"):
            await log.close()

    asyncio.run(run())
    assert (tmp_path / POISONED_FILE).exists()
    assert b"lost" not in read_all(tmp_path, discard=True)


class FewDescriptors(OsFiles):
    """What matches `pattern` cannot be opened; a directory ends with a slash."""

    pattern = ""
    refused = 0

    def open(self, path: str, create: bool = False) -> OsFile:
        self._check(path)
        return super().open(path, create)

    def sync_dir(self, path: str) -> None:
        self._check(path + "/")
        super().sync_dir(path)

    def _check(self, path: str) -> None:
        if self.pattern and re.search(self.pattern, path):
            self.refused += 1
            raise OSError(errno.EMFILE, "Too many open files", path)

    async def refuse(self, pattern: str, work: Callable[[], object]) -> None:
        """Until it was met, and a moment longer."""
        self.pattern = pattern
        work()
        async with asyncio.timeout(20):
            while not self.refused:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        await asyncio.sleep(0.05)
        self.pattern = ""


@pytest.mark.parametrize("pattern", ["/pool/.", "/pool/$", "/index/.", "/index/$", "/data/.", "/data/$"])
def test_too_many_open_files_at_a_roll_are_waited_for(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, pattern: str
) -> None:
    """They say nothing of the disk."""
    files = FewDescriptors()
    bodies = [b"x" * 1000] * 20 + [b"y" * 100] * 500 + [b"z" * 1000] * 20  # two segments and index files

    async def work(session: Session) -> None:
        session.append(bodies[:20])
        await session.durable()
        await asyncio.sleep(0.01)

        def append() -> None:
            session.append(bodies[20:])

        await files.refuse(pattern, append)
        await session.durable()

    use(tmp_path, work, env=replace(production_env(), files=files))
    assert "Too many open files" in caplog.text
    assert not (tmp_path / POISONED_FILE).exists()
    assert read_all(tmp_path) == bodies


@pytest.mark.parametrize("pattern", ["/pool/.", "/pool/$", "/index/.", "/index/$"])
def test_too_many_open_files_while_files_are_prepared_ahead_are_waited_for(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, pattern: str
) -> None:
    files = FewDescriptors()

    async def work(session: Session) -> None:
        log = session.log
        log.pool = SegmentPool(log._env, str(tmp_path), SEGMENT, 1)
        pools: list[asyncio.Task[None]] = []
        await files.refuse(pattern, lambda: pools.append(asyncio.create_task(log.run_pool())))
        session.append([b"goes on"])
        await session.durable()
        assert not pools[0].done()
        pools[0].cancel()

    use(tmp_path, work, env=replace(production_env(), files=files))
    assert "Too many open files" in caplog.text
    assert not (tmp_path / POISONED_FILE).exists()


def test_ranges_are_bounded_and_stay_in_one_segment(tmp_path: Path) -> None:
    fill(tmp_path, 1000)

    async def work(session: Session) -> None:
        log = session.log
        first = 0
        while first <= log.last_index:
            last, size = log.range_end(first, 4096)
            data = log.range_bytes(first, last) or await log.read_range(first, last)
            assert len(data) == size
            assert size <= 4096
            assert log.locate(first)[0] // SEGMENT == log.locate(last)[0] // SEGMENT
            first = last + 1

    use(tmp_path, work)


@settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("append"), st.lists(st.binary(max_size=3000), min_size=1, max_size=20)),
            st.tuples(st.just("cut"), st.integers(0, 200)),
            st.tuples(st.just("reopen"), st.booleans()),
        ),
        max_size=12,
    )
)
def test_the_store_behaves_like_a_list(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, object]]
) -> None:
    directory = tmp_path_factory.mktemp("store")
    model: list[bytes] = []
    term = 1

    todo = [*steps, ("reopen", False)]
    while todo:
        stop = next(place for place, step in enumerate(todo) if step[0] == "reopen")
        chunk, power_lost, todo = todo[:stop], bool(todo[stop][1]), todo[stop + 1 :]
        term += 1

        async def work(session: Session, chunk: list[tuple[str, object]] = chunk) -> None:
            assert await session.bodies() == model
            for kind, value in chunk:
                if kind == "append":
                    session.append(value)  # type: ignore[arg-type]
                    model.extend(value)  # type: ignore[arg-type]
                elif isinstance(value, int) and value < len(model):
                    await session.log.truncate(value)
                    del model[value:]
                    session.term += 1
            await session.durable()
            assert await session.bodies() == model

        use(directory, work, term=term * 100, power_lost=power_lost)
    assert os.listdir(directory / "data") or not model
