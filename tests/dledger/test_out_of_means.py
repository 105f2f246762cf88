"""Too many open files, or no memory, say nothing of the disk: no entry is damaged by that, nothing ends, and
what was to be read is read later."""

from __future__ import annotations

import asyncio
import errno
import re
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dledger.broker.background import Background
from dledger.config import NodeConfig
from dledger.context.applier import Applier
from dledger.context.config_log import ConfigLog
from dledger.formats.snapshot import Manifest, make_manifest
from dledger.formats.store_files import POISONED_FILE
from dledger.host import Chunk, Host
from dledger.log import scrub
from dledger.log.reading import read_around_errors
from dledger.log.repair_writer import Unfitting
from dledger.log.scrub import Scrubber
from dledger.log.store import LogStore
from dledger.members.config_search import ConfigSearch
from dledger.messages import Code, Holding, RepairRequest
from dledger.node.repair import Repairer
from dledger.node.requests import ClientRequests
from dledger.peers.replicator import Replicator
from dledger.remoting.codes import ResponseCode
from dledger.runtime.env import production_env
from dledger.runtime.files import OsFile, OsFiles
from dledger.snapshots import catalog as catalogs
from dledger.snapshots.catalog import SnapshotCatalog
from dledger.snapshots.retainer import Retainer
from tests.dledger.node_context import context
from tests.dledger.test_log_races import indexed
from tests.dledger.test_log_races import use as use_log
from tests.dledger.test_snapshot_store import SEGMENT, append, boundary

pytestmark = pytest.mark.usefixtures("index_in_memory")

ERRORS = [errno.EMFILE, errno.ENFILE, errno.ENOMEM]


class FewMeans(OsFiles):
    """What matches `pattern` cannot be opened, nor synced as a directory (which ends with a slash)."""

    def __init__(self, number: int = errno.EMFILE) -> None:
        self.number = number
        self.pattern = ""
        self.refused = 0

    def open(self, path: str, create: bool = False) -> OsFile:
        self._check(path)
        return super().open(path, create)

    def open_read(self, path: str) -> OsFile:
        self._check(path)
        return super().open_read(path)

    def sync_dir(self, path: str) -> None:
        self._check(path + "/")
        super().sync_dir(path)

    def _check(self, path: str) -> None:
        if self.pattern and re.search(self.pattern, path):
            self.refused += 1
            raise OSError(self.number, "planted", path)

    async def met(self, count: int = 1) -> None:
        """Wait until so many openings were refused."""
        async with asyncio.timeout(20):
            while self.refused < count:  # noqa: ASYNC110
                await asyncio.sleep(0.001)


def use(directory: Path, work: Callable[[LogStore, FewMeans], Awaitable[None]], number: int) -> None:
    """A log of eight segments: entries 3 to 5 are cold."""
    files = FewMeans(number)

    async def filled(log: LogStore) -> None:
        while log.end_pos < 8 * SEGMENT:
            await append(log, 60, term=2)
        await indexed(log)
        await work(log, files)
        assert not log.faulty and not log.suspects and log.durable_index == log.last_index

    use_log(directory, filled, replace(production_env(), files=files))
    assert not (directory / POISONED_FILE).exists()


@pytest.mark.parametrize("number", ERRORS)
def test_a_cold_read_raises_and_calls_nothing_rotten(tmp_path: Path, number: int) -> None:
    async def work(log: LogStore, files: FewMeans) -> None:
        pos, size = await log.find(3)
        files.pattern = "/data/"
        with pytest.raises(OSError, match="planted"):
            await log.read_range(3, 5)
        with pytest.raises(OSError, match="planted"):
            await log.read(pos, size)
        assert not log.faulty and log.durable_index == log.last_index
        files.pattern = ""
        assert (await log.read_range(3, 5))[1] == 5

    use(tmp_path, work, number)


@pytest.mark.parametrize("number", ERRORS)
def test_examination_and_repair_are_put_off(tmp_path: Path, number: int) -> None:
    """Good entries under suspicion stay so for a while; a copy of bad ones is not written, and fits later."""

    async def work(log: LogStore, files: FewMeans) -> None:
        copy, _ = await log.read_range(3, 5)
        log.note_damage(3, 5)
        files.pattern = "/data/"
        await log.examine(3, 5)
        assert list(log.faulty) == list(log.suspects) == [(3, 5)]
        log.suspects.remove(3, 5)
        with pytest.raises(Unfitting, match="planted"):
            await log.mend(3, 5, copy)
        assert list(log.faulty) == [(3, 5)]
        with pytest.raises(OSError, match="planted"):
            await log.configs_among(3, 5)
        files.pattern = ""
        await log.mend(3, 5, copy)
        assert not log.faulty
        log.note_damage(3, 5)
        await log.examine(3, 5)

    use(tmp_path, work, number)


