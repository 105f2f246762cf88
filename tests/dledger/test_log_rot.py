"""Whatever rots in a store: nothing false is believed, nothing durable is cut, and a copy mends it (S4)."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import random
import shutil
from bisect import bisect_right
from pathlib import Path

import pytest
import test_log_store
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from test_log_store import SEGMENT, Session, faulty, fill, forget_units, overwrite, position, use

from dledger.formats.entry import (
    HEADER_SIZE,
    INDEX_UNIT,
    INDEX_UNIT_SIZE,
    MAGIC,
    Kind,
    encode_entry,
    unpack_header,
)
from dledger.log import recovery_scan as walk
from dledger.log.reader import _may_hold
from dledger.log.reading import Rotten
from dledger.log.recovery import StoreDamaged
from dledger.log.recovery_scan import read_bytes
from dledger.log.repair_writer import Unfitting
from dledger.log.scrub import Scrubber
from dledger.log.segments import Segments

pytestmark = pytest.mark.usefixtures("index_in_memory")

COUNT = 900
TERM_EVERY = 97
UNITS = 512


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of several segments, index files and terms, closed in order."""
    directory = tmp_path_factory.mktemp("pristine")

    async def work(session: Session) -> None:
        for index in range(0, COUNT, 10):
            session.term = 1 + index // TERM_EVERY
            bodies = [b"%d " % (index + n) + bytes([n]) * (60 + (index + n) % 300) for n in range(10)]
            session.append(bodies, batch=index % 70 == 0)
            await session.durable()

    use(directory, work)
    return directory


async def copies(session: Session) -> list[bytes]:
    """All entries as they should be."""
    log = session.log
    return [(await log.read_range(index, index))[0][: log.locate(index)[1]] for index in range(COUNT)]


class Entries(list[bytes]):
    """Whole entries by index."""

    def __repr__(self) -> str:
        return f"<{len(self)} entries>"


@pytest.fixture(scope="module")
def entries(pristine: Path) -> Entries:
    found = Entries()

    async def work(session: Session) -> None:
        found.extend(await copies(session))

    use(pristine, work)
    return found


def term_at(index: int) -> int:
    return 1 + index // 10 * 10 // TERM_EVERY


def places(directory: Path) -> tuple[list[Path], list[Path]]:
    return sorted((directory / "data").iterdir()), sorted((directory / "index").iterdir())


def damage(directory: Path, kind: str, where: float, size: int) -> None:
    """Flip a bit or zero a few bytes somewhere in the data or the index."""
    data, index = places(directory)
    files = data if "data" in kind else index
    file = files[int(where * len(files)) % len(files)]
    used = SEGMENT if "data" in kind else min(COUNT * INDEX_UNIT_SIZE, UNITS * INDEX_UNIT_SIZE)
    offset = int(where * 7919 * used) % (used - size)
    content = file.read_bytes()[offset : offset + size]
    if "zero" in kind:
        overwrite(file, offset, bytes(size))
    else:
        overwrite(file, offset, bytes([content[0] ^ 1 << size % 8]))


DAMAGE = st.lists(
    st.tuples(
        st.sampled_from(["flip data", "flip index", "zero data", "zero index"]),
        st.floats(0, 1, exclude_max=True),
        st.integers(1, 600),
    ),
    min_size=1,
    max_size=6,
)


async def heal(session: Session, entries: Entries) -> None:
    """What the repairer does, with the pristine entries as the peer."""
    log = session.log
    for _ in range(20):
        for first, last in log.suspects:
            await log.examine(first, last)
        for first, last in log.faulty:
            for index in range(first, last + 1):
                if index in log.faulty:
                    try:
                        await log.mend(index, index, entries[index])
                    except Unfitting:
                        continue
        if not log.faulty:
            return


