"""Logs that begin at a snapshot, and the directory of snapshots, on real files (safety.md S6, S20)."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dledger.chaos.machine import World
from dledger.config import NodeConfig
from dledger.errors import NodeFailed
from dledger.files.identity import StoreFiles
from dledger.formats.entry import HEADER_SIZE, Kind, encode_entry, unpack_header
from dledger.formats.snapshot import (
    BEGINS_FILE,
    Manifest,
    check_parts,
    decode_manifest,
    encode_manifest,
    make_manifest,
    pack_stream,
    unpack_stream,
)
from dledger.formats.store_files import POISONED_FILE, CorruptFile, HardState, Identity, encode_json
from dledger.log.appender import Appender
from dledger.log.base import ORIGIN, LogBase
from dledger.log.hard_state import HardStateFile
from dledger.log.reading import Rotten
from dledger.log.recovery import StoreDamaged
from dledger.log.repair_writer import Unfitting
from dledger.log.store import LogStore
from dledger.node.node import Node
from dledger.runtime.env import Env, production_env
from dledger.runtime.files import OsFiles
from dledger.snapshots.catalog import SnapshotCatalog, base_of
from tests.dledger.test_node import ListHost

pytestmark = pytest.mark.usefixtures("index_in_memory")

SEGMENT = 64 * 1024
UNITS = 64


def use(
    directory: Path,
    work: Callable[[LogStore], Awaitable[None]],
    *,
    bases: dict[int, LogBase] | None = None,
    begins: int | None = None,
    replace: bool = False,
    doubts: list[str] | None = None,
    power_lost: bool = False,
) -> None:
    """Open a log, work with a running flusher, close."""

    async def run() -> None:
        log = LogStore(
            production_env(),
            str(directory),
            segment_size=SEGMENT,
            index_units_per_file=UNITS,
            pool_segments=0,
            sync_flush=True,
        )

        async def note(reason: str) -> None:
            if doubts is not None:
                doubts.append(reason)

        await log.open(
            power_lost=power_lost,
            discard_above_mark=False,
            on_doubt=note,
            bases=bases,
            begins=begins,
            replace=replace,
        )
        flusher = asyncio.create_task(log.run_flusher())
        try:
            await work(log)
        finally:
            flusher.cancel()
            await asyncio.gather(flusher, return_exceptions=True)
            await log.close()

    asyncio.run(run())


async def append(log: LogStore, count: int, term: int = 1, size: int = 3000) -> None:
    appender = Appender(log, term, pending_bytes=1 << 30, pending_entries=1 << 30, schedule_pump=lambda: None)
    for _ in range(count):
        appender.reserve(HEADER_SIZE + size)
        appender.add((bytes([appender.next_index % 251]) * size,), size)
    for batch in appender.take():
        log.append(batch)
    async with asyncio.timeout(20):
        while log.durable_index < log.last_index:  # noqa: ASYNC110
            await asyncio.sleep(0.001)


async def boundary(log: LogStore, segment: int) -> LogBase:
    """The base of a log that would begin with this segment."""
    for index in range(log.first_index, log.last_index + 1):
        pos, size = log.locate(index)
        if log.locate(index + 1)[0] == segment * SEGMENT:
            term = log.term_of(index)
            assert term is not None
            return LogBase(index, term, segment * SEGMENT, unpack_header(await log.read(pos, size)).chain_crc)
    raise AssertionError(f"no entry begins segment {segment}")


async def content(log: LogStore) -> list[bytes]:
    result = []
    for index in range(log.first_index, log.last_index + 1):
        entry = await log.read(*log.locate(index))
        assert unpack_header(entry).index == index
        result.append(entry)
    return result


def segments(directory: Path) -> list[int]:
    return sorted(int(path.name) // SEGMENT for path in (directory / "data").iterdir())


def index_files(directory: Path) -> list[int]:
    return sorted(int(path.name) // (UNITS * 32) for path in (directory / "index").iterdir())


def filled(directory: Path, segment: int, count: int = 200) -> tuple[LogBase, list[bytes]]:
    """A closed store of 200 entries, cut to begin with a segment: its base, and what it holds."""
    kept: list[LogBase] = []
    entries: list[bytes] = []

    async def work(log: LogStore) -> None:
        await append(log, 100)
        await append(log, count - 100, term=3)
        base = await boundary(log, segment)
        entries.extend(await content(log))
        assert await log.drop_before(base)
        assert await content(log) == entries[base.index + 1 :]
        kept.append(base)

    use(directory, work)
    return kept[0], entries[kept[0].index + 1 :]


def test_segments_and_index_files_before_a_boundary_go(tmp_path: Path) -> None:
    base, _ = filled(tmp_path, 7)
    assert segments(tmp_path)[0] == 7 and base.pos == 7 * SEGMENT
    assert index_files(tmp_path)[0] == (base.index + 1) // UNITS


@pytest.mark.parametrize("segment", [1, 5, 9])
def test_a_log_that_begins_at_a_snapshot_opens_again(tmp_path: Path, segment: int) -> None:
    base, entries = filled(tmp_path, segment)

    async def work(log: LogStore) -> None:
        assert log.base == base and log.first_index == base.index + 1 and log.begin_pos == base.pos
        assert log.term_of(base.index) == base.term and log.term_of(base.index - 1) is None
        assert log.last_of_term_at_most(base.term, base.index) == base.index
        assert log.last_of_term_at_most(base.term, base.index - 1) == -1
        assert log.end_of(base.index) == base.pos
        assert await content(log) == entries
        with pytest.raises(KeyError):
            log.locate(base.index)
        with pytest.raises(ValueError):
            await log.read(base.pos - 100, 50)
        await append(log, 30, term=4)

    async def again(log: LogStore) -> None:
        entries[:] = await content(log)
        assert entries

    for _ in range(2):
        use(tmp_path, work, bases={base.pos: base, 0: ORIGIN}, begins=base.pos)
        use(tmp_path, again, bases={base.pos: base}, begins=base.pos)


@pytest.mark.parametrize("lost", ["all but the first segment", "first segment", "index", "first unit"])
def test_terms_behind_a_snapshot_are_known_when_everything_is_walked(tmp_path: Path, lost: str) -> None:
    base, entries = filled(tmp_path, 9 if lost == "all but the first segment" else 7)
    if lost == "first segment":
        (tmp_path / "data" / f"{base.pos:020d}").unlink()
    if lost == "index":
        lose_index(tmp_path)
    if lost == "first unit":
        first = base.index + 1
        with (tmp_path / "index" / f"{first // UNITS * UNITS * 32:020d}").open("r+b") as file:
            file.seek(first % UNITS * 32)
            file.write(bytes(32))

    async def work(log: LogStore) -> None:
        assert (log.first_index, log.last_index, log.last_term) == (base.index + 1, 199, 3)
        terms = [log.term_of(index) for index in range(log.first_index, log.last_index + 1)]
        assert terms == [unpack_header(entry).term for entry in entries]
        assert log.last_of_term_at_most(base.term, log.last_index) == 199

    use(tmp_path, work, bases={base.pos: base}, begins=base.pos)


@pytest.mark.parametrize("later", [0, 1])
def test_a_log_just_installed_knows_its_last_term_at_the_next_start(tmp_path: Path, later: int) -> None:
    base = LogBase(1000, 5, 100 * SEGMENT, 77)

    async def install(log: LogStore) -> None:
        await log.reset(base)
        await append(log, 3, term=5 + later)

    async def again(log: LogStore) -> None:
        assert (log.last_index, log.last_term, log.term_of(1001)) == (1003, 5 + later, 5 + later)
        assert log.last_of_term_at_most(5, 1003) == (1000 if later else 1003)
        await log.truncate(1001)
        assert (log.last_term, log.term_of(1000)) == (5, 5)

    use(tmp_path, install)
    use(tmp_path, again, bases={base.pos: base}, begins=base.pos)


def lose_index(directory: Path) -> None:
    for path in (directory / "index").iterdir():
        path.unlink()


def overwrite(directory: Path, pos: int, data: bytes) -> None:
    with (directory / "data" / f"{pos // SEGMENT * SEGMENT:020d}").open("r+b") as file:
        file.seek(pos % SEGMENT)
        file.write(data)


async def never(log: LogStore) -> None:
    raise AssertionError("it must not open")


@pytest.mark.parametrize("begins", [None, 7])
@pytest.mark.parametrize("damage", ["bit of the first header", "sector", "sector of the first header"])
def test_damage_and_a_lost_index_forget_no_segment(tmp_path: Path, damage: str, begins: int | None) -> None:
    base, places = ORIGIN, {}

    async def fill(log: LogStore) -> None:
        await append(log, 100)

    async def look(log: LogStore) -> None:
        places.update({index: log.locate(index)[0] for index in range(log.first_index, log.last_index)})

    if begins is None:
        use(tmp_path, fill)
    else:
        base, _ = filled(tmp_path, begins)
    use(tmp_path, look, bases={base.pos: base}, begins=base.pos)
    lose_index(tmp_path)
    if damage == "bit of the first header":
        overwrite(tmp_path, base.pos, b"\xda")
    else:
        overwrite(tmp_path, places[base.index + (11 if damage == "sector" else 1)], bytes(512))
    with pytest.raises(StoreDamaged, match=r"the index is lost.*refill it from its peers"):
        use(tmp_path, never, bases={base.pos: base}, begins=base.pos)


def test_a_cut_of_the_whole_log_that_was_interrupted_is_no_damage(tmp_path: Path) -> None:
    base, _ = filled(tmp_path, 7)
    for path in (tmp_path / "index").iterdir():
        path.write_bytes(bytes(path.stat().st_size))
    overwrite(tmp_path, base.pos, bytes(HEADER_SIZE))

    async def work(log: LogStore) -> None:
        assert (log.last_index, log.end_pos) == (base.index, base.pos)
        await append(log, 50, term=4)

    use(tmp_path, work, bases={base.pos: base}, begins=base.pos)


@pytest.mark.parametrize("power_lost", [False, True])
def test_a_torn_first_write_behind_a_snapshot_is_cut(tmp_path: Path, power_lost: bool) -> None:
    """No index unit yet, a whole header, half a body: as in a log that begins at 0."""
    base = LogBase(1000, 5, 100 * SEGMENT, 77)
    doubts: list[str] = []

    async def install(log: LogStore) -> None:
        await log.reset(base)
        await append(log, 2, term=6)

    async def again(log: LogStore) -> None:
        assert (log.last_index, log.last_term, log.end_pos) == (base.index, base.term, base.pos)
        assert bool(doubts) is not power_lost
        await append(log, 3, term=6)

    use(tmp_path, install)
    lose_index(tmp_path)
    overwrite(tmp_path, base.pos + 512, bytes(SEGMENT - 512))
    use(tmp_path, again, bases={base.pos: base}, begins=base.pos, doubts=doubts, power_lost=power_lost)


@pytest.mark.parametrize("count", [1, 2])
def test_entries_behind_a_snapshot_whose_only_segment_is_lost_are_missed(tmp_path: Path, count: int) -> None:
    base = LogBase(1000, 5, 100 * SEGMENT, 77)

    async def install(log: LogStore) -> None:
        await log.reset(base)
        await append(log, count, term=6)

    use(tmp_path, install)
    (tmp_path / "data" / f"{base.pos:020d}").unlink()
    doubts: list[str] = []

    async def work(log: LogStore) -> None:
        assert doubts or list(log.faulty) == [(1001, 1000 + count)]

    use(tmp_path, work, bases={base.pos: base}, begins=base.pos, doubts=doubts)


def lose_units(directory: Path, first: int, last: int) -> None:
    """Overwrite index units of an open log with zeros."""
    for index in range(first, last + 1):
        with (directory / "index" / f"{index // UNITS * UNITS * 32:020d}").open("r+b") as file:
            file.seek(index % UNITS * 32)
            file.write(bytes(32))


@pytest.mark.parametrize("lost", [(49, 49), (48, 50), (50, 50), (40, 59)])
def test_a_cut_beside_lost_index_units_ends_where_it_should(tmp_path: Path, lost: tuple[int, int]) -> None:
    kept: list[bytes] = []

    async def work(log: LogStore) -> None:
        await append(log, 61)
        await log._write_units()
        await log.sync_index()
        pos, size = log.locate(49)
        before = await content(log)
        lose_units(tmp_path, *lost)
        await log.truncate(50)
        assert (log.last_index, log.end_pos) == (49, pos + size)
        for first, last in log.suspects:
            await log.examine(first, last)
        assert not log.faulty and log.last_chain == unpack_header(before[49]).chain_crc
        await append(log, 20, term=2)
        kept.extend(await content(log))
        assert kept[:50] == before[:50]

    async def again(log: LogStore) -> None:
        assert await content(log) == kept

    use(tmp_path, work)
    use(tmp_path, again)


def test_the_chain_at_the_end_is_known_again_when_the_last_entry_was_examined(tmp_path: Path) -> None:
    async def work(log: LogStore) -> None:
        await append(log, 61)
        await log._write_units()
        await log.sync_index()
        log.note_damage(49, 49)
        await log.truncate(50)
        assert log.last_chain is None
        await log.examine(49, 49)
        assert not log.faulty and log.last_chain is not None
        await append(log, 5, term=2)

    use(tmp_path, work)


@pytest.mark.parametrize("when", ["at a start", "while it runs"])
def test_a_lost_index_file_is_made_anew(tmp_path: Path, when: str) -> None:
    lost = tmp_path / "index" / f"{2 * UNITS * 32:020d}"

    async def fill(log: LogStore) -> None:
        await append(log, 600, size=1000)
        await append(log, 1)

    async def work(log: LogStore) -> None:
        if when == "while it runs":
            log._index._open.pop(2 * UNITS * 32).close()
            lost.unlink()
            with pytest.raises(Rotten):
                await log.read_range(130, 130)
            for first, last in log.suspects:
                await log.examine(first, last)
            assert not log.faulty
        data, last = await log.read_range(130, 130)
        assert (unpack_header(data).index, last) == (130, 130)

    use(tmp_path, fill)
    if when == "at a start":
        lost.unlink()
    use(tmp_path, work)
    assert lost.exists()


def test_a_copy_of_the_first_entry_must_continue_the_snapshot(tmp_path: Path) -> None:
    base, entries = filled(tmp_path, 7)
    first = base.index + 1
    header = unpack_header(entries[0])
    body = entries[0][HEADER_SIZE:]
    assert base.chain is not None
    wrong = encode_entry(first, header.term, header.pos, body, base.chain ^ 1, Kind.MESSAGE)

    async def work(log: LogStore) -> None:
        log.note_damage(first, first, certain=True)
        with pytest.raises(Unfitting, match="snapshot"):
            await log.mend(first, first, wrong)
        await log.mend(first, first, entries[0])
        assert not log.faulty and await content(log) == entries

    use(tmp_path, work, bases={base.pos: base}, begins=base.pos)


def test_the_chain_goes_on_behind_a_snapshot_and_is_checked(tmp_path: Path) -> None:
    base, _ = filled(tmp_path, 9)
    wrong = LogBase(base.index, base.term, base.pos, (base.chain or 0) ^ 1)
    lose_index(tmp_path)  # so that everything is walked

    async def works(log: LogStore) -> None:
        assert log.first_index == base.index + 1 and log.last_index == 199

    with pytest.raises(Exception, match="corrupt at entry"):
        use(tmp_path, never, bases={base.pos: wrong}, begins=base.pos)
    use(tmp_path, works, bases={base.pos: base}, begins=base.pos)


def test_without_its_snapshot_the_beginning_is_unknown_but_the_log_opens(tmp_path: Path) -> None:
    base, entries = filled(tmp_path, 5)

    async def work(log: LogStore) -> None:
        assert log.first_index == base.index + 1 and not log.base.known
        assert log.term_of(base.index) is None
        assert await content(log) == entries

    use(tmp_path, work, begins=base.pos)


def test_what_is_being_read_is_freed_later(tmp_path: Path) -> None:
    async def work(log: LogStore) -> None:
        await append(log, 60)
        base = await boundary(log, 2)
        entry = log._segments.view(0, 100)
        assert entry is not None
        before = bytes(entry)
        assert not await log.drop_before(base)
        assert segments(tmp_path)[0] == 0 and log.first_index == base.index + 1
        assert bytes(entry) == before
        entry.release()
        assert await log.drop_before(log.base)
        assert segments(tmp_path)[0] == 2

    use(tmp_path, work)


def test_a_cut_leaves_what_is_being_read_without_its_name(tmp_path: Path) -> None:
    """A connection may hold slices of a segment until it has sent them (uvloop; asyncio since 3.12)."""

    async def work(log: LogStore) -> None:
        await append(log, 60)
        last = segments(tmp_path)[-1]
        entry = log._segments.view(last * SEGMENT, 100)
        assert entry is not None
        before = bytes(entry)
        await log.truncate(5)
        assert log.last_index == 4 and segments(tmp_path)[-1] < last
        await append(log, 60, term=9)
        assert bytes(entry) == before
        entry.release()

    use(tmp_path, work)


def test_what_was_cut_while_it_was_read_is_closed_when_it_is_read_no_more(tmp_path: Path) -> None:
    """Without its name nobody else can give its space back: a descriptor and a map keep a whole segment."""

    def kept() -> int:
        links = [os.path.realpath(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd")]
        return sum(link.startswith(str(tmp_path)) and link.endswith("(deleted)") for link in links)

    async def cut_under_a_reader(log: LogStore) -> memoryview:
        await append(log, 60, term=log.last_term + 1)
        entry = log._segments.view(segments(tmp_path)[-1] * SEGMENT, 100)
        assert entry is not None
        await log.truncate(5)
        return entry

    async def work(log: LogStore) -> None:
        entry = await cut_under_a_reader(log)
        await log.close_viewed()
        assert kept() > 0 and len(bytes(entry)) == 100, "it is still being sent"
        entry.release()
        await log.close_viewed()  # as retention does at intervals
        assert kept() == 0
        (await cut_under_a_reader(log)).release()
        assert kept() > 0
        last = await cut_under_a_reader(log)
        assert len(log._segments._viewed) == 1, "a cut closes what the one before left"
        last.release()

    use(tmp_path, work)
    assert kept() == 0


def test_two_that_close_what_was_viewed_forget_nothing(tmp_path: Path) -> None:
    """A round of retention waits for its worker while an install abandons more."""

    async def work(log: LogStore) -> None:
        await append(log, 60, term=log.last_term + 1)
        places = segments(tmp_path)[-3:]
        entries = [log._segments.view(place * SEGMENT, 100) for place in places]
        log._segments.abandon(places[2] * SEGMENT)
        first = asyncio.create_task(log.close_viewed())
        await asyncio.sleep(0)  # its job is handed over
        log._segments.abandon(places[1] * SEGMENT)
        second = asyncio.create_task(log.close_viewed())
        await asyncio.gather(first, second)
        assert len(log._segments._viewed) == 2 and len(entries) == 3

    use(tmp_path, work)


def test_names_that_could_not_be_synced_while_segments_are_freed_say_nothing_of_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Too many files were open: retention tries again, and no later start distrusts the store."""
    sync_dir, refused = OsFiles.sync_dir, [0]

    def too_many(self: OsFiles, path: str) -> None:
        if path.endswith("/index"):
            refused[0] += 1
            raise OSError(errno.EMFILE, "Too many open files", path)
        sync_dir(self, path)

    async def work(log: LogStore) -> None:
        await append(log, 900)  # index files of 512 units
        base = await boundary(log, len(segments(tmp_path)) - 1)
        assert base.index > 512
        with monkeypatch.context() as patch:
            patch.setattr(OsFiles, "sync_dir", too_many)
            assert not await log.drop_before(base)
        assert refused[0] >= 1, "perhaps the flusher made a file, too"
        assert await log.drop_before(log.base)
        assert not log._index._unsynced_names

    use(tmp_path, work)
    assert not (tmp_path / POISONED_FILE).exists()