def test_a_copy_that_cannot_be_opened_for_writing_or_read_back_is_put_off(tmp_path: Path) -> None:
    """Its neighbours could be read, so these are the next two files that are opened."""

    async def work(log: LogStore, files: FewMeans) -> None:
        copy, _ = await log.read_range(3, 5)
        for skipped in range(4):
            log.note_damage(3, 5, certain=True)
            start = log._segments.start_of(0)
            if start in log._segments._files:
                assert log._segments._close_one(start)
            left = [skipped]

            def check(path: str, left: list[int] = left) -> None:
                if "/data/" in path:
                    left[0] -= 1
                    if left[0] == -1:
                        files.refused += 1
                        raise OSError(errno.EMFILE, "planted", path)

            files._check = check  # type: ignore[method-assign]
            with pytest.raises(Unfitting, match="planted"):
                await log.mend(3, 5, copy)
            assert list(log.faulty) == [(3, 5)]
            files._check = lambda path: None  # type: ignore[method-assign]
            await log.mend(3, 5, copy)
        assert files.refused == 4

    use(tmp_path, work, errno.EMFILE)


def test_a_blank_tail_is_mended_another_time(tmp_path: Path) -> None:
    async def work(log: LogStore, files: FewMeans) -> None:
        index = next(i for i in range(log.last_index) if log.locate(i + 1)[0] == SEGMENT)
        assert log._segments._close_one(0) if 0 in log._segments._files else True
        files.pattern = "/data/"
        await log.mend_blank(index, sum(log.locate(index)), log.cuts)
        assert files.refused
        files.pattern = ""
        await log.mend_blank(index, sum(log.locate(index)), log.cuts)

    use(tmp_path, work, errno.EMFILE)


@pytest.mark.parametrize("number", ERRORS)
def test_the_scrub_rests_and_reads_the_piece_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    monkeypatch.setattr(scrub, "OUT_OF_MEANS_REST_S", 0.01)
    monkeypatch.setattr(scrub, "PIECE", SEGMENT)

    async def work(log: LogStore, files: FewMeans) -> None:
        scrubber = Scrubber(log, bytes_per_s=1 << 40, pause_s=0.001)
        files.pattern = "/data/"
        task = asyncio.create_task(scrubber.run())
        await files.met(3)
        assert scrubber.checked_index < 0 and not task.done()
        files.pattern = ""
        async with asyncio.timeout(20):
            while not scrubber.passes:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        task.cancel()
        assert scrubber.checked_index >= log.indexed_mark - 1 and scrubber.found == 0

    use(tmp_path, work, number)


def test_no_memory_for_a_read_is_no_bad_sector(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(range(100)))
    file = OsFiles().open(str(tmp_path / "file"))
    failing = [errno.ENOMEM]

    def pread(length: int, offset: int) -> bytes:
        raise OSError(failing[0], "planted")

    file.pread = pread  # type: ignore[method-assign]
    with pytest.raises(OSError, match="planted"):
        read_around_errors(file, 100, 0)
    failing[0] = errno.EIO
    assert read_around_errors(file, 100, 0) == bytes(100)
    del file.pread
    file.close()


def test_cutting_without_means_to_read_the_new_end_leaves_it_suspected_until_it_is_examined(
    tmp_path: Path,
) -> None:
    async def work(log: LogStore, files: FewMeans) -> None:
        index = log.last_index - 3
        await log.find(index)
        pread, refused = log._segments.pread, [0]

        def few(pos: int, size: int) -> bytes:
            refused[0] += 1
            raise OSError(errno.EMFILE, "planted")

        log._segments.pread = few  # type: ignore[method-assign]
        assert await log.truncate(index)
        log._segments.pread = pread  # type: ignore[method-assign]
        assert refused[0] and log.last_chain is None and list(log.suspects) == [(index - 1, index - 1)]
        await log.examine(index - 1, index - 1)
        assert log.last_chain is not None
        await append(log, 1, term=3)

    use(tmp_path, work, errno.EMFILE)


# Who reads the log


class AllApplied(Host):
    """A host that counts."""

    def __init__(self) -> None:
        self.entries = 0

    def apply(self, chunk: Chunk) -> None:
        self.entries += chunk.count


