"""What the scrub, repair and retention do to a log while it is cut, dropped or replaced (S3, S4, S20)."""

from __future__ import annotations

import asyncio
import errno
import threading
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dledger.errors import NodeFailed
from dledger.formats.entry import HEADER_SIZE
from dledger.formats.store_files import POISONED_FILE
from dledger.log import scrub
from dledger.log.base import LogBase
from dledger.log.scrub import Scrubber
from dledger.log.store import LogStore
from dledger.messages import Holding, RepairRequest
from dledger.node.repair import Repairer
from dledger.runtime import Lane
from dledger.runtime.env import Env, production_env
from dledger.runtime.files import File, OsFiles
from tests.dledger.node_context import context
from tests.dledger.test_snapshot_store import SEGMENT, UNITS, append, boundary, lose_units

pytestmark = pytest.mark.usefixtures("index_in_memory")


def use(directory: Path, work: Callable[[LogStore], Awaitable[None]], env: Env | None = None) -> None:
    """Open a log, work with a running flusher, close."""

    async def run() -> None:
        log = LogStore(
            env or production_env(),
            str(directory),
            segment_size=SEGMENT,
            index_units_per_file=UNITS,
            pool_segments=0,
            sync_flush=True,
        )
        await log.open(power_lost=False, discard_above_mark=False)
        flusher = asyncio.create_task(log.run_flusher())
        try:
            await work(log)
        finally:
            flusher.cancel()
            await asyncio.gather(flusher, return_exceptions=True)
            await log.close()

    asyncio.run(run())


async def indexed(log: LogStore) -> None:
    """Append one more entry and wait until all before it have their index units."""
    last = log.last_index
    await append(log, 1, term=log.last_term)
    async with asyncio.timeout(20):
        while log.indexed_mark < last:  # noqa: ASYNC110
            await asyncio.sleep(0.001)


async def resting(scrubber: Scrubber) -> None:
    async with asyncio.timeout(20):
        while scrubber.checked_index < 0:  # noqa: ASYNC110
            await asyncio.sleep(0.001)


class AfterJob:
    """Workers that run something on the loop behind one of their jobs, before its caller hears of it."""

    def __init__(self, env: Env, place: int, then: Callable[[], Awaitable[object]]) -> None:
        self._run = env.workers.run
        self._place = place
        self._then = then
        self.jobs = 0

    def run(self, lane: Lane, job: Callable[..., Any], *arguments: Any, **named: Any) -> asyncio.Future[Any]:
        future = self._run(lane, job, *arguments, **named)
        self.jobs += 1
        return asyncio.ensure_future(self._behind(future)) if self.jobs == self._place else future

    async def _behind(self, future: asyncio.Future[Any]) -> Any:
        result = await future
        await self._then()
        return result


def test_a_cut_while_the_scrub_rests_ends_its_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scrub, "PIECE", 10_000)

    async def work(log: LogStore) -> None:
        await append(log, 60, size=1000)
        await indexed(log)
        scrubber = Scrubber(log, bytes_per_s=1, pause_s=1)  # it rests until it is retuned
        scrubbing = asyncio.create_task(scrubber._pass())
        await resting(scrubber)
        last = scrubber.checked_index
        stale = log.end_of(last)
        await log.truncate(1)
        await append(log, last - 1, term=2, size=200)
        await append(log, 1, term=2, size=SEGMENT - log.end_pos - HEADER_SIZE - 40)
        await append(log, 2, term=2, size=1000)
        await indexed(log)
        pos, size = log.locate(last)
        assert pos < stale < pos + size and log.locate(last + 1)[0] == SEGMENT
        whole, _ = await log.read_range(last, last)
        scrubber.retune(1 << 30, 1)
        await scrubbing
        await log.mend_blank(last, stale, log.cuts)  # found in vain, even without a cut
        assert await log.read_later(pos, size) == whole[:size]
        assert not log.faulty

    use(tmp_path, work)