def test_a_log_cut_down_to_a_lost_snapshot_ends_the_node(tmp_path: Path) -> None:
    """It can tell no voter its last term, and nothing says whether what follows continues it."""
    base, _ = filled(tmp_path, 9)

    async def work(log: LogStore) -> None:
        with pytest.raises(NodeFailed, match="to refill it from its peers"):
            await log.truncate(base.index + 1)

    use(tmp_path, work, begins=base.pos)


def test_a_log_is_cut_down_to_its_snapshot_and_goes_on(tmp_path: Path) -> None:
    base, _ = filled(tmp_path, 9)

    async def work(log: LogStore) -> None:
        await log.truncate(base.index + 1)
        assert (log.last_index, log.last_term, log.end_pos) == (base.index, base.term, base.pos)
        assert log.last_chain == base.chain
        await append(log, 5, term=9, size=1000)

    use(tmp_path, work, bases={base.pos: base}, begins=base.pos)

    async def again(log: LogStore) -> None:
        assert (log.first_index, log.last_index) == (base.index + 1, base.index + 5)

    use(tmp_path, again, bases={base.pos: base}, begins=base.pos)


def test_a_log_is_replaced_by_a_snapshot(tmp_path: Path) -> None:
    base = LogBase(1000, 5, 100 * SEGMENT, 77)

    async def work(log: LogStore) -> None:
        await append(log, 60)
        viewed = log._segments.view(0, 100)
        assert viewed is not None
        before = bytes(viewed)
        await log.reset(base)
        assert (log.first_index, log.last_index, log.last_term, log.end_pos) == (1001, 1000, 5, base.pos)
        assert segments(tmp_path) == [] and index_files(tmp_path) == []
        await append(log, 10, term=6)
        assert log.durable_index == 1010
        assert bytes(viewed) == before, "what is still read is not recycled"

    use(tmp_path, work)

    async def again(log: LogStore) -> None:
        assert (log.first_index, log.last_index) == (1001, 1010)

    use(tmp_path, again, bases={base.pos: base}, begins=base.pos)