def test_the_applier_comes_again(tmp_path: Path) -> None:
    async def work(log: LogStore, files: FewMeans) -> None:
        host = AllApplied()
        events: Any = SimpleNamespace(applied=lambda: None, segment_applied=lambda index, pos: None)
        applier = Applier(context(log=log, host=host), events)
        files.pattern = "/data/"
        task = asyncio.create_task(applier.run())
        applier.commit_to(log.last_index)
        await files.met(2)
        files.pattern = ""
        async with asyncio.timeout(20):
            while applier.applied_index < log.last_index:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        assert host.entries == log.last_index + 1 and not task.done()
        task.cancel()

    use(tmp_path, work, errno.EMFILE)


def test_a_peer_that_asks_for_repair_is_told_to_ask_again(tmp_path: Path) -> None:
    async def work(log: LogStore, files: FewMeans) -> None:
        repairer = Repairer(context(env=production_env(), log=log), None)  # type: ignore[arg-type]
        files.pattern = "/data/"
        assert (await repairer._answer(RepairRequest(1, 3, 5))).holding is Holding.FAULTY
        files.pattern = ""
        assert (await repairer._answer(RepairRequest(2, 3, 5))).holding is Holding.HAVE

    use(tmp_path, work, errno.EMFILE)


def test_a_peer_that_lags_is_paused(tmp_path: Path) -> None:
    """Paused peers are tried again at intervals (`dledger.node.health`)."""

    async def work(log: LogStore, files: FewMeans) -> None:
        paused: list[str] = []
        leader = SimpleNamespace(wants=lambda push: True, pause=paused.append, withholds=lambda *_: False)
        replicator = SimpleNamespace(_log=log, _pause=lambda leader, effect: leader.pause(effect.peer))
        effect = SimpleNamespace(first=3, last=5, peer="n1")
        files.pattern = "/data/"
        assert await Replicator._read_cold(replicator, leader, effect) is None  # type: ignore[arg-type]
        assert paused == ["n1"]
        files.pattern = ""
        assert await Replicator._read_cold(replicator, leader, effect) is not None  # type: ignore[arg-type]

    use(tmp_path, work, errno.EMFILE)


def test_a_client_of_the_broker_is_told_and_the_broker_goes_on() -> None:
    class Connection:
        def __init__(self) -> None:
            self.codes: list[ResponseCode] = []

        def respond(self, request: object, code: ResponseCode, *, remark: str) -> None:
            assert "planted" in remark
            self.codes.append(code)

    async def scenario() -> None:
        background, connection = Background(), Connection()
        running = asyncio.create_task(background.run())
        await asyncio.sleep(0)

        async def read() -> None:
            raise OSError(errno.EMFILE, "planted")

        background.start(connection, None, read())  # type: ignore[arg-type]
        async with asyncio.timeout(20):
            while not connection.codes or background.count:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        assert connection.codes == [ResponseCode.SYSTEM_BUSY] and not running.done() and not background.count
        running.cancel()

    asyncio.run(scenario())


def test_a_client_of_the_log_is_told_to_come_again(tmp_path: Path) -> None:
    """A client gets the same answer after any other error, but then the entry is also examined."""

    async def work(log: LogStore, files: FewMeans) -> None:
        answers: list[tuple[Code, str]] = []
        requests = SimpleNamespace(
            _log=log,
            _read_now=500,
            _answer=lambda connection, number, code, text: answers.append((code, text)),
        )
        connection = SimpleNamespace(release=lambda: None)
        files.pattern = "/data/"
        read = log.read_later(*await log.find(3))
        await asyncio.wait((read,))
        ClientRequests._answer_read(requests, connection, 1, 3, 500, read)  # type: ignore[arg-type]
        assert requests._read_now == 0
        [(code, text)] = answers
        assert code is Code.INCONSISTENT_STATE and "cannot be read now" in text and not log.faulty

    use(tmp_path, work, errno.EMFILE)


def test_the_search_for_configurations_goes_on_later(tmp_path: Path) -> None:
    async def work(log: LogStore, files: FewMeans) -> None:
        members = ConfigLog(NodeConfig("g", "n0", {"n0": "127.0.0.1:1"}, str(tmp_path)))
        members.unsure.add(3, 5)
        events = SimpleNamespace(configs_found=lambda: None)
        search = ConfigSearch(context(log=log, members=members), lambda: None, events)  # type: ignore[arg-type]
        files.pattern = "/data/"
        task = asyncio.create_task(search.run())
        search.wake()
        await files.met(2)
        assert list(members.unsure) == [(3, 5)] and not task.done()
        files.pattern = ""
        async with asyncio.timeout(20):
            while members.unsure:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        task.cancel()

    use(tmp_path, work, errno.EMFILE)


# Snapshots


