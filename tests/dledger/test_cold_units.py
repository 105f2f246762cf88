"""Index units that are not in memory: the event loop does not wait for them (safety.md S8)."""

from __future__ import annotations

import asyncio
import errno
import threading
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from dledger.config import NodeConfig
from dledger.formats.entry import INDEX_UNIT_SIZE, unpack_header
from dledger.log.index_units import ColdUnit
from dledger.log.reading import Rotten
from dledger.log.store import LogStore
from dledger.node.leadership import Leadership
from dledger.peers.cold_pushes import Throttle
from dledger.replication.leader import Effect, LeaderReplication, PushState, SendAppend
from dledger.runtime.env import production_env
from dledger.runtime.files import OsFile, OsFiles
from tests.dledger.test_log_races import indexed, use
from tests.dledger.test_snapshot_store import append, boundary

pytestmark = pytest.mark.usefixtures("index_in_memory")

ENTRIES = 40


class ForgettingFiles(OsFiles):
    """While `cold` is set, no index file is in memory until a worker reads it; this ends `cold`."""

    def __init__(self) -> None:
        self.cold = False
        self.short = False
        """Whether everything is out of memory again after one look."""
        self.broken = False
        self.broken_from: int | None = None
        """Reads that go beyond this byte of a file fail."""
        self.refused = 0
        """How many of the next openings of index files fail with `refusal`."""
        self.refusal = errno.EMFILE
        self.fetches = 0
        self.gate = threading.Event()
        """Fetches wait until it is set."""
        self.gate.set()

    def open(self, path: str, create: bool = False) -> OsFile:
        return self._watch(super().open(path, create))

    def open_read(self, path: str) -> OsFile:
        if self.refused and "/index/" in path:
            self.refused -= 1
            raise OSError(self.refusal, "planted", path)
        return self._watch(super().open_read(path))

    def _watch(self, file: OsFile) -> OsFile:
        if "/index/" in file.path:
            now, later = file.pread_now, file.pread

            def pread_now(length: int, offset: int) -> bytes | None:
                if self.cold:
                    return None
                self.cold = self.short
                return now(length, offset)

            def pread(length: int, offset: int) -> bytes:
                self.fetches += 1
                assert self.gate.wait(60)
                beyond = self.broken_from is not None and offset + length > self.broken_from
                if self.broken or beyond:
                    raise OSError(5, "Input/output error", file.path)
                self.cold = False
                return later(length, offset)

            file.pread_now = pread_now  # type: ignore[method-assign]
            file.pread = pread  # type: ignore[method-assign]
        return file


def cold(
    directory: Path, work: Callable[[LogStore, ForgettingFiles], Awaitable[None]], count: int = ENTRIES
) -> None:
    """A log of some entries in files, whose index units have left memory."""
    files = ForgettingFiles()

    async def filled(log: LogStore) -> None:
        await append(log, count)
        await indexed(log)
        files.cold, files.fetches = True, 0
        await work(log, files)

    use(directory, filled, replace(production_env(), files=files))


def test_who_cannot_wait_is_told_and_asks_again(tmp_path: Path) -> None:
    async def work(log: LogStore, files: ForgettingFiles) -> None:
        with pytest.raises(ColdUnit) as first:
            log.locate(7)
        with pytest.raises(ColdUnit) as second:
            log.end_of(7)
        assert second.value.fetched is first.value.fetched, "one fetch for all who ask"
        await asyncio.wait((first.value.fetched,))
        assert files.fetches == 1
        pos, size = log.locate(7)
        assert log.end_of(7) == pos + size and not log.faulty

    cold(tmp_path, work)


def test_who_gives_up_does_not_take_the_fetch_from_others(tmp_path: Path) -> None:
    async def work(log: LogStore, files: ForgettingFiles) -> None:
        impatient, patient = asyncio.create_task(log.find(7)), asyncio.create_task(log.find(7))
        await asyncio.sleep(0)
        impatient.cancel()
        pos, size = await patient
        assert unpack_header(await log.read(pos, size)).index == 7
        assert impatient.cancelled() and files.fetches == 1

    cold(tmp_path, work)