def test_an_empty_log_begins_at_its_newest_snapshot(tmp_path: Path) -> None:
    base = LogBase(1000, 5, 100 * SEGMENT, 77)

    async def work(log: LogStore) -> None:
        assert (log.first_index, log.last_index, log.last_term) == (1001, 1000, 5)

    use(tmp_path, work, bases={base.pos: base, SEGMENT: LogBase(9, 1, SEGMENT, 1)})


def test_an_interrupted_replacement_is_finished_at_the_next_start(tmp_path: Path) -> None:
    filled(tmp_path, 3)
    (tmp_path / "data" / f"{5 * SEGMENT:020d}").unlink()  # a hole, which a start would refuse
    base = LogBase(1000, 5, 100 * SEGMENT, 77)

    async def work(log: LogStore) -> None:
        assert (log.first_index, log.last_index) == (1001, 1000)
        assert segments(tmp_path) == [] and index_files(tmp_path) == []

    use(tmp_path, work, bases={base.pos: base}, begins=base.pos, replace=True)


def test_a_base_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    async def work(log: LogStore) -> None:
        await append(log, 60)
        with pytest.raises(ValueError):
            await log.drop_before(LogBase(1000, 1, 50 * SEGMENT, 0))

    use(tmp_path, work)


# Manifests, streams, the directory