def snapshot(pos: int) -> tuple[Manifest, dict[str, bytes]]:
    parts = {"state": b"of %d" % pos}
    return make_manifest(pos // 100, 1, pos, 7, 1, b"", parts), parts


async def catalog_of(directory: Path, files: OsFiles, *places: int) -> SnapshotCatalog:
    catalog = SnapshotCatalog(replace(production_env(), files=files), str(directory), 100)
    await catalog.open()
    for pos in places:
        await catalog.publish(*snapshot(pos))
    return catalog


@pytest.mark.parametrize("number", ERRORS)
def test_a_snapshot_is_not_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    monkeypatch.setattr(catalogs, "RETRY_S", 0.01)
    files = FewMeans(number)

    async def scenario() -> None:
        catalog = await catalog_of(tmp_path, files, SEGMENT)
        files.pattern = "/snapshots/"
        loading = asyncio.create_task(catalog.load(catalog.manifests[0]))
        await files.met(3)
        files.pattern = ""
        assert await loading == snapshot(SEGMENT)[1] and catalog.has(SEGMENT)

    asyncio.run(scenario())


def test_snapshots_that_cannot_be_removed_go_another_time(tmp_path: Path) -> None:
    """Renamed or not: what is still whole goes on to count."""
    files = FewMeans()
    places = [number * SEGMENT for number in (1, 2, 3)]

    def left() -> list[str]:
        return sorted(path.name for path in (tmp_path / "snapshots").iterdir())

    async def refused(path: str) -> None:
        raise OSError(errno.EMFILE, "planted", path)

    async def scenario() -> None:
        catalog = await catalog_of(tmp_path, files, *places)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(catalog, "_take_away", refused)
            await catalog.prune(places[2])
            assert len(left()) == 3 and [one.pos for one in catalog.manifests] == places
        files.pattern = "/snapshots/$"  # the rename is not durable: so nothing in it is removed
        await catalog.prune(places[2])
        assert len(left()) == 3 and [one.pos for one in catalog.manifests] == places[2:]
        files.pattern = ""
        assert len((await catalog_of(tmp_path, files)).manifests) == len(left()) == 1

    asyncio.run(scenario())


def test_a_snapshot_that_nobody_may_use_is_out_of_use_at_once(tmp_path: Path) -> None:
    files = FewMeans()

    async def scenario() -> None:
        catalog = await catalog_of(tmp_path, files, SEGMENT)
        files.pattern = "/snapshots/$"
        await catalog.discard(catalog.manifests[0])
        assert files.refused and not catalog.manifests

    asyncio.run(scenario())


@pytest.mark.parametrize("failing", ["say_begins", "log_begins"])
def test_retention_tries_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str) -> None:
    async def work(log: LogStore, files: FewMeans) -> None:
        base = await boundary(log, 4)
        assert base.chain is not None
        catalog, parts = await catalog_of(tmp_path, files), {"state": b""}
        await catalog.publish(
            make_manifest(base.index, base.term, base.pos, base.chain, 1, b"", parts), parts
        )
        refusals = [errno.EMFILE, errno.ENFILE]

        async def refused(*_: object) -> None:
            if refusals:
                raise OSError(refusals.pop(), "planted")

        begins = refused if failing == "log_begins" else _nothing
        host = SimpleNamespace(log_begins=begins, kept_from=_nothing)
        if failing == "say_begins":
            monkeypatch.setattr(catalog, "say_begins", refused)
        parts = context(
            env=production_env(),
            config=NodeConfig("g", "n0", {"n0": "127.0.0.1:1"}, str(tmp_path)),
            log=log,
            host=host,
            replicator=SimpleNamespace(leader=None),
        )
        applier: Any = SimpleNamespace(applied_index=log.last_index)
        retainer = Retainer(parts, applier, catalog)
        retainer.delete_before(base.index + 1)
        for _ in range(2):
            await retainer.round()
            assert log.begin_pos == 0
        files.pattern = "/data/$"
        await retainer.round()
        assert files.refused == 1 and log.begin_pos == base.pos and log._segments.first_start < base.pos
        files.pattern = ""
        await retainer.round()
        assert log._segments.first_start == base.pos

    use(tmp_path, work, errno.EMFILE)


async def _nothing(*_: object) -> None: ...


def test_segments_given_back_meanwhile_are_known_to_the_pool(tmp_path: Path) -> None:
    async def work(log: LogStore, files: FewMeans) -> None:
        log.pool._target = 4
        base = await boundary(log, 6)
        files.pattern = "/pool/$"
        assert not await log.drop_before(base)
        files.pattern = ""
        assert await log.drop_before(log.base)
        assert log.pool.ready == len(list((tmp_path / "pool").iterdir())) > 1

    use(tmp_path, work, errno.EMFILE)