def test_a_whole_log_is_not_called_rotten_after_a_cut(tmp_path: Path) -> None:
    async def work(log: LogStore) -> None:
        await append(log, 400)
        await indexed(log)
        scrubber = Scrubber(log, bytes_per_s=1, pause_s=1)  # it rests until it is retuned
        scrubbing = asyncio.create_task(scrubber._pass())
        await resting(scrubber)
        first = scrubber.checked_index - 20
        await log.truncate(first)
        await append(log, 420 - first, term=2, size=2999)
        await indexed(log)
        scrubber.retune(1 << 30, 1)
        await scrubbing
        assert not log.faulty and not log.suspects

    use(tmp_path, work)


async def rotten_at_three(log: LogStore) -> tuple[LogBase, bytes]:
    """A log with rot in entry 3; where it may begin behind that, and the entry as it was."""
    await append(log, 100)
    base = await boundary(log, 1)
    pos, size = log.locate(3)
    good = (await log.read_range(3, 3))[0][:size]
    (await log._segments.file(0)).pwritev([bytes([good[100] ^ 0x5A])], pos + 100)
    log.note_damage(3, 3)
    return base, good


@pytest.mark.parametrize("job", range(1, 8))
def test_retention_during_a_repair_waits_for_it(tmp_path: Path, job: int) -> None:
    async def work(log: LogStore) -> None:
        base, good = await rotten_at_three(log)
        await log.examine(3, 3)
        assert list(log.faulty) == [(3, 3)]
        dropping: list[asyncio.Task[bool]] = []

        async def drop() -> None:
            dropping.append(asyncio.create_task(log.drop_before(base)))
            await asyncio.sleep(0.05)  # time enough for all of it

        log._env = replace(log._env, workers=AfterJob(log._env, job, drop))  # type: ignore[arg-type]
        await log.mend(3, 3, good)
        assert all(await asyncio.gather(*dropping))
        assert not log.faulty and not (tmp_path / POISONED_FILE).exists()
        assert log.first_index == (base.index + 1 if dropping else 0)

    use(tmp_path, work)


def test_what_retention_takes_does_not_stay_faulty(tmp_path: Path) -> None:
    async def work(log: LogStore) -> None:
        base, _ = await rotten_at_three(log)
        examining = asyncio.create_task(log.examine(3, 3))
        await asyncio.sleep(0)
        assert await log.drop_before(base)
        await examining
        assert not log.faulty and not log.suspects

    use(tmp_path, work)


class GatedFiles(OsFiles):
    """Stops the first opening of a segment by a worker between the look for it and the opening."""

    def __init__(self) -> None:
        self.armed = False
        self.entered = threading.Event()
        self.gate = threading.Event()

    def open(self, path: str, *, create: bool = False) -> File:
        if self.armed and "/data/" in path and threading.current_thread() is not threading.main_thread():
            self.armed = False
            self.entered.set()
            self.gate.wait(60)
        return super().open(path, create=create)


@pytest.mark.parametrize("change", ["retention", "install"])
def test_a_segment_that_goes_while_the_scrub_opens_it_is_no_error(tmp_path: Path, change: str) -> None:
    files = GatedFiles()

    async def work(log: LogStore) -> None:
        await append(log, 100)
        base = await boundary(log, 1)
        await indexed(log)
        files.armed = True
        scrubber = Scrubber(log, bytes_per_s=1 << 30, pause_s=0.01)
        scrubbing = asyncio.create_task(scrubber._pass())
        async with asyncio.timeout(20):
            while not files.entered.is_set():  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        if change == "retention":
            assert await log.drop_before(base)
        else:
            await log.reset(LogBase(1000, 5, 100 * SEGMENT, 77))
        files.gate.set()
        await scrubbing
        assert not log.faulty

    use(tmp_path, work, replace(production_env(), files=files))


class NoPeers:
    """For answers that are not sent."""


def test_a_peer_is_answered_though_retention_takes_what_was_read(tmp_path: Path) -> None:
    async def work(log: LogStore) -> None:
        await append(log, 200)
        base = await boundary(log, 1)
        await indexed(log)
        asked, size = base.index, log.locate(base.index)[1]
        whole, _ = await log.read_range(asked, asked)
        repairer = Repairer(context(env=production_env(), log=log, peers=NoPeers()), None)  # type: ignore[arg-type]

        async def read_range(first: int, last: int) -> tuple[bytes, int]:
            found = await LogStore.read_range(log, first, last)
            assert await log.drop_before(base)
            return found

        log.read_range = read_range  # type: ignore[method-assign]
        answer = await repairer._answer(RepairRequest(1, asked, asked))
        assert log.first_index == asked + 1
        assert (answer.holding, answer.first, answer.last) == (Holding.HAVE, asked, asked)
        assert bytes(answer.data) == whole[:size] and answer.pos + size <= base.pos

    use(tmp_path, work)