def test_a_run_whose_place_is_not_in_memory_is_one_entry_that_a_worker_reads(tmp_path: Path) -> None:
    async def work(log: LogStore, files: ForgettingFiles) -> None:
        assert log.range_end(5, 100_000) == (5, None)
        assert log.range_bytes(5, 9) is None
        data, last = await log.read_range(5, 9)
        assert last == 9 and unpack_header(data).index == 5
        assert log.range_end(5, 100_000)[0] > 9, "now it is known"
        assert bytes(log.range_bytes(5, 9) or b"") == data

    cold(tmp_path, work)


def test_no_second_push_follows_one_of_unknown_size(tmp_path: Path) -> None:
    async def work(log: LogStore, files: ForgettingFiles) -> None:
        peers = ("n0", "n1", "n2")
        leader = LeaderReplication(
            1, "n0", peers, peers[1:], log, 0, 0, push_bytes=9_000, inflight_bytes=36_000
        )
        progress = leader.progress["n1"]
        progress.state, progress.next = PushState.APPEND, 5
        effects: list[Effect] = []
        leader._fill("n1", progress, effects)
        assert [(push.first, push.last) for push in effects if isinstance(push, SendAppend)] == [(5, 5)]
        await log.find(5)
        assert files.fetches == 1
        progress.inflight.clear()
        progress.inflight_bytes = 0
        leader._fill("n1", progress, effects)
        assert len(effects) > 2, "the window is open again"

    cold(tmp_path, work)


def test_an_index_file_that_cannot_be_opened_is_tried_again(tmp_path: Path) -> None:
    async def work(log: LogStore, files: ForgettingFiles) -> None:
        files.refused = 2
        pos, size = await log.find(7)
        assert files.refused == 0 and not log.faulty
        assert unpack_header(await log.read(pos, size)).index == 7

    cold(tmp_path, work)


def test_an_index_file_that_is_broken_is_not_tried_again(tmp_path: Path) -> None:
    async def work(log: LogStore, files: ForgettingFiles) -> None:
        files.refused, files.refusal = 1, errno.EIO
        async with asyncio.timeout(20):
            with pytest.raises(Rotten):
                await log.read_range(7, 7)
        assert 7 in log.faulty
        await log.examine(7, 7)
        await log.read_range(7, 7)

    cold(tmp_path, work)


def test_what_is_retired_while_its_place_is_looked_for_is_no_damage(tmp_path: Path) -> None:
    async def work(log: LogStore, files: ForgettingFiles) -> None:
        files.cold = False
        base = await boundary(log, 2)
        files.cold = True
        reading = asyncio.create_task(log.read_range(3, 9))
        await asyncio.sleep(0)
        assert await log.drop_before(base)
        with pytest.raises(Rotten):
            await reading
        assert not log.faulty and log.durable_index == log.last_index

    cold(tmp_path, work, 60)


def test_what_is_cut_while_it_is_read_is_no_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(log: LogStore, files: ForgettingFiles) -> None:
        read = log._read_unchecked

        async def read_later(first: int, pos: int, size: int) -> bytes:
            if log.last_term == 1:
                assert await log.truncate(20)
                await append(log, 20, term=2, size=6000)
            return await read(first, pos, size)

        monkeypatch.setattr(log, "_read_unchecked", read_later)
        with pytest.raises(Rotten):
            await log.read_range(25, 28)
        assert log.last_term == 2 and not log.faulty

    cold(tmp_path, work)


def test_where_rot_lies_is_found_while_memory_holds_one_unit_at_a_time(tmp_path: Path) -> None:
    async def work(log: LogStore, files: ForgettingFiles) -> None:
        files.cold = False
        places = {index: log.locate(index) for index in (7, 30)}
        log.note_damage(7, 7)
        files.cold = files.short = True
        async with asyncio.timeout(20):
            assert unpack_header(await log.read(*places[30])).index == 30
            with pytest.raises(Rotten) as told:
                await log.read(*places[7])
        assert (told.value.first, told.value.last) == (7, 7)

    cold(tmp_path, work)