def last_told(directory: Path) -> int:
    """The last entry that the index knows of: damage behind it may be a torn tail."""
    _, files = places(directory)
    units = [unit for file in files for unit in INDEX_UNIT.iter_unpack(file.read_bytes())]
    return max(place for place, unit in enumerate(units) if unit[0] == MAGIC and unit[3] == place)


@settings(
    max_examples=15,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(damages=DAMAGE, power_lost=st.booleans(), lose_segment=st.booleans())
@example(
    damages=[("zero index", 0.9558278779003858, 529)], power_lost=False, lose_segment=True
)  # cut back to the start of a segment
def test_whatever_rots_nothing_false_is_believed_and_a_copy_mends_it(
    tmp_path_factory: pytest.TempPathFactory,
    pristine: Path,
    entries: Entries,
    damages: list[tuple[str, float, int]],
    power_lost: bool,
    lose_segment: bool,
) -> None:
    directory = tmp_path_factory.mktemp("rot") / "store"
    shutil.copytree(pristine, directory)
    for kind, where, size in damages:
        damage(directory, kind, where, size)
    if lose_segment:
        data, _ = places(directory)
        data[int(damages[0][1] * len(data))].unlink()
    told = last_told(directory)
    doubts: list[str] = []

    async def note(reason: str) -> None:
        doubts.append(reason)

    async def work() -> None:
        log = test_log_store.new_store(directory)
        try:
            await log.open(power_lost=power_lost, discard_above_mark=False, on_doubt=note)
            session = Session(log)
            assert log.last_index >= told or doubts, "something durable was cut in silence"
            for index in range(log.last_index + 1):
                assert log.term_of(index) == term_at(index), index
            scrubber = Scrubber(log, bytes_per_s=1 << 40, pause_s=0)
            await scrubber._pass()
            for _ in range(3):
                await heal(session, entries)
                assert not list(log.faulty)
                await scrubber._pass()
            assert not list(log.faulty)
            for index in range(log.last_index + 1):
                data, _ = await log.read_range(index, index)
                assert data[: log.locate(index)[1]] == entries[index]
        finally:
            await log.close()

    try:
        asyncio.run(work())
    except StoreDamaged:
        assert len(damages) > 1 or lose_segment, "one fault alone must not need an operator"


async def fill_terms(session: Session) -> None:
    for place in range(30):
        session.term = 1 + place // 7
        session.append([b"%d " % place + bytes([place]) * (40 + place)])
        await session.durable()


async def check_terms(session: Session) -> None:
    assert session.log.last_index == 29
    assert [session.log.term_of(place) for place in range(30)] == [1 + place // 7 for place in range(30)]


async def fill_terms_as_before(session: Session) -> None:
    session.covers = False
    await fill_terms(session)


@pytest.mark.parametrize("covered", [True, False])
@pytest.mark.parametrize("index", range(30))
def test_a_flipped_batch_count_hides_no_change_of_terms(tmp_path: Path, index: int, covered: bool) -> None:
    """Found by damage aimed at changes of terms: all entries behind it were told to be of the term before."""
    use(tmp_path, fill_terms if covered else fill_terms_as_before)
    file, offset, _ = position(tmp_path, index)
    overwrite(file, offset + 35, b"\x01")
    if index < 29 or covered:
        use(tmp_path, check_terms)
    else:
        assert faulty(tmp_path)[1] == 28, "the rest of a batch at the end is missing: cut, with a doubt"


async def fill_uncovered(session: Session) -> None:
    """Entries of an older program: ten, a client batch 10..12, seven more."""
    session.covers = False
    for bodies in ([b"s" * 40] * 10, [b"b" * 40] * 3, [b"t" * 40] * 7):
        session.append(bodies, batch=len(bodies) == 3)
    await session.durable()


WRONG_COUNTS = [(4, 2, 4), (9, 7, 9), (10, 5, 10), (11, 7, 10), (12, 4, 11), (17, 5, 17)]
"""Whose count, what it is then, the first of the two that disagree: nobody can tell which is wrong."""


@pytest.mark.parametrize("power_lost", [True, False])
@pytest.mark.parametrize(("index", "count", "first"), WRONG_COUNTS)
def test_a_start_finds_counts_that_do_not_go_down_where_no_crc_covers_them(
    tmp_path: Path, index: int, count: int, first: int, power_lost: bool
) -> None:
    use(tmp_path, fill_uncovered)
    file, offset, _ = position(tmp_path, index)
    overwrite(file, offset + 35, bytes([count]))
    assert faulty(tmp_path, power_lost=power_lost) == ([(first, first + 1)], 19)


@pytest.mark.parametrize("power_lost", [True, False])
def test_above_the_mark_such_a_batch_is_cut(tmp_path: Path, power_lost: bool) -> None:
    """After a mere crash with a doubt: what was written does not change by that."""
    use(tmp_path, fill_uncovered)
    file, offset, _ = position(tmp_path, 11)
    forget_units(tmp_path, 8)
    overwrite(file, offset + 35, b"\x07")
    doubts: list[str] = []

    async def note(reason: str) -> None:
        doubts.append(reason)

    async def work() -> None:
        log = test_log_store.new_store(tmp_path)
        await log.open(power_lost=power_lost, discard_above_mark=False, on_doubt=note)
        assert log.last_index == 9
        await log.close()

    asyncio.run(work())
    assert doubts == ([] if power_lost else ["client batch of entry 10 does not continue"])


@pytest.mark.parametrize(("index", "count", "first"), WRONG_COUNTS)
def test_the_scrub_finds_counts_that_do_not_go_down(
    tmp_path: Path, index: int, count: int, first: int
) -> None:
    use(tmp_path, fill_uncovered)
    file, offset, _ = position(tmp_path, index)

    async def work(session: Session) -> None:
        overwrite(file, offset + 35, bytes([count]))
        await Scrubber(session.log, bytes_per_s=1 << 40, pause_s=0)._pass()
        assert list(session.log.faulty) == [(first, first + 1)]

    use(tmp_path, work)


@pytest.mark.parametrize(("index", "count", "first"), WRONG_COUNTS)
def test_a_read_does_not_hand_out_counts_that_do_not_go_down(
    tmp_path: Path, index: int, count: int, first: int
) -> None:
    use(tmp_path, fill_uncovered)
    file, offset, _ = position(tmp_path, index)

    async def work(session: Session) -> None:
        log = session.log
        assert log.range_bytes(0, 19) is not None
        overwrite(file, offset + 35, bytes([count]))
        assert log.range_bytes(0, 19) is None
        with pytest.raises(Rotten, match="client batch does not continue"):
            await log.read_range(0, 19)
        assert list(log.faulty) == [(first, first + 1)]
        assert not log.suspects, "an examination of one of the two would acquit it"
        assert log.range_bytes(first + 2, 19) is not None, "what lies behind is handed out"

    use(tmp_path, work)


@pytest.mark.parametrize(("index", "rotten"), [(441, (441, 442)), (499, (499, 499))])
def test_a_read_does_not_look_for_the_rest_of_a_batch_where_it_cannot_be(
    tmp_path: Path, index: int, rotten: tuple[int, int]
) -> None:
    """Behind the end of the segment, or of the log."""

    async def singles(session: Session) -> None:
        session.covers = False
        session.append([b"s" * 100] * 500)
        await session.durable()

    use(tmp_path, singles)
    file, offset, _ = position(tmp_path, index)
    assert position(tmp_path, 442)[1] == 0, "the last entry of the first segment is 441"

    async def work(session: Session) -> None:
        overwrite(file, offset + 35, b"\x03")
        with pytest.raises(Rotten, match="client batch does not continue"):
            await session.log.read_range(index, index)
        assert list(session.log.faulty) == [rotten]

    use(tmp_path, work)


@pytest.mark.parametrize("index", [0, 7, 14, 13])
@pytest.mark.parametrize(
    ("entry", "behind"),
    [
        ([(3, 1)], 70),  # found by 600 random examples: the magic; the unit's term and the units behind
        ([(28, 1), (44, 16)], 0),  # found by damaging both at one entry: pos, size and some of the body
        ([(16, 8)], 0),  # both terms
        ([(24, 24)], 0),  # both CRCs
        ([(27, 100)], 0),  # those and the body
        ([(0, 48)], 70),  # all but the body
        ([(14, 200)], 70),  # that, too
    ],
)
def test_the_term_of_a_rotten_entry_is_right_or_not_told(
    tmp_path: Path, index: int, entry: list[tuple[int, int]], behind: int
) -> None:
    """Zeros in an entry at a change of terms, `(offset, bytes)`; in its unit another term, zeros behind."""
    use(tmp_path, fill_terms)
    file, offset, _ = position(tmp_path, index)
    (index_file,) = (tmp_path / "index").iterdir()
    term = 1 + index // 7
    for at, size in entry:
        overwrite(file, offset + at, bytes(size))
    for wrong in (term - 1, term + 1):
        overwrite(index_file, index * INDEX_UNIT_SIZE + 31, bytes([wrong]) + bytes(behind))
        shutil.rmtree(tmp_path / "again", ignore_errors=True)
        shutil.copytree(tmp_path / "data", tmp_path / "again" / "data")
        shutil.copytree(tmp_path / "index", tmp_path / "again" / "index")
        with contextlib.suppress(StoreDamaged):
            use(tmp_path / "again", check_terms)


def test_what_was_cut_and_overwritten_in_part_is_no_rot(tmp_path: Path) -> None:
    """Entries of equal size replace cut ones: what is left behind them fits itself, but not the chain."""
    bodies = fill(tmp_path / "store", 60)

    async def cut(session: Session) -> None:
        await session.log.truncate(50)
        session.append([b"n" * 100])
        await session.durable()
        shutil.copytree(tmp_path / "store", tmp_path / "killed")

    use(tmp_path / "store", cut, term=2)
    for power_lost in (False, True):
        shutil.rmtree(tmp_path / "again", ignore_errors=True)
        shutil.copytree(tmp_path / "killed", tmp_path / "again")
        found = test_log_store.read_all(tmp_path / "again", power_lost=power_lost)
        assert found == [*bodies[:50], b"n" * 100]


def test_a_damaged_end_that_nobody_can_judge_is_doubt(tmp_path: Path) -> None:
    """The last entry and its unit: torn or rotten? After a mere crash the node must be refilled."""
    fill(tmp_path, 50)
    file, offset, _ = position(tmp_path, 49)
    forget_units(tmp_path, 49)
    overwrite(file, offset + HEADER_SIZE, b"bad")
    doubts: list[str] = []

    async def note(reason: str) -> None:
        doubts.append(reason)

    async def work() -> None:
        log = test_log_store.new_store(tmp_path)
        await log.open(power_lost=False, discard_above_mark=False, on_doubt=note)
        assert log.last_index == 48
        await log.close()

    asyncio.run(work())
    assert doubts


@pytest.mark.parametrize("count", [443, 450])
def test_damage_where_a_segment_begins_is_judged_as_anywhere(tmp_path: Path, count: int) -> None:
    """Above the mark, after a mere crash: what a whole entry continues is rot, the very end is doubt."""
    fill(tmp_path, count)
    file, offset, _ = position(tmp_path, 442)
    assert (int(file.name), offset) == (SEGMENT, 0)
    forget_units(tmp_path, 442)
    overwrite(file, offset + HEADER_SIZE, b"bad")
    doubts: list[str] = []

    async def note(reason: str) -> None:
        doubts.append(reason)

    async def work() -> None:
        log = test_log_store.new_store(tmp_path)
        await log.open(power_lost=False, discard_above_mark=False, on_doubt=note)
        if count == 443:
            assert log.last_index == 441 and doubts
        else:
            assert log.last_index == 449 and list(log.faulty) == [(442, 442)] and not doubts
        await log.close()

    asyncio.run(work())


def test_a_copy_that_does_not_fit_is_refused(tmp_path: Path, pristine: Path, entries: Entries) -> None:
    directory = tmp_path / "store"
    shutil.copytree(pristine, directory)
    file, offset, _ = position(directory, 500)
    overwrite(file, offset + HEADER_SIZE, b"rot")

    async def work(session: Session) -> None:
        log = session.log
        log.note_damage(500, 500)
        await log.examine(500, 500)
        assert list(log.faulty) == [(500, 500)]
        other = bytearray(entries[500])
        other[HEADER_SIZE + 2] ^= 1
        header = unpack_header(entries[500])
        body, before = entries[500][HEADER_SIZE:], unpack_header(entries[499]).chain_crc
        wrong_term = encode_entry(500, header.term + 1, header.pos, body, before, Kind.MESSAGE)
        wrong_chain = encode_entry(500, header.term, header.pos, body[::-1], before ^ 1, Kind.MESSAGE)
        for copy, why in (
            (bytes(other), "body CRC"),
            (entries[501], "does not continue"),
            (entries[500][:-1], "does not continue"),
            (b"", "not in this log"),
            (wrong_term, "term"),
            (wrong_chain, "chain of entry 499"),
        ):
            with pytest.raises(Unfitting, match=why):
                await log.mend(500, 500, copy)
        with pytest.raises(Unfitting, match="not faulty"):
            await log.mend(501, 501, entries[501])
        await log.mend(500, 500, entries[500])
        assert not log.faulty

    use(directory, work)


def test_rot_is_never_handed_out(tmp_path: Path, pristine: Path) -> None:
    directory = tmp_path / "store"
    shutil.copytree(pristine, directory)
    file, offset, _ = position(directory, 300)
    overwrite(file, offset + HEADER_SIZE, b"rot")

    async def work(session: Session) -> None:
        log = session.log
        assert log.range_bytes(295, 305) is None
        with pytest.raises(Exception, match="entries 300"):
            await log.read_range(295, 305)
        assert list(log.faulty) == [(300, 300)]
        assert log.durable_index == 299, "what is not there is not acknowledged"
        pos, size = log.locate(300)
        assert log.view(pos, size) is None
        with pytest.raises(Exception, match="corrupt"):
            await log.read(pos, size)

    use(directory, work)


def lose_units(directory: Path, first: int, last: int) -> None:
    for index in range(first, last + 1):
        overwrite(
            directory / "index" / f"{index // UNITS * UNITS * INDEX_UNIT_SIZE:020d}",
            index % UNITS * INDEX_UNIT_SIZE,
            bytes(INDEX_UNIT_SIZE),
        )


@pytest.mark.parametrize("bad", [290, 300, 310])
def test_rot_whose_index_unit_is_lost_too_is_never_handed_out(
    tmp_path: Path, pristine: Path, bad: int
) -> None:
    directory = tmp_path / "store"
    shutil.copytree(pristine, directory)
    file, offset, _ = position(directory, bad)

    async def work(session: Session) -> None:
        log = session.log
        places = {index: log.locate(index) for index in range(285, 316)}
        overwrite(file, offset + HEADER_SIZE, b"rot")
        with pytest.raises(Rotten):
            await log.read_range(bad, bad)
        lose_units(directory, 290, 310)
        assert log.view(*places[bad]) is None
        with pytest.raises(Rotten) as told:
            await log.read(*places[bad])
        assert 289 <= told.value.first <= bad <= told.value.last <= 310
        for whole in (285, 289, 311, 315):
            assert log.view(*places[whole]) is not None
            assert unpack_header(await log.read(*places[whole])).index == whole

    use(directory, work)


def test_what_cannot_be_read_behind_lost_index_units_is_what_was_asked_for(
    tmp_path: Path, pristine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = tmp_path / "store"
    shutil.copytree(pristine, directory)

    async def work(session: Session) -> None:
        log = session.log
        lose_units(directory, 2, 4)

        def unreadable(pos: int, size: int) -> bytes:
            raise OSError(errno.EIO, "Input/output error")

        monkeypatch.setattr(log._segments, "pread", unreadable)
        with pytest.raises(Rotten):
            await log.read_range(6, 6)
        assert list(log.faulty) == [(6, 6)]

    use(directory, work)


@given(st.lists(st.integers(1, 9), min_size=1, max_size=60), st.data())
def test_the_entries_that_may_hold_a_byte_are_the_right_one_and_lost_ones_beside_it(
    sizes: list[int], data: st.DataObject
) -> None:
    begins = [sum(sizes[:n]) for n in range(len(sizes))]
    lost = data.draw(st.sets(st.sampled_from(range(len(sizes)))))
    pos = data.draw(st.integers(0, sum(sizes) - 1))
    right = bisect_right(begins, pos) - 1
    first, last = _may_hold(
        pos, 0, len(sizes) - 1, lambda index: None if index in lost else (begins[index], sizes[index])
    )
    assert first <= right <= last
    if right not in lost:
        assert (first, last) == (right, right) or (first == 0 and set(range(right)) <= lost)
    else:
        assert set(range(first + 1, last + 1)) <= lost and last - first <= len(lost)


@pytest.mark.parametrize("index", [0, 1, 300])
def test_a_rotten_chain_value_is_seen_where_a_read_begins(tmp_path: Path, index: int) -> None:
    """Found by simulation (profile rot, seed 21): nothing before the first entry of a read was looked at."""
    fill(tmp_path, 600)
    path, offset, _ = position(tmp_path, index)
    overwrite(path, offset + 36, bytes([path.read_bytes()[offset + 36] ^ 1]))

    async def work(session: Session) -> None:
        with pytest.raises(Rotten):
            await session.log.read_range(index, index)
        assert session.log.range_bytes(index, index) is None
        assert session.log.faulty.within(index, index) == index

    use(tmp_path, work)


def test_the_scrub_does_not_look_for_units_that_are_not_due(tmp_path: Path) -> None:
    """Found by simulation: units follow the fsync by one group, and a slow disk lets the scrub see that."""

    async def work(session: Session) -> None:
        log = session.log
        scrubber = Scrubber(log, bytes_per_s=1 << 40, pause_s=0)
        for number in range(30):
            session.append([bytes([number]) * 100] * 5)
            await session.durable()
            await scrubber._pass()
            assert not log.faulty
        assert scrubber.found == 0

    use(tmp_path, work)


@pytest.mark.parametrize("how", ["zeros", "noise", "missing"])
def test_a_lost_segment_is_not_read_again_for_each_of_its_entries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """Up to 4 MiB were, for the text that says why an entry is not believed."""
    fill(tmp_path, 1200)
    data, _ = places(tmp_path)
    if how == "missing":
        data[1].unlink()
    else:
        data[1].write_bytes(bytes(SEGMENT) if how == "zeros" else random.Random(1).randbytes(SEGMENT))
    read: list[int] = []

    def counting(segments: Segments, pos: int, size: int) -> bytes:
        found = read_bytes(segments, pos, size)
        read.append(len(found))
        return found

    monkeypatch.setattr(walk, "read_bytes", counting)
    found, last = faulty(tmp_path)
    lost = found[0][1] - found[0][0] + 1
    assert last == 1199 and lost > 400
    assert sum(read) < 10 * SEGMENT, f"{sum(read)} bytes for {lost} entries of a segment of {SEGMENT}"