class FailingFiles(OsFiles):
    """fsync of a directory fails."""

    def __init__(self, directory: str, code: int) -> None:
        self._directory = directory
        self._code = code
        self.armed = False

    def sync_dir(self, path: str) -> None:
        if self.armed and path.endswith(self._directory):
            raise OSError(self._code, "planted", path)
        super().sync_dir(path)


def test_a_failed_fsync_of_the_names_of_index_files_ends_the_node(tmp_path: Path) -> None:
    files = FailingFiles("/index", errno.EIO)

    async def work(log: LogStore) -> None:
        files.armed = True
        with pytest.raises(NodeFailed, match="fsync"):
            async with asyncio.timeout(20):
                await log.run_pool()
        assert (tmp_path / POISONED_FILE).exists()

    use(tmp_path, work, replace(production_env(), files=files))


def test_a_cut_down_to_the_boundary_puts_retention_off(tmp_path: Path) -> None:
    async def work(log: LogStore) -> None:
        await append(log, 60)
        base = await boundary(log, 2)
        await log.truncate(base.index + 1)
        assert not await log.drop_before(base)
        assert log.first_index == 0
        await append(log, 3, term=2)
        assert await log.drop_before(base)
        assert log.first_index == base.index + 1

    use(tmp_path, work)


@pytest.mark.parametrize("first", ["install", "cut"])
def test_a_cut_that_an_install_overtakes_cuts_nothing(tmp_path: Path, first: str) -> None:
    """Pieces of the leader before may still be under way when the next one asks for a cut."""

    async def work(log: LogStore) -> None:
        await append(log, 60)
        await indexed(log)
        base, decided = LogBase(1000, 5, 100 * SEGMENT, 77), log.resets
        jobs = [log.reset(base), log.truncate(30, decided)]
        async with log._io:
            tasks = [asyncio.create_task(job) for job in (jobs if first == "install" else jobs[::-1])]
            await asyncio.sleep(0)
        done = await asyncio.gather(*tasks)
        assert (False in done) == (first == "install")
        assert not await log.truncate(30, decided)
        assert (log.first_index, log.last_index, log.end_pos) == (1001, 1000, base.pos)

    use(tmp_path, work)


@pytest.mark.parametrize("cut", [50, 51])
def test_a_cut_that_does_not_know_its_place_waits_for_a_repair(tmp_path: Path, cut: int) -> None:
    """With the units lost of the entry to be cut and of a rotten one before it, the end of what is kept is
    not known: a guess would let new entries grow over the place of one that was committed."""

    async def work(log: LogStore) -> None:
        await append(log, 60)
        await indexed(log)
        await log.sync_index()
        places = [log.locate(index) for index in range(60)]
        good = (await log.read_range(cut - 1, cut - 1))[0][: places[cut - 1][1]]
        segment = await log._segments.file(log._segments.start_of(places[cut - 1][0]))
        for index in (cut - 1, cut):
            segment.pwritev([bytes(HEADER_SIZE)], places[index][0] % SEGMENT)
        lose_units(tmp_path, cut - 1, cut)
        cutting = asyncio.create_task(log.truncate(cut))
        async with asyncio.timeout(20):
            while not log.suspects:  # noqa: ASYNC110  # nobody tells
                await asyncio.sleep(0.002)
        await asyncio.sleep(0.02)
        assert not cutting.done() and log.last_index >= 60
        for first, last in [*log.suspects]:
            await log.examine(first, last)
        assert (cut - 1) in log.faulty
        await log.mend(cut - 1, cut - 1, good)
        assert await cutting
        assert (log.last_index, log.end_pos) == (cut - 1, sum(places[cut - 1]))
        await append(log, 5, term=2)
        assert (await log.read_range(cut - 1, cut - 1))[0][: len(good)] == good

    use(tmp_path, work)