def test_where_rot_lies_is_looked_for_anew_when_the_log_was_cut_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work(log: LogStore, files: ForgettingFiles) -> None:
        files.cold = False
        place, size = log.locate(30)
        place_of, asked, cold_unit = log._place_of, list[int](), asyncio.get_running_loop().create_future()

        def look(index: int) -> tuple[int, int] | None:
            asked.append(index)
            if len(asked) == 4:
                raise ColdUnit(cold_unit)
            return place_of(index)

        monkeypatch.setattr(log, "_place_of", look)
        looking = asyncio.create_task(log._indexes_at(place, size))
        await asyncio.sleep(0)
        assert len(asked) == 4
        assert await log.truncate(20)
        await append(log, 20, term=2, size=6000)
        cold_unit.set_result(None)
        first, last = await looking
        begin, end = log.locate(first)[0], sum(log.locate(last))
        assert begin <= place and place + size <= end, "of the log as it is now"

    cold(tmp_path, work)


def test_a_check_of_what_is_there_twice_does_not_wait(tmp_path: Path) -> None:
    async def work(log: LogStore, files: ForgettingFiles) -> None:
        assert log.vouched_chain(7) is None
        data, _ = await log.read_range(7, 7)
        assert log.vouched_chain(7) == unpack_header(data).chain_crc

    cold(tmp_path, work)


def test_a_cut_waits_for_where_to_cut(tmp_path: Path) -> None:
    async def work(log: LogStore, files: ForgettingFiles) -> None:
        assert await log.truncate(20)
        assert log.last_index == 19 and files.fetches
        files.cold = True
        await append(log, 5, term=2)
        files.cold = True
        pos, size = await log.find(19)
        assert log.locate(20)[0] == pos + size

    cold(tmp_path, work)


def test_a_unit_that_cannot_be_read_is_lost_until_it_is_written_again(tmp_path: Path) -> None:
    async def work(log: LogStore, files: ForgettingFiles) -> None:
        data, _ = await log.read_range(7, 7)
        files.cold = files.broken = True
        with pytest.raises(Rotten):
            await log.read_range(7, 7)
        assert 7 in log.faulty and 8 not in log.faulty
        files.broken = False
        await log.examine(7, 7)  # the entry is whole: it gets its unit back
        assert not log.faulty
        assert (await log.read_range(7, 7))[0] == data

    cold(tmp_path, work)


def test_a_unit_that_cannot_be_read_takes_none_before_it_along(tmp_path: Path) -> None:
    async def work(log: LogStore, files: ForgettingFiles) -> None:
        files.broken_from = 8 * INDEX_UNIT_SIZE
        await log.find(7)
        assert not log.faulty

    cold(tmp_path, work)


def test_a_peer_whose_place_is_not_in_memory_lags(tmp_path: Path) -> None:
    async def work(log: LogStore, files: ForgettingFiles) -> None:
        peers = {name: f"127.0.0.1:{port}" for port, name in enumerate(("n0", "n1", "n2"), 1)}
        throttle = Throttle(NodeConfig("g", "n0", peers, str(tmp_path)), log)
        leader = LeaderReplication(
            1, "n0", peers, ("n1", "n2"), log, 0, 0, push_bytes=100_000, inflight_bytes=1_000_000
        )
        leader.progress["n1"].state = PushState.APPEND
        leader.progress["n1"].stored = 7
        assert throttle.lags(leader, "n1")
        await log.find(7)
        assert not throttle.lags(leader, "n1"), "all of this log is little"

    cold(tmp_path, work)


def test_pending_limits_are_counted_when_the_place_is_known(tmp_path: Path) -> None:
    async def work(log: LogStore, files: ForgettingFiles) -> None:
        counted: list[tuple[int, int]] = []
        leadership = object.__new__(Leadership)
        leadership._log = log
        leadership._leading = SimpleNamespace(committed=lambda *place: counted.append(place))  # type: ignore[assignment]
        leadership._replicator = SimpleNamespace(commit_index=7)  # type: ignore[assignment]
        leadership._progress = asyncio.Event()
        leadership.committed(7)
        assert counted == []
        await log.find(7)
        await asyncio.sleep(0)
        assert counted == [(7, log.end_of(7))]

    cold(tmp_path, work)
