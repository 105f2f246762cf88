"""Walking over the entries on disk, and over corrupt ones among them (safety.md S1, S4, S5). Blocking.

Recovery, the scrub and the examination before a repair read the log through a `Walker`. `run` goes over whole
entries. Where it stops, `obstacle` returns the reason:

* `Roll`: the segment ends here and the log continues in the next one.
* `Rot`: some entries were durable and can no longer be trusted; it says where the walk continues behind them.
* `End`: the log ends, either properly, or in a torn tail, or (`doubt`) so that torn and corrupt look the
  same.

How far corruption reaches follows from whatever is left: the header, when the chain fits it; the index unit;
the next entry that fits its own CRC and its own position. Bytes that were cut and not yet overwritten (S1)
look like entries that fit their own CRC but not the chain; they are not corruption.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from dledger.formats.checksum import crc32
from dledger.formats.entry import (
    CHAIN,
    COVERED,
    HEADER,
    HEADER_SIZE,
    INDEX_UNIT,
    INDEX_UNIT_SIZE,
    MAGIC,
    MAX_ENTRY_SIZE,
    MIN_BLANK_SIZE,
    CorruptEntry,
    EntryHeader,
    IndexUnit,
    check_entry,
    crc_begin,
    is_blank,
    unpack_header,
)
from dledger.log.index_files import IndexFiles
from dledger.log.reading import store_time_of
from dledger.log.segments import Segments

WINDOW = 4 * 1024 * 1024
"""Number of bytes read at once while walking. A larger entry is read whole."""
_UNITS = 4096
_MAGIC_BYTES = MAGIC.to_bytes(4, "big")


class Place(NamedTuple):
    """Position of a walk: the place behind entry `index`. `term` is that of the last entry that was
    accepted."""

    index: int  # type: ignore[assignment]  # tuple.index is not used
    term: int
    pos: int
    chain: int | None
    """Chain value of entry `index`; None when it cannot be known because the entry is corrupt."""


@dataclass(frozen=True)
class Roll:
    """Reason why a walk stops: the next entry begins the next segment."""

    place: Place
    blank_fits: bool
    """False when the blank tail of the segment is damaged."""


@dataclass(frozen=True)
class Rot:
    """Reason why a walk stops: entries up to `place.index` are faulty. The walk continues at `place`."""

    place: Place
    terms: list[tuple[int, int]]
    """(index, term) of faulty entries, as far as headers or index units say; of all of them if `certain`."""
    reason: str
    certain: bool = False
    """Whether the terms are proven: by the chain, or, for a single entry, by equal values in header and index
    unit."""


@dataclass(frozen=True)
class End:
    """Reason why a walk ends: no further entry is accepted. `reason` is empty if nothing of the log lies
    there (blank, recycled or cut bytes)."""

    reason: str
    doubt: bool = False


class Walker:
    """Walks over a log. Entries up to `mark` were durable, so damage among them is corruption. For
    `power_lost` and `written` see recovery.py."""

    def __init__(
        self,
        segments: Segments,
        index: IndexFiles,
        mark: int,
        *,
        power_lost: bool,
        written: int | None = None,
    ) -> None:
        self.mark = mark
        self._segments = segments
        self.index = index
        self._power_lost = power_lost
        self._written = written
        self._data = b""
        self._base = -1
        self._units = b""
        self._units_first = 0
        self._split = False

    # Whole entries

    def run(
        self,
        at: Place,
        stop: int,
        stop_pos: int,
        note: Callable[[EntryHeader], None],
        misfit: Callable[[EntryHeader], None],
    ) -> Place:
        """Go over whole entries of one segment. Stop after entry `stop`, or at the first entry that begins at
        `stop_pos` or later.

        `note` is called for entries that change the term or have a kind or a batch. `misfit` is called for
        entries whose index unit is missing or differs.
        """
        unpack, pack, unit_pack = HEADER.unpack_from, CHAIN.pack, INDEX_UNIT.pack
        index, term, pos, chain = at
        left = 0  # entries of the same client batch that follow
        before = at
        self._split = False
        data = self._window(pos, HEADER_SIZE)
        view = memoryview(data)
        while index < stop and pos < stop_pos:
            offset = pos - self._base
            if len(data) - offset < HEADER_SIZE:
                data = self._window(pos, HEADER_SIZE)
                view = memoryview(data)
                offset = pos - self._base
                if len(data) - offset < HEADER_SIZE:
                    break
            fields = unpack(data, offset)
            magic, size, entry_index, entry_term, entry_pos, channel, entry_chain, body_crc, body_size = (
                fields
            )
            if (
                magic != MAGIC
                or entry_index != index + 1
                or entry_pos != pos
                or entry_term < term
                or body_size < 0
                or size != body_size + HEADER_SIZE
                or size > MAX_ENTRY_SIZE
            ):
                break
            if len(data) - offset < size:
                data = self._window(pos, size)
                view = memoryview(data)
                offset = pos - self._base
                if len(data) - offset < size:
                    break
            if body_crc or entry_chain:
                begin = channel if channel & COVERED else 0
                if crc32(view[offset + HEADER_SIZE : offset + size], begin) != body_crc:
                    break
                if chain is not None and crc32(pack(entry_index, entry_term, body_crc), chain) != entry_chain:
                    break
            if left and channel & 0xFFFFFF != left - 1:
                # An older program wrote one of the two, so no CRC covers its count. Either may be corrupt.
                self._split = True
                return before
            special = channel & ~COVERED
            if special:
                before = Place(index, term, pos, chain)
            index += 1
            if self._unit_bytes(index) != unit_pack(MAGIC, pos, size, index, entry_term):
                misfit(EntryHeader._make(fields))
            if entry_term != term or special or left:
                note(EntryHeader._make(fields))
                left = channel & 0xFFFFFF
            term = entry_term
            chain = entry_chain
            pos += size
        return Place(index, term, pos, chain)

    # What stops a walk

    def obstacle(self, at: Place) -> Roll | Rot | End:
        """Return what stops the walk at `at`."""
        segments = self._segments
        wanted = at.index + 1
        start = segments.start_of(at.pos)
        following = start + segments.size
        durable = wanted <= self.mark
        if self._split:
            self._split = False
            return self._split_batch(at)
        head = self.peek(at.pos, HEADER_SIZE)
        unit = self._believable_unit(wanted, at)
        blank = is_blank(head, 0)
        moves_on = unit is not None and unit.pos == following
        if not durable:
            # Even if the blank tail is corrupt: a cut leaves no entry behind it that continues the log.
            if segments.has(following) and self._entry_at(following, wanted, at) is not None:
                return Roll(at._replace(pos=following), blank)
            return self._above_the_mark(at._replace(pos=following) if blank else at)
        if segments.has(following) and (blank or moves_on):
            return Roll(at._replace(pos=following), blank)
        reason = self._reason(at, wanted, head)
        header = unpack_header(head) if len(head) == HEADER_SIZE else None
        if header is not None and self._chain_fits(header, at, following):
            place = Place(wanted, header.term, at.pos + header.size, header.chain_crc)
            return Rot(place, [(wanted, header.term)], reason, certain=True)
        if unit is not None and unit.pos == at.pos:
            return self._rot_of_unit(at, header, unit, reason)
        if segments.has(following) and self._entry_at(following, wanted, at) is not None:
            return Roll(at._replace(pos=following), False)
        found = self._next_entry(at) or self._next_units(at)
        if found is None:
            return End(f"{reason}, and no entry up to {self.mark} can be trusted", doubt=True)
        if found.index < wanted:
            return Roll(found, True) if found.pos != at.pos else End(reason, doubt=True)
        return Rot(found, self._terms_of(wanted, found, at.term), reason)

    def _rot_of_unit(self, at: Place, header: EntryHeader | None, unit: IndexUnit, reason: str) -> Rot:
        """Result for one corrupt entry whose length is that in its index unit. Its term is decided
        separately."""
        wanted, end = at.index + 1, at.pos + unit.size
        proven = self._proven(at, header, unit)
        if proven is not None:
            return Rot(proven, [(wanted, proven.term)], reason, certain=True)
        place = Place(wanted, at.term, end, None)
        if header is not None and header.term == unit.term > 0:
            told = (unit.size, wanted, unit.term, at.pos)
            if header[1:5] == told and at.chain is not None and self._self_consistent(at.pos, header):
                # Only the chain field is corrupt: its value follows from the rest.
                chain = crc32(CHAIN.pack(wanted, unit.term, header.body_crc), at.chain)
                place = Place(wanted, unit.term, end, chain)
            return Rot(place, [(wanted, unit.term)], reason, certain=True)
        return Rot(place, [(wanted, unit.term)] if self._tells_term(at, header, unit) else [], reason)

    def _tells_term(self, at: Place, header: EntryHeader | None, unit: IndexUnit) -> bool:
        """Whether the unit's term is accepted without a proof, although units have no CRC.

        It is not accepted where the next unit is lost or contradicts it, as corruption seldom stops at the
        end of a unit. It is not accepted if it is 0, which corruption often leaves in header and unit. It is
        not accepted either if the header names another possible term.
        """
        behind: IndexUnit | None = unit
        if unit.index < self.mark:
            behind = self.index.unit(unit.index + 1)
        if behind is None or not (behind is unit or self._continues(unit, behind)):
            return False
        rival = header is not None and max(at.term, 1) <= header.term <= behind.term
        return unit.term > 0 and not rival

    def _proven(self, at: Place, header: EntryHeader | None, unit: IndexUnit) -> Place | None:
        """The place behind the next entry, if the chain proves the term of that entry. Everything else in the
        entry may be corrupt.

        A term (from the header, the unit or a neighbour) and a body CRC give a chain value. It must be the
        chain value in the entry, or the entry behind must continue it.
        """
        if at.chain is None or header is None:
            return None
        wanted, end = at.index + 1, at.pos + unit.size
        behind = unpack_header(self.peek(end, HEADER_SIZE).ljust(HEADER_SIZE, b"\0"))
        body_crc = crc32(self.peek(at.pos, unit.size)[HEADER_SIZE:], crc_begin(header.channel))
        for term in dict.fromkeys((header.term, unit.term, at.term, behind.term)):
            for crc in (header.body_crc, body_crc):
                chain = crc32(CHAIN.pack(wanted, term, crc), at.chain)
                place = Place(wanted, term, end, chain)
                if term >= at.term and (chain == header.chain_crc or self._goes_on(place)):
                    return place
        return None

    def _goes_on(self, place: Place) -> bool:
        """Whether a whole entry whose chain continues begins at `place`. (A store written by Apache has no
        chain.)"""
        header = self._entry_at(place.pos, place.index + 1, place)
        return header is not None and bool(header.chain_crc or header.body_crc)

    def _split_batch(self, at: Place) -> Rot | End:
        """Handle two neighbouring entries that disagree on the client batch that they belong to."""
        if at.index + 2 > self.mark:
            return End(
                f"client batch of entry {at.index + 1} does not continue", doubt=self._was_told(at.index + 1)
            )
        place = at
        terms = []
        for _ in range(2):
            header = unpack_header(self.peek(place.pos, HEADER_SIZE))
            place = Place(header.index, header.term, place.pos + header.size, header.chain_crc)
            terms.append((header.index, header.term))
        reason = f"client batch of entry {at.index + 1} does not continue"
        return Rot(place, terms, reason, certain=True)

    def _above_the_mark(self, at: Place) -> Rot | End:
        """Decide between a torn tail, a cut and corruption. If an entry behind continues the chain, it is
        corruption."""
        wanted = at.index + 1
        try:
            head = self._segments.pread(at.pos, HEADER_SIZE)
        except ValueError:  # the segment ends, or is not there
            return End("")
        except OSError as error:  # it is not known whether something was there
            return End(f"entry {wanted} cannot be read: {error}", doubt=self._was_told(wanted))
        if not any(head):
            return End("")
        header = unpack_header(head)
        reason = self._reason(at, wanted, head)
        fits = (header.magic == MAGIC) + (header.index == wanted) + (header.pos == at.pos)
        if fits < 2:
            return End("")  # bytes of a recycled segment
        room = self._segments.start_of(at.pos) + self._segments.size - at.pos
        if fits < 3 or not HEADER_SIZE <= header.size <= room or at.chain is None:
            return End(reason, doubt=self._was_told(wanted))
        chain = crc32(CHAIN.pack(wanted, header.term, header.body_crc), at.chain)
        continues = chain == header.chain_crc
        consistent = self._self_consistent(at.pos, header)
        if self._power_lost:
            # Torn, unless the entry is whole now: then it only could not be read a moment ago.
            return End(reason, doubt=continues and consistent)
        behind = Place(wanted, header.term, at.pos + header.size, chain)
        if header.term >= at.term and self._entry_at(behind.pos, wanted + 1, behind) is not None:
            return Rot(behind, [(wanted, header.term)], reason, certain=True)
        if (header.chain_crc or header.body_crc) and not continues and consistent:
            return End("")  # cut, and not yet overwritten (S1)
        return End(reason, doubt=self._was_told(wanted))

    def _was_told(self, index: int) -> bool:
        """Whether others may have been notified of this entry, which is above the mark."""
        return not self._power_lost and (self._written is None or index <= self._written)

    def _reason(self, at: Place, wanted: int, data: bytes) -> str:
        """Why the entry that begins with `data` is not accepted. Its body is read only where the header fits,
        because this runs for each entry of a lost segment."""
        if len(data) == HEADER_SIZE:
            header = unpack_header(data)
            if header.magic == MAGIC and (header.index, header.pos) == (wanted, at.pos):
                data = self.peek(at.pos, max(HEADER_SIZE, min(header.size, MAX_ENTRY_SIZE)))
        try:
            check_entry(data, 0, wanted, at.pos, at.term, at.chain)
        except CorruptEntry as error:
            return str(error)
        return f"unreadable at index {wanted}, pos {at.pos}"

    def _chain_fits(self, header: EntryHeader, at: Place, segment_end: int) -> bool:
        """Whether the header can be trusted although its body cannot."""
        return (
            at.chain is not None
            and header.magic == MAGIC
            and header.index == at.index + 1
            and header.pos == at.pos
            and header.term >= at.term
            and header.size == header.body_size + HEADER_SIZE
            and HEADER_SIZE <= header.size <= segment_end - MIN_BLANK_SIZE - at.pos
            and bool(header.chain_crc or header.body_crc)
            and crc32(CHAIN.pack(header.index, header.term, header.body_crc), at.chain) == header.chain_crc
        )

    def _self_consistent(self, pos: int, header: EntryHeader) -> bool:
        try:
            check_entry(self.peek(pos, header.size), 0, header.index, pos, -1, None)
        except CorruptEntry:
            return False
        return True

    def _entry_at(self, pos: int, index: int, at: Place) -> EntryHeader | None:
        """The entry `index` at `pos`, if it is whole and follows `at`; otherwise None."""
        head = self.peek(pos, HEADER_SIZE)
        if len(head) < HEADER_SIZE:
            return None
        size = unpack_header(head).size
        if not HEADER_SIZE <= size <= MAX_ENTRY_SIZE:
            return None
        try:
            return check_entry(self.peek(pos, size), 0, index, pos, at.term, at.chain)
        except CorruptEntry:
            return None

    def _next_entry(self, at: Place) -> Place | None:
        """The place before the next entry that fits its own CRC and position. The entry is searched behind
        `at`, and not beyond the mark."""
        segments = self._segments
        start = segments.start_of(at.pos)
        for begin in [start, *(other for other in segments.starts if other > start)]:
            pos = at.pos + 1 if begin == start else begin
            found = self._search(pos, begin + segments.size, at)
            if found is not None:
                return found
        return None

    def _search(self, pos: int, end: int, at: Place) -> Place | None:
        piece = 64 * 1024
        while pos < end:
            data = self.peek(pos, min(piece + HEADER_SIZE, end - pos))
            offset = data.find(_MAGIC_BYTES)
            while 0 <= offset < piece and offset + HEADER_SIZE <= len(data):
                header = unpack_header(data, offset)
                here = pos + offset
                if (
                    header.pos == here
                    and at.index < header.index <= self.mark
                    and header.index <= at.index + 1 + (here - at.pos) // HEADER_SIZE
                    and self._entry_at(here, header.index, at._replace(chain=None)) is not None
                ):
                    return Place(header.index - 1, at.term, here, None)
                offset = data.find(_MAGIC_BYTES, offset + 1)
            pos += piece
        return None

    def _next_units(self, at: Place) -> Place | None:
        """The place before the next two units that continue each other. Such units are all that is left of a
        lost segment."""
        before: IndexUnit | None = None
        first = at.index + 2
        while first <= self.mark:
            for unit in self.index.units(first, min(_UNITS, self.mark - first + 1)):
                if unit is None or not self._plausible(unit, at):
                    before = None
                    continue
                if before is not None and self._continues(before, unit):
                    return Place(before.index - 1, at.term, before.pos, None)
                before = unit
            first += _UNITS
        if before is not None and before.index == self.mark:
            return Place(before.index - 1, at.term, before.pos, None)
        return None

    def _continues(self, before: IndexUnit, unit: IndexUnit) -> bool:
        end = before.pos + before.size
        following = self._segments.start_of(before.pos) + self._segments.size
        return unit.index == before.index + 1 and unit.pos in (end, following) and unit.term >= before.term

    def _plausible(self, unit: IndexUnit, at: Place) -> bool:
        room = self._segments.size - unit.pos % self._segments.size - MIN_BLANK_SIZE
        return unit.pos > at.pos and HEADER_SIZE <= unit.size <= room and unit.term >= at.term

    def _believable_unit(self, index: int, at: Place) -> IndexUnit | None:
        """The unit of entry `index`, if it names a position where the entry can be."""
        unit = self.index.unit(index)
        if unit is None or unit.term < at.term:
            return None
        room = self._segments.size - unit.pos % self._segments.size - MIN_BLANK_SIZE
        following = self._segments.start_of(at.pos) + self._segments.size
        fits = unit.pos in (at.pos, following) and HEADER_SIZE <= unit.size <= room
        return unit if fits else None

    def _terms_of(self, first: int, behind: Place, term: int) -> list[tuple[int, int]]:
        """Terms of the entries from `first` up to `behind`, as the units say; units that are lost or wrong
        are left out."""
        found: list[tuple[int, int]] = []
        while first <= behind.index:
            count = min(_UNITS, behind.index - first + 1)
            units = self.index.units(first, count + 1)
            for place, unit in enumerate(units[:count]):
                if unit is None or unit.term < term:
                    continue
                after = units[place + 1]
                ends = after.pos if unit.index < behind.index and after is not None else behind.pos
                following = self._segments.start_of(unit.pos) + self._segments.size
                if unit.pos + unit.size == ends or ends == following:
                    found.append((unit.index, unit.term))
                    term = unit.term
            first += count
        return found

    # Reading

    def _window(self, pos: int, size: int) -> bytes:
        """Bytes from `self._base` on, which include the `size` bytes at `pos`, or all bytes up to the
        segment's end."""
        if not self._base <= pos or pos + size > self._base + len(self._data):
            self._data = read_bytes(self._segments, pos, max(size, WINDOW))
            self._base = pos
        return self._data

    def peek(self, pos: int, size: int) -> bytes:
        """Bytes of one segment, read without moving the window; fewer at the segment's end."""
        return read_bytes(self._segments, pos, size)

    def _unit_bytes(self, index: int) -> bytes:
        place = (index - self._units_first) * INDEX_UNIT_SIZE
        if not 0 <= place < len(self._units):
            self._units = self.index.raw(index, _UNITS)
            self._units_first = index
            place = 0
        return self._units[place : place + INDEX_UNIT_SIZE]