NAMES = st.text("abcdefgh", min_size=1, max_size=5)
PARTS = st.dictionaries(NAMES, st.binary(max_size=200), max_size=5)


def manifest_of(parts: dict[str, bytes], pos: int = SEGMENT, index: int = 20) -> Manifest:
    return make_manifest(index, 3, pos, 99, 12345, b"config", parts)


@given(PARTS)
def test_manifest_and_stream_come_back(parts: dict[str, bytes]) -> None:
    manifest = manifest_of(parts)
    assert decode_manifest(encode_manifest(manifest)) == manifest
    stream = pack_stream(manifest, parts)
    assert len(stream) == manifest.total
    assert unpack_stream(stream) == (manifest, parts)


@given(PARTS, st.data())
def test_any_changed_byte_of_a_stream_is_noticed(parts: dict[str, bytes], data: st.DataObject) -> None:
    stream = bytearray(pack_stream(manifest_of(parts), parts))
    at = data.draw(st.integers(0, len(stream) - 1))
    stream[at] ^= data.draw(st.integers(1, 255))
    with pytest.raises((CorruptFile, ValueError)):
        unpack_stream(bytes(stream))


@given(st.binary(max_size=300))
def test_garbage_is_no_stream(data: bytes) -> None:
    with pytest.raises((CorruptFile, ValueError)):
        unpack_stream(data)


