"""What a start believes of the log on disk (safety.md S1, S2, S4, S5). Blocking; runs in a worker.

The durable mark is the last index unit: everything up to it was fsynced. The scan starts at the segment
that holds the mark and believes entry after entry as long as pos, index, term, body CRC and chain continue.

* Damage at or below the mark is rot: never cut; the node refuses to start until its store is repaired.
* Damage above the mark is a torn tail and cut. If whole entries lie behind the damage, a machine that lost
  power may just have written them out of order; but after a mere restart of the process nothing can, so
  there it is rot too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from dledger.log.base import ORIGIN, LogBase, base_without_segments
from dledger.log.index_files import IndexFiles
from dledger.log.segments import Segments
from dledger.log.terms import TermTable
from formats.entry import (
    HEADER_SIZE,
    INDEX_UNIT,
    MAGIC,
    CorruptEntry,
    EntryHeader,
    IndexUnit,
    Kind,
    check_entry,
    is_blank,
    unpack_header,
)


class StoreDamaged(Exception):
    """Rot: entries that were durable cannot be read. The text says which and what to do."""


@dataclass
class Recovered:
    """The log as believed."""

    first_index: int = 0
    last_index: int = -1
    last_term: int = -1
    last_chain: int = 0
    end_pos: int = 0
    terms: TermTable = field(default_factory=TermTable)
    mark: int = -1
    """Durable mark found: index of the last unit."""
    scanned: list[int] = field(default_factory=list)
    """Starts of the segments walked: to be fsynced before any peer message (S2)."""
    scanned_from: int = 0
    """First entry walked: index units from it on may have been read from the page cache only (S2)."""
    missing_units: list[tuple[int, bytes]] = field(default_factory=list)
    """(first index, units) of scanned entries without an index unit."""
    stale_segments: list[int] = field(default_factory=list)
    """Segments behind the end."""
    configs: list[int] = field(default_factory=list)
    """Indexes of configuration entries in the scanned segments."""
    cut: str = ""
    """Why the log ends where it does, when it was a torn tail."""


@dataclass
class _Position:
    index: int
    term: int
    pos: int
    chain: int | None


def choose_base(segments: Segments, bases: Mapping[int, LogBase]) -> LogBase:
    """What lies before the first segment, given the snapshots of this store by pos."""
    if not segments.starts:
        return base_without_segments(bases)
    start = segments.first_start
    if start == 0:
        return ORIGIN
    head = unpack_header(segments.file(start).view())
    if head.magic != MAGIC or head.pos != start:
        return bases.get(start, LogBase(-1, -1, start, None))
    base = bases.get(start)
    if base is not None and base.index + 1 == head.index:
        return base
    return LogBase(head.index - 1, -1, start, None)


def recover(
    segments: Segments,
    index: IndexFiles,
    *,
    power_lost: bool,
    discard_above_mark: bool = False,
    base: LogBase = ORIGIN,
) -> Recovered:
    """Find the end of the log. `power_lost`: the machine was started anew since the store was last open.

    `base`: what lies before the first segment (`choose_base`).
    """
    result = Recovered(base.index + 1, base.index, base.term if base.known else -1, base.chain or 0, base.pos)
    starts = segments.starts
    mark = index.last_unit()
    if not starts:
        if mark is not None and mark.index > base.index:
            raise StoreDamaged(f"the index knows entry {mark.index}, but there is no segment: {_ADVICE}")
        return result
    result.mark = mark.index if mark else -1
    head = unpack_header(segments.file(starts[0]).view())
    if mark is None and (head.magic != MAGIC or head.pos != starts[0]):
        result.end_pos = starts[0]
        result.stale_segments = starts[1:]
        return result
    if head.magic != MAGIC or head.pos != starts[0]:
        raise StoreDamaged(f"no entry at the start of {segments.path(starts[0])}: {_ADVICE}")
    result.first_index = head.index
    begin = starts[0]
    if mark is not None:
        begin = segments.start_of(mark.pos)
        if not segments.has(begin):
            raise StoreDamaged(
                f"segment {segments.path(begin)} with entry {mark.index} is missing: {_ADVICE}"
            )
        if not _terms_before(segments, index, begin, result):
            begin = starts[0]  # units are missing: walk everything and write them anew
            result.terms = TermTable()
    _walk(segments, index, begin, mark, result, base, power_lost=power_lost, discard=discard_above_mark)
    last_start = segments.start_of(max(result.end_pos - 1, 0)) if result.last_index >= 0 else starts[0]
    result.stale_segments = [start for start in starts if start > last_start and start >= result.end_pos]
    return result


_ADVICE = "delete this node's store directory and restart it to refill it from its peers, or restore a backup"


def _terms_before(segments: Segments, index: IndexFiles, begin: int, result: Recovered) -> bool:
    """Terms of all entries before segment `begin`, from the index; False when units are missing."""
    stop = unpack_header(segments.file(begin).view()).index
    at = result.first_index
    while at < stop:
        unit = index.unit(at)
        if unit is None:
            return False
        result.terms.add(at, unit.term)
        low, high = at, stop - 1
        while low < high:
            middle = (low + high + 1) // 2
            probe = index.unit(middle)
            if probe is None:
                return False
            if probe.term == unit.term:
                low = middle
            else:
                high = middle - 1
        at = low + 1
    return True


def _before(segments: Segments, index: IndexFiles, begin: int, base: LogBase) -> _Position:
    head = unpack_header(segments.file(begin).view())
    if head.index <= base.index + 1:
        # The chain starts at the first entry of the log, or goes on behind the snapshot that it starts at.
        if head.index == base.index + 1 and base.known:
            return _Position(base.index, base.term, begin, base.chain)
        return _Position(head.index - 1, -1, begin, 0 if head.index == 0 else None)
    unit = index.unit(head.index - 1)
    if unit is None:
        return _Position(head.index - 1, -1, begin, None)
    previous = unpack_header(segments.pread(unit.pos, HEADER_SIZE))
    fits = previous.index == unit.index and previous.pos == unit.pos
    return _Position(unit.index, unit.term, begin, previous.chain_crc if fits else None)


def _walk(
    segments: Segments,
    index: IndexFiles,
    begin: int,
    mark: IndexUnit | None,
    result: Recovered,
    base: LogBase,
    *,
    power_lost: bool,
    discard: bool,
) -> None:
    at = _before(segments, index, begin, base)
    result.scanned_from = at.index + 1
    whole = at  # the end of the last whole client batch (S11)
    whole_chain = at.chain
    start = begin
    units: list[bytes] = []
    units_first = -1
    if mark is None:
        result.mark = result.first_index - 1
    result.scanned.append(start)
    while True:
        view = segments.file(start).view()
        offset = at.pos - start
        if discard and at.index >= result.mark and whole.index == at.index:
            result.cut = "a failed write or fsync: everything above the durable mark is discarded"
            break
        if is_blank(view, offset):
            following = start + segments.size
            if not segments.has(following) or not _begins(segments, following, at):
                break
            start = following
            at = _Position(at.index, at.term, start, at.chain)
            result.scanned.append(start)
            continue
        try:
            header = check_entry(view, offset, at.index + 1, at.pos, at.term, at.chain)
        except CorruptEntry as error:
            _judge_damage(view, offset, at, mark, error, power_lost)
            result.cut = str(error) if offset + 4 <= len(view) and any(view[offset : offset + 48]) else ""
            break
        if header.index == result.first_index or header.term > at.term:
            result.terms.add(header.index, header.term)
        if header.kind == Kind.CONFIG:
            result.configs.append(header.index)
        if index.unit(header.index) is None:
            if units_first < 0 or units_first + len(units) != header.index:
                if units:
                    result.missing_units.append((units_first, b"".join(units)))
                units, units_first = [], header.index
            units.append(INDEX_UNIT.pack(MAGIC, header.pos, header.size, header.index, header.term))
        at = _Position(header.index, header.term, at.pos + header.size, header.chain_crc)
        if header.batch_remaining == 0:
            whole, whole_chain = at, header.chain_crc
    if whole.index < at.index:
        result.cut = f"client batch ends after index {whole.index}, its rest is missing"
        at = whole
    if mark is not None and at.index < mark.index:
        raise StoreDamaged(f"the log ends at index {at.index}, but {mark.index} was durable: {_ADVICE}")
    if units:
        result.missing_units.append((units_first, b"".join(units)))
    result.missing_units = [
        (first, packed[: (at.index + 1 - first) * INDEX_UNIT.size])
        for first, packed in result.missing_units
        if first <= at.index
    ]
    result.terms.truncate(at.index + 1)
    result.configs = [config for config in result.configs if config <= at.index]
    result.last_index = at.index
    if at.index >= result.first_index:
        result.last_term = result.terms.term_of(at.index)  # type: ignore[assignment]
    result.last_chain = whole_chain or 0
    result.end_pos = at.pos


def _begins(segments: Segments, start: int, at: _Position) -> bool:
    """A blank tail is believed only if the next segment begins with the next entry (S5)."""
    try:
        check_entry(segments.file(start).view(), 0, at.index + 1, start, at.term, at.chain)
    except CorruptEntry:
        return False
    return True


def _judge_damage(
    view: memoryview,
    offset: int,
    at: _Position,
    mark: IndexUnit | None,
    error: CorruptEntry,
    power_lost: bool,
) -> None:
    """Raise StoreDamaged when the damage is rot; return when it is a torn tail (S4)."""
    if mark is not None and at.index + 1 <= mark.index:
        raise StoreDamaged(f"{error}, but entries up to {mark.index} were durable: {_ADVICE}") from error
    if power_lost:
        return
    header = unpack_header(view, offset) if offset + HEADER_SIZE <= len(view) else None
    if header is not None and _successor(view, offset, at, header):
        raise StoreDamaged(
            f"{error}, with a valid entry behind it although the machine did not lose power: {_ADVICE}"
        ) from error


def _successor(view: memoryview, offset: int, at: _Position, header: EntryHeader) -> bool:
    """Whether the entry behind a damaged one is the one that should follow."""
    if header.index != at.index + 1 or header.pos != at.pos or not 0 < header.size <= len(view) - offset:
        return False
    try:
        check_entry(view, offset + header.size, header.index + 1, header.pos + header.size, header.term, None)
    except CorruptEntry:
        return False
    return True
