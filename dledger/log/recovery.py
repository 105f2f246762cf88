"""Recovery: which part of the log on disk a start trusts (safety.md S1, S2, S4, S5). Blocking; runs in a
worker.

The durable mark is the last index unit; everything up to it was fsynced. The walk starts at the segment that
holds the mark and accepts entry after entry as long as pos, index, term, body CRC and chain continue.

* Damage at or below the mark is corruption. It is never cut: those entries are *faulty*, the log continues
  behind them, and the node has them repaired by its peers. Damage above the mark is also corruption if the
  next entry continues its chain and the machine did not lose power, because a kill leaves no gaps.
* Other damage above the mark is a torn tail. It is cut if nobody can have been notified of those entries.
  This is certain if power was lost, or if the last run had noted that it was still writing them (a kill ends
  a write between two pages: decision 16).
* Where this cannot be decided (`doubt`), what cannot be trusted is cut. The node then neither votes nor
  stands for election until it has been refilled, as after a failed write (S3).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from dledger.formats.entry import (
    HEADER_SIZE,
    INDEX_UNIT,
    INDEX_UNIT_SIZE,
    MAGIC,
    CorruptEntry,
    EntryHeader,
    IndexUnit,
    Kind,
    check_entry,
    unpack_header,
)
from dledger.log.base import ORIGIN, LogBase
from dledger.log.index_files import IndexFiles
from dledger.log.recovery_scan import End, Place, Roll, Rot, Walker, chain_of, header_of, read_bytes
from dledger.log.segments import Segments
from dledger.log.terms import TermTable

_EVERYTHING = 1 << 62
_UNITS = 4096
_SECTOR = 512


class StoreDamaged(Exception):
    """Raised when too much is lost to determine what was there. The text says what is lost and what to do."""


@dataclass
class Recovered:
    """Result of recovery: the log as it was accepted."""

    first_index: int = 0
    last_index: int = -1
    last_term: int = -1
    last_chain: int | None = 0
    end_pos: int = 0
    terms: TermTable = field(default_factory=TermTable)
    mark: int = -1
    """Durable mark found: index of the last unit."""
    scanned: list[int] = field(default_factory=list)
    """Starts of the segments that the walk went over. They must be fsynced before any peer message (S2)."""
    scanned_from: int = 0
    """First entry of the walk. Index units from this entry on may have been read from the page cache only
    (S2)."""
    missing_units: list[tuple[int, bytes]] = field(default_factory=list)
    """(first index, units) of scanned entries whose index unit is missing or differs."""
    missing_blanks: list[int] = field(default_factory=list)
    """Offsets where the blank tail of a segment must be written again."""
    stale_segments: list[int] = field(default_factory=list)
    """Segments behind the end of the log."""
    configs: list[int] = field(default_factory=list)
    """Indexes of configuration entries in the scanned segments."""
    faulty: list[tuple[int, int]] = field(default_factory=list)
    """Corrupt entries, as ranges."""
    cut: str = ""
    """Reason why the log ends where it does, if something was cut; otherwise empty."""
    doubt: str = ""
    """Reason why more than a torn tail may be lost; otherwise empty. With a reason, the node must be refilled
    before it votes."""


def choose_base(
    segments: Segments,
    index: IndexFiles,
    mark: IndexUnit | None,
    bases: Mapping[int, LogBase],
    begins: int | None,
) -> LogBase:
    """Choose what lies before the log, given the durable mark and the store's snapshots by pos.

    `begins` is where the log begins, if the store has recorded it. Otherwise the log begins with its first
    segment, unless the index shows that the true first segment is lost. Without any segment it begins at the
    newest snapshot.
    """
    starts = segments.starts
    if begins is not None:
        return bases.get(begins) or LogBase(-1, -1, begins, None)
    if not starts:
        return bases[max(bases)] if bases and mark is None else ORIGIN
    if starts[0] == 0 or _is_first_lost(index, starts[0]):
        return ORIGIN
    return bases.get(starts[0]) or LogBase(-1, -1, starts[0], None)


def missing_segments(
    segments: Segments, index: IndexFiles, mark: IndexUnit | None, base: LogBase
) -> list[int]:
    """Starts of segment files that should exist and do not. They are in holes, or at the end up to the
    durable mark."""
    starts = segments.starts
    end = starts[-1] if starts else -1
    if mark is not None:
        end = max(end, _believable_start(segments, index, mark, base))
    return [start for start in range(base.pos, end + 1, segments.size) if not segments.has(start)]


def _is_first_lost(index: IndexFiles, first_start: int) -> bool:
    """Whether the first segment was lost, and not retired. This is so if the first units of the index, two of
    which continue each other, are of entries before the first segment that is there."""
    before: IndexUnit | None = None
    for unit in index.units(0, _UNITS) if first_start > 0 else ():
        if unit is not None and before is not None and before.pos + before.size == unit.pos < first_start:
            return True
        before = unit
    return False


def _believable_start(segments: Segments, index: IndexFiles, mark: IndexUnit, base: LogBase) -> int:
    """Start of the segment that holds the mark. It is confirmed by two units that continue each other (one
    may be corrupt), or by the beginning of the log."""
    after = mark
    if mark.index == base.index + 1:
        return base.pos if mark.pos == base.pos else -1
    for unit in reversed(index.units(max(0, mark.index - _UNITS), min(_UNITS, mark.index))):
        if unit is not None and after is not None:
            following = segments.start_of(unit.pos) + segments.size
            if after.pos in (unit.pos + unit.size, following):
                return segments.start_of(after.pos)
        if unit is not None:
            after = unit
    return -1


def recover(
    segments: Segments,
    index: IndexFiles,
    mark: IndexUnit | None,
    *,
    power_lost: bool,
    discard_above_mark: bool = False,
    base: LogBase = ORIGIN,
    written: int | None = None,
) -> Recovered:
    """Find the end of the log.

    * `mark`: the last index unit.
    * `base`: what lies before the first segment (`choose_base`).
    * `power_lost`: whether the machine was started anew since the store was last open.
    * `written`: index up to which the last run may have notified others of entries; None if that is not
      known.
    """
    result = Recovered(base.index + 1, base.index, base.term, base.chain, base.pos)
    starts = segments.starts
    if not starts:
        return result
    result.mark = mark.index if mark else -1
    first = _first_index(segments, index, starts[0], mark, base)
    if first is None:
        result.end_pos = starts[0]
        result.stale_segments = starts[1:]
        _refuse_to_forget(segments, mark, result)
        return result
    result.first_index = first
    origin = Place(base.index, base.term, base.pos, base.chain)
    if not base.known:
        origin = Place(first - 1, -1, starts[0], 0 if first == 0 else None)
    at = origin
    if mark is not None:
        headless = _first_headless(segments, starts, mark)
        upto = mark if headless is None else _unit_before(index, mark, headless)
        if upto is not None:
            at = _last_whole_segment(segments, index, upto, origin, result) or at
    if at.index < first:
        result.terms = TermTable()
    walker = Walker(
        segments, index, result.mark if mark else first - 1, power_lost=power_lost, written=written
    )
    _Walk(segments, walker, result, discard=discard_above_mark).go(at)
    last_start = segments.start_of(max(result.end_pos - 1, 0)) if result.last_index >= 0 else starts[0]
    result.stale_segments = [start for start in starts if start > last_start and start >= result.end_pos]
    _refuse_to_forget(segments, mark, result)
    return result


REFILL_ADVICE = (
    "delete this node's store directory and restart it to refill it from its peers, or restore a backup"
)


def _refuse_to_forget(segments: Segments, mark: IndexUnit | None, result: Recovered) -> None:
    """Raise StoreDamaged if there is no index, but a later segment shows that there were durable entries.

    A segment is begun only when all units of the segment before it are durable. Only an interrupted cut of
    the whole log leaves segments without units; then exactly the header of the first entry is blank (S1).
    """
    if mark is not None or not result.stale_segments:
        return
    if result.stale_segments == segments.starts[:1] and not _begins_whole(segments, result):
        return  # no other segment shows that entries were here: a torn write, or no write at all
    heads = {
        start: unpack_header(read_bytes(segments, start, HEADER_SIZE)) for start in result.stale_segments
    }
    there = [head.index for start, head in heads.items() if head.magic == MAGIC and head.pos == start]
    cut = read_bytes(segments, result.end_pos, _SECTOR)
    if result.last_index < result.first_index and not any(cut[:HEADER_SIZE]) and any(cut[HEADER_SIZE:]):
        return
    known = max([result.last_index + 1, *there])
    raise StoreDamaged(
        f"the index is lost and the log is corrupt at entry {result.last_index + 1}, although it had "
        f"entries up to {known} or further: {REFILL_ADVICE}"
    )


def _begins_whole(segments: Segments, result: Recovered) -> bool:
    """Whether the entry at the end of the log is whole in itself. Then only something before it can be
    wrong."""
    size = unpack_header(read_bytes(segments, result.end_pos, HEADER_SIZE)).size
    if not HEADER_SIZE <= size <= segments.size:
        return False
    try:
        data = read_bytes(segments, result.end_pos, size)
        check_entry(data, 0, result.last_index + 1, result.end_pos, -1, None)
    except CorruptEntry:
        return False
    return True


def _first_index(
    segments: Segments, index: IndexFiles, start: int, mark: IndexUnit | None, base: LogBase
) -> int | None:
    """Index of the first entry; None when the log has no entry at all."""
    try:
        head = segments.pread(start, HEADER_SIZE)
        blank = not any(head)
    except OSError:  # it is not known what is there: the walk looks again
        head, blank = bytes(HEADER_SIZE), False
    header = unpack_header(head)
    if base.known and start > 0:
        there = header.magic == MAGIC and header.pos == start
        if there and header.index != base.index + 1:
            raise StoreDamaged(
                f"{segments.path(start)} begins with entry {header.index}, but its snapshot ends with "
                f"entry {base.index}: {REFILL_ADVICE}"
            )
        return None if blank and mark is None else base.index + 1
    if header.magic == MAGIC and header.pos == start and (start > 0 or header.index == 0):
        return header.index
    if start == 0:
        return None if blank and mark is None else 0
    if mark is None:
        return None
    for first in range(0, mark.index + 1, _UNITS):
        for unit in index.units(first, _UNITS):
            if unit is not None and unit.pos == start:
                return unit.index
    raise StoreDamaged(f"no entry at the start of {segments.path(start)}: {REFILL_ADVICE}")


def _last_whole_segment(
    segments: Segments, index: IndexFiles, mark: IndexUnit, origin: Place, result: Recovered
) -> Place | None:
    """Find the last segment up to the mark that has an entry, and return the place before its first entry.
    None if everything must be walked.

    Fills `result.terms` with the terms of all entries before that place.
    """
    first = origin.index + 1
    found = _last_found(segments, index, mark, first)
    if found is None or not index.is_complete(first, found.index):
        return None
    begin = segments.start_of(found.pos)
    head = index_at = None
    data = read_bytes(segments, begin, HEADER_SIZE)
    head = unpack_header(data)
    unit = index.unit(head.index) if head.magic == MAGIC and head.pos == begin else None
    if unit is not None and unit.pos == begin:
        index_at = head.index
    else:
        index_at = _first_by_units(index, found, begin, first)
    if index_at is None or not first <= index_at <= found.index:
        return None
    if not _terms_before(segments, index, first, index_at, result.terms):
        return None  # units are missing: walk everything and write them anew
    if index_at == first:
        return origin
    term = result.terms.term_of(index_at - 1)
    chain = chain_of(segments, index, index_at - 1, first, origin.chain)
    return Place(index_at - 1, -1 if term is None else term, begin, chain)


def _first_headless(segments: Segments, starts: list[int], mark: IndexUnit) -> int | None:
    """The first segment up to the mark that does not begin with an entry, for example one that was lost and
    made anew."""
    for start in starts:
        header = unpack_header(read_bytes(segments, start, HEADER_SIZE))
        if start <= mark.pos and (header.magic != MAGIC or header.pos != start):
            return start
    return None


def _unit_before(index: IndexFiles, mark: IndexUnit, start: int) -> IndexUnit | None:
    """The unit of the last entry that lies before a segment."""
    last = mark.index
    while last >= 0:
        count = min(_UNITS, last + 1)
        for unit in reversed(index.units(last - count + 1, count)):
            if unit is not None and unit.pos < start:
                return unit
        last -= count
    return None


def _last_found(segments: Segments, index: IndexFiles, mark: IndexUnit, first: int) -> IndexUnit | None:
    """The last unit up to the mark whose entry is at the position in the unit."""
    last = mark.index
    while last >= first:
        count = min(_UNITS, last - first + 1)
        for unit in reversed(index.units(last - count + 1, count)):
            if unit is not None and header_of(segments, unit) is not None:
                return unit
        last -= count
    return None


def _first_by_units(index: IndexFiles, found: IndexUnit, begin: int, first: int) -> int | None:
    last = found.index
    while last >= first:
        count = min(_UNITS, last - first + 1)
        for unit in reversed(index.units(last - count + 1, count)):
            if unit is None or unit.pos < begin:
                return None
            if unit.pos == begin:
                return unit.index
        last -= count
    return None


def _terms_before(segments: Segments, index: IndexFiles, first: int, stop: int, terms: TermTable) -> bool:
    """Find the terms of entries `first..stop - 1` by bisection over the units. Returns False if a unit is
    missing or wrong."""
    at = first
    while at < stop:
        unit = index.unit(at)
        if unit is None or header_of(segments, unit) is None:
            return False
        if (known := terms.term_of(at - 1)) is not None and unit.term < known:
            return False
        terms.add(at, unit.term)
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
        end = index.unit(low)
        if end is None or header_of(segments, end) is None:
            return False
        at = low + 1
    return True


class _Walk:
    """The walk from the beginning of a segment to the end of the log."""

    def __init__(self, segments: Segments, walker: Walker, result: Recovered, *, discard: bool) -> None:
        self._segments = segments
        self._walker = walker
        self._result = result
        self._discard = discard
        self._batch: tuple[int, int] | None = None
        """(first index, entries still to come) of a client batch that is not complete yet."""
        self._pending: list[tuple[int, int]] = []
        """Faulty ranges whose terms are decided by the next entry that can be trusted."""
        self._claims: list[tuple[int, int]] = []
        """(index, term) of the entries in the ranges of `_pending`, as their index units say."""
        self._before_pending: Place | None = None
        """The place before the first range of `_pending`."""
        self._before_roll: dict[int, Place] = {}
        """Maps the last entry of each finished segment to the position where that entry ends."""
        self._term = -1
        self._units: list[bytes] = []
        self._units_first = -1

    def go(self, at: Place) -> None:
        """Walk to the end of the log, and fill the result."""
        result, walker = self._result, self._walker
        self._term = at.term
        if at.index + 1 == result.first_index and at.term >= 0:
            # The walk notes only changes of the term, and the first entry may have the term of the snapshot.
            result.terms.add(result.first_index, at.term)
        result.scanned.append(self._segments.start_of(at.pos))
        result.scanned_from = at.index + 1
        while True:
            begin = at
            stop = walker.mark if self._discard else _EVERYTHING
            at = walker.run(begin, stop, _EVERYTHING, self._note, self._misfit)
            self._resolve(at.index - 1, at.term)
            if self._discard and at.index >= walker.mark:
                result.cut = "an earlier write or fsync failed: entries above the durable mark are discarded"
                break
            met = walker.obstacle(at)
            if isinstance(met, End):
                result.cut = met.reason
                result.doubt = met.reason if met.doubt else ""
                break
            if isinstance(met, Roll):
                self._before_roll[at.index] = at
                if not met.blank_fits:
                    result.missing_blanks.append(at.pos)
                start = self._segments.start_of(met.place.pos)
                if start not in result.scanned:
                    result.scanned.append(start)
            else:
                self._rot(at, met)
            at = met.place
        self._finish(begin, at)

    def _note(self, header: EntryHeader) -> None:
        result, walker = self._result, self._walker
        self._resolve(header.index - 1, header.term)
        if header.term > self._term or header.index == result.first_index:
            result.terms.add(header.index, header.term)
            self._term = header.term
        if header.kind == Kind.CONFIG:
            result.configs.append(header.index)
        left = header.batch_remaining
        if self._batch is not None and self._batch[1] == left + 1 and header.index == walker.mark + 1:
            walker.mark += 1  # the rest of a client batch was fsynced together with its beginning
        if left == 0:
            self._batch = None
        else:
            self._batch = (header.index if self._batch is None else self._batch[0], left)

    def _misfit(self, header: EntryHeader) -> None:
        if self._units_first < 0 or self._units_first + len(self._units) != header.index:
            self._flush_units()
            self._units_first = header.index
        self._units.append(INDEX_UNIT.pack(MAGIC, header.pos, header.size, header.index, header.term))

    def _flush_units(self) -> None:
        if self._units:
            self._result.missing_units.append((self._units_first, b"".join(self._units)))
        self._units, self._units_first = [], -1

    def _rot(self, at: Place, rot: Rot) -> None:
        first, last = at.index + 1, rot.place.index
        faulty = self._result.faulty
        if faulty and faulty[-1][1] == at.index:
            first = faulty.pop()[0]
        faulty.append((first, last))
        self._batch = None
        start = self._segments.start_of(rot.place.pos - 1)
        if start not in self._result.scanned:
            self._result.scanned.append(start)
        if not rot.certain:
            self._before_pending = self._before_pending or at
            self._pending.append((at.index + 1, last))
            self._claims += rot.terms
            return
        for index, term in rot.terms:
            self._resolve(index - 1, term)
            if term > self._term or index == self._result.first_index:
                self._result.terms.add(index, term)
                self._term = term

    def _resolve(self, index: int, term: int) -> None:
        """Decide the terms of the faulty entries in `_pending`, because entry `index + 1` with this `term`
        can be trusted."""
        if not self._pending or index < self._pending[-1][1]:
            return
        claims = self._agreeing(term)
        expected = self._pending[0][0]
        for claimed, of_term in [*claims, (self._pending[-1][1] + 1, term)]:
            if of_term > self._term and claimed > expected:
                raise StoreDamaged(
                    f"entries {expected}..{claimed - 1} are lost, and with them the beginning of term "
                    f"{of_term}: {REFILL_ADVICE}"
                )
            if of_term > self._term and claimed <= self._pending[-1][1]:
                self._result.terms.add(claimed, of_term)
                self._term = of_term
            expected = claimed + 1
        self._pending, self._claims, self._before_pending = [], [], None

    def _agreeing(self, bound: int | None) -> list[tuple[int, int]]:
        """Items of `_claims` that do not contradict the units around them. One of the units may be
        corrupt."""
        kept = []
        before = self._term
        for place, (index, term) in enumerate(self._claims):
            after = self._claims[place + 1][1] if place + 1 < len(self._claims) else bound
            if before <= term and (after is None or term <= after or term == before):
                kept.append((index, term))
                before = term
        return kept

    def _resolve_at_end(self, at: Place) -> Place:
        """Decide where the log ends if its last entries are faulty and the term of the last one is not
        certain."""
        if not self._pending:
            return at
        last = self._pending[-1][1]
        claims = self._agreeing(None)
        terms = [term for index, term in claims if index >= last - 1]
        sure = (
            bool(claims) and claims[-1][0] == last and (terms[-1] == self._term or terms.count(terms[-1]) > 1)
        )
        if sure:
            self._resolve(last, claims[-1][1])
            return at
        place = self._before_pending
        assert place is not None
        self._result.doubt = self._result.doubt or f"the term of entry {last} is not certain"
        self._result.cut = self._result.cut or self._result.doubt
        self._result.faulty = [(first, end) for first, end in self._result.faulty if first <= place.index]
        self._pending, self._claims, self._before_pending = [], [], None
        return place

    def _finish(self, begin: Place, at: Place) -> None:
        result = self._result
        if self._batch is not None:
            whole = self._batch[0] - 1
            reason = f"client batch ends after index {whole}, its rest is missing"
            if at.index <= self._walker.mark:
                result.doubt = result.doubt or reason
            result.cut = reason
            again = Walker(self._segments, self._walker.index, self._walker.mark, power_lost=False)
            nobody = _ignore
            at = begin if whole <= begin.index else again.run(begin, whole, _EVERYTHING, nobody, nobody)
        at = self._resolve_at_end(at)
        # Where nothing that is kept lies behind a roll it is undone, as where the next segment begins with
        # nothing (S5). Else this log would go on elsewhere than those of peers that kept as much.
        at = self._before_roll.get(at.index, at)
        result.missing_blanks = [pos for pos in result.missing_blanks if pos < at.pos]
        self._flush_units()
        result.missing_units = [
            (first, packed[: (at.index + 1 - first) * INDEX_UNIT_SIZE])
            for first, packed in result.missing_units
            if first <= at.index
        ]
        result.terms.truncate(at.index + 1)
        result.configs = [config for config in result.configs if config <= at.index]
        result.faulty = [(first, min(last, at.index)) for first, last in result.faulty if first <= at.index]
        result.last_index = at.index
        if at.index >= result.first_index:
            term = result.terms.term_of(at.index)
            result.last_term = -1 if term is None else term
        result.last_chain = at.chain if at.index >= 0 else 0
        result.end_pos = at.pos


def _ignore(header: EntryHeader) -> None:
    """Do nothing, because a second walk reports nothing new."""