def read_bytes(segments: Segments, pos: int, size: int) -> bytes:
    """Bytes of one segment, fewer at its end, zeros where they cannot be read."""
    start = segments.start_of(pos)
    size = min(size, start + segments.size - pos)
    return segments.pread_around_errors(start, size, pos - start)


def header_of(segments: Segments, unit: IndexUnit) -> EntryHeader | None:
    """The header of a unit's entry; None if it differs from the unit."""
    data = read_bytes(segments, unit.pos, HEADER_SIZE)
    if len(data) < HEADER_SIZE:
        return None
    header = unpack_header(data)
    fits = header.magic == MAGIC and header[1:5] == (unit.size, unit.index, unit.term, unit.pos)
    return header if fits else None


def chain_of(segments: Segments, index: IndexFiles, at: int, first: int, base: int | None) -> int | None:
    """Chain value of an entry; None unless the entry before confirms it. `first` is the first entry of the
    log, and `base` is the chain value of the entry before it."""
    unit = index.unit(at)
    if unit is None:
        return None
    chain = base if at == first else None
    before = index.unit(at - 1) if at > first else None
    if before is not None:
        header = header_of(segments, before)
        chain = None if header is None else header.chain_crc
    if chain is None:
        return None
    try:
        return check_entry(read_bytes(segments, unit.pos, unit.size), 0, at, unit.pos, -1, chain).chain_crc
    except CorruptEntry:
        return None


def chain_and_time(
    segments: Segments, index: IndexFiles, at: int, first: int, base: int | None
) -> tuple[int | None, int]:
    """Chain value of an entry (see `chain_of`), and store time of its record, which is -1 if the entry holds
    no record."""
    unit = index.unit(at)
    if unit is None:
        return None, -1
    data = read_bytes(segments, unit.pos, min(unit.size, MAX_ENTRY_SIZE))
    try:
        check_entry(data, 0, at, unit.pos, -1, None)
    except CorruptEntry:
        return None, -1
    return chain_of(segments, index, at, first, base), store_time_of(data)


def place_before(segments: Segments, index: IndexFiles, wanted: int, origin: Place) -> Place:
    """A place from which a walk reaches entry `wanted`: behind a near entry that can be trusted, or `origin`,
    which is the place before the log."""
    first = origin.index + 1
    at = wanted - 1
    while at >= first:
        unit = index.unit(at)
        header = None if unit is None else header_of(segments, unit)
        if unit is not None and header is not None:
            return Place(
                at, unit.term, unit.pos + unit.size, chain_of(segments, index, at, first, origin.chain)
            )
        at -= 1
    return origin