def test_everything_counts_for_the_digest() -> None:
    parts = {"a": b"1", "b": b"2"}
    base = manifest_of(parts)
    others = [
        make_manifest(21, 3, SEGMENT, 99, 12345, b"config", parts),
        make_manifest(20, 4, SEGMENT, 99, 12345, b"config", parts),
        make_manifest(20, 3, SEGMENT, 98, 12345, b"config", parts),
        make_manifest(20, 3, SEGMENT, 99, 12345, b"confih", parts),
        make_manifest(20, 3, SEGMENT, 99, 12345, b"", parts),
        manifest_of({"a": b"12", "b": b""}),
    ]
    assert len({base.digest, *(other.digest for other in others)}) == 7
    with pytest.raises(CorruptFile):
        check_parts(base, {"a": b"1"})
    with pytest.raises(ValueError):
        manifest_of({"../x": b""})


def test_snapshots_are_published_found_and_removed(tmp_path: Path) -> None:
    async def scenario() -> None:
        catalog = SnapshotCatalog(production_env(), str(tmp_path), keep=3)
        await catalog.open()
        parts = {"state": b"x" * 1000, "more": b""}
        for place in range(1, 6):
            await catalog.publish(manifest_of(parts, place * SEGMENT, place * 10), parts)
        assert await catalog.load(catalog.manifests[2]) == parts
        directory = tmp_path / "snapshots"
        (directory / f"{6 * SEGMENT:020d}.tmp").mkdir()
        (directory / f"{7 * SEGMENT:020d}").mkdir()
        (directory / f"{3 * SEGMENT:020d}" / "state").write_bytes(b"short")
        (directory / f"{4 * SEGMENT:020d}" / "state").write_bytes(b"y" * 1000)
        again = SnapshotCatalog(production_env(), str(tmp_path), keep=3)
        await again.open()
        assert [m.pos // SEGMENT for m in again.manifests] == [1, 2, 4, 5]
        assert await again.load(again.manifests[2]) is None, "the CRC tells"
        assert [m.pos // SEGMENT for m in again.manifests] == [1, 2, 5]
        assert again.bases()[SEGMENT] == base_of(manifest_of(parts, SEGMENT, 10))
        await again.prune(2 * SEGMENT)
        assert sorted(path.name for path in directory.iterdir()) == [f"{at * SEGMENT:020d}" for at in (2, 5)]

    asyncio.run(scenario())


def test_a_snapshot_that_was_found_outlives_a_power_cut() -> None:
    """The last run was killed between the renaming and the fsync of the directory (S2)."""
    parts = {"state": b"x"}
    wanted = manifest_of(parts, SEGMENT, 10)

    async def killed(env: Env) -> None:
        catalog = SnapshotCatalog(env, "/", keep=3)
        await catalog.open()
        await catalog.publish(wanted, parts)
        await asyncio.Event().wait()

    async def opens(env: Env) -> None:
        catalog = SnapshotCatalog(env, "/", keep=3)
        await catalog.open()
        found.append([manifest.pos for manifest in catalog.manifests])
        await asyncio.Event().wait()

    found: list[list[int]] = []
    with World(1) as world:
        world.spawn(world.node("n0"), killed)
        disk = world.nodes["n0"].disk
        world.run_until(lambda: any(path.endswith(f"{SEGMENT:020d}/state") for path in disk.files()), 5)
        world.kill("n0")
        world.restart("n0", opens)
        world.run_for(1)
        assert found == [[SEGMENT]]
        world.power_cut("n0", "none")
        world.restart("n0", opens)
        world.run_for(1)
        assert found == [[SEGMENT], [SEGMENT]]


def test_a_snapshot_that_a_load_found_unreadable_does_not_stop_the_pruning(tmp_path: Path) -> None:
    async def scenario() -> None:
        catalog = SnapshotCatalog(production_env(), str(tmp_path), keep=3)
        await catalog.open()
        parts = {"state": b"x"}
        for place in (1, 2, 3):
            await catalog.publish(manifest_of(parts, place * SEGMENT, place * 10), parts)
        remove = catalog._remove

        async def remove_while_a_load_fails(pos: int) -> None:
            catalog._manifests.pop(2 * SEGMENT, None)
            await remove(pos)

        catalog._remove = remove_while_a_load_fails  # type: ignore[method-assign]
        await catalog.prune(3 * SEGMENT)
        assert [manifest.pos // SEGMENT for manifest in catalog.manifests] == [3]

    asyncio.run(scenario())


def test_a_store_without_any_way_back_says_what_to_do(tmp_path: Path) -> None:
    base, _ = filled(tmp_path / "dledger-n0", 3)
    said = encode_json({"pos": base.pos, "replace": False})
    (tmp_path / "dledger-n0" / BEGINS_FILE).write_bytes(said)
    config = NodeConfig(
        "g",
        "n0",
        {"n0": "127.0.0.1:1"},
        str(tmp_path),
        segment_size=SEGMENT,
        max_entry_bytes=16 * 1024,
        index_units_per_file=UNITS,
    )

    async def scenario() -> None:
        files = StoreFiles(production_env(), config)
        await files.save_identity(Identity("g", "n0", "i", SEGMENT))
        state = HardStateFile.open(production_env().files, config.node_dir)
        state.save(HardState(3, None))
        with pytest.raises(NodeFailed, match="refill it from its peers"):
            await Node(production_env(), config, ListHost()).run()

    asyncio.run(scenario())
