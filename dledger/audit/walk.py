"""Walks the entries of one segment. Pure: bytes in, entries out; the caller reads the file.

A segment is walked from front to back, window by window. Three kinds of places need a decision:

* A **committed** entry (index at most `must_reach`) that does not fit is damaged. If only its body is
  damaged, it is given out with a mark. If its header is damaged, the walk searches for the next header whose
  `pos` is its own place (old bytes in a recycled file never have that) and continues there. The entries in
  between are *lost*.
* In the **tail** above the committed entries, the log ends at the first entry that recovery would not accept
  (safety.md S1). That is normal, because after the end there are zeros or, in a recycled segment, old bytes.
* A segment may be **retired or cut while it is read** (safety.md S6). So before damage is reported, `recheck`
  checks what the file is now.
* If there are **only zeros** from some place to the end of the last segment, no entry is damaged there: the
  log ends early (`Stop.ZEROS`). A copy that was made while the node wrote looks like this, and its last entry
  may be cut.

Nearly all entries need no decision. They are walked in columns (`entries.plain_run`), the rest entry by
entry.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, StrEnum
from typing import NamedTuple

from dledger.audit.entries import (
    BODY_DAMAGED,
    CHAIN_BROKEN,
    CHAIN_UNKNOWN,
    UNREADABLE,
    Array,
    Before,
    Columns,
    Entry,
    columns_of,
    join,
    plain_run,
)
from dledger.formats.checksum import crc32
from dledger.formats.entry import (
    APACHE_MAGICS,
    BLANK,
    BLANK_MAGIC,
    CHAIN,
    COVERED,
    HEADER,
    HEADER_SIZE,
    MAGIC,
    MAX_ENTRY_SIZE,
    MIN_BLANK_SIZE,
    known_magic,
    unpack_header,
)

__all__ = [
    "BODY_DAMAGED",
    "CHAIN_BROKEN",
    "CHAIN_UNKNOWN",
    "UNREADABLE",
    "Columns",
    "Entry",
    "Fault",
    "SegmentWalker",
    "Stop",
    "collapse",
]

_MAGIC_BYTES = MAGIC.to_bytes(4, "big")
_REMAINING = 0xFFFFFF
_ALL = 1 << 62
_CUT_ZEROS = 8
"""Number of zeros with which a damaged body ends if only its first part was written. A whole record ends with
fewer zeros."""
_FEW = 16
"""Number of entries that are checked one by one before columns are tried again."""


class Fault(NamedTuple):
    """A fault in the entries `first..last`; an index is -1 if it is not known."""

    code: str
    first: int
    last: int
    detail: str


class Stop(StrEnum):
    """Why a walk ended."""

    RUNNING = ""
    BLANK = "blank"
    """The blank tail was reached, so the segment is full."""
    FULL = "full"
    """The end of the file was reached."""
    END = "end"
    """The end of the log was reached."""
    TORN = "torn"
    """An unfinished entry above the commit index was reached."""
    LOST = "lost"
    """There is damage, and no entry was found behind it."""
    ZEROS = "zeros"
    """Only zeros follow, although entries that are known to be committed should be there."""
    RETIRED = "retired"
    """The file is no longer this segment."""
    LIMIT = "limit"
    """The place where the caller wanted to stop was reached."""


class _Next(Enum):
    ACCEPT = 1
    MORE = 2
    DONE = 3


class SegmentWalker:
    """State of one walk. `offset` is the position in the file that it has reached; feed it the bytes from
    there.

    * `must_reach`: the last index that must be in this segment or before it (committed, or known from the
      next segment that begins with an entry).
    * `recheck()`: returns the current value of `must_reach`, or None if the file is no longer this segment.
    * `has_next`: whether there is a next segment that begins with an entry, so that this one must be full.
    * `index`: if given, the walk starts at this entry, which is at `offset`.
    """

    def __init__(
        self,
        start: int,
        size: int,
        must_reach: int,
        *,
        has_next: bool = False,
        recheck: Callable[[], int | None] | None = None,
        offset: int = 0,
        index: int | None = None,
    ) -> None:
        self.start = start
        self.size = size
        self.offset: int = offset
        self.stop: Stop = Stop.RUNNING
        self.faults: list[Fault] = []
        self.holes: list[tuple[int, int]] = []
        """Ranges of indexes that are lost to damage. The first index is -1 if the range begins the
        segment."""
        self.bytes: int = 0
        self.told: Callable[[int, int], Array] | None = None
        """Function that returns positions of entries, only as a hint. It is called with the index of the
        first entry and an upper limit of the position."""
        self._must_reach = must_reach
        self._has_next = has_next
        self._recheck = recheck
        self._expect = index
        self._term = -1
        self._term_before = -1
        """Term of the entry before the last one."""
        self._chain: int | None = None
        self._chain_due: int | None = None
        """The chain value that the last entry should have, if its chain value is its only fault."""
        self._batch = 0
        self._own_crcs = False
        self._searching = False
        self._only_zeros = False
        """Whether all bytes were zeros in which another entry was searched."""
        self._half_written = -1
        """Index of an entry whose body is damaged and ends with zeros, -1 if there is none."""
        self._drop_last = False
        """Whether the last entry is left out, because the log ends within it."""

    @property
    def next_index(self) -> int | None:
        """Index of the next entry that should be in the segment. None at the segment's start, as long as its
        first header was not read."""
        return self._expect

    def feed(self, data: bytes, last: bool) -> Columns:
        """Return the entries in `data`, which are the file's bytes from `offset` on. `last` says whether they
        reach the end of the file.

        `offset` moves behind what was used. If there is no entry, the walk has not stopped and `offset` did
        not move, call it again with more bytes.
        """
        parts: list[Columns] = []
        at = 0
        while not self.stop:
            if not self._searching and self._expect is not None:
                at = self._plain_runs(data, at, parts)
            at, more = self._judged(data, at, last, parts, _FEW)
            if more:
                break
        return self._walked(parts, at)

    def feed_slowly(self, data: bytes, last: bool) -> Columns:
        """Do what `feed` does, but check every entry by itself. `feed` must give an equal result."""
        parts: list[Columns] = []
        at = 0
        while not self.stop:
            at, more = self._judged(data, at, last, parts, _ALL)
            if more:
                break
        return self._walked(parts, at)

    def _walked(self, parts: list[Columns], at: int) -> Columns:
        self.offset += at
        columns = join(parts)
        if self._drop_last and len(columns):
            self.bytes -= int(columns.size[-1])
            columns = columns[: len(columns) - 1]
        return columns

    def _plain_runs(self, data: bytes, at: int, parts: list[Columns]) -> int:
        """Add runs of entries that need no decision. Return the offset behind them."""
        while self._is_whole(data, at):
            end = self._plain_run(data, at, parts, told=True) if self.told is not None else at
            if end == at:
                end = self._plain_run(data, at, parts, told=False)
            if end == at:
                return at
            at = end
        return at

    @staticmethod
    def _is_whole(data: bytes, at: int) -> bool:
        """Whether an entry at this place, if there is one, is completely in `data`."""
        rest = len(data) - at
        return rest >= HEADER_SIZE and unpack_header(data, at).size <= rest

    def _plain_run(self, data: bytes, at: int, parts: list[Columns], *, told: bool) -> int:
        base, expect = self.start + self.offset, self._expect or 0
        before = Before(expect, self._term, self._chain, self._batch, self._own_crcs)
        places = self.told(expect, base + len(data)) - base if told and self.told is not None else None
        columns, end = plain_run(data, at, base, before, places)
        if not len(columns):
            return at
        final = columns.entry(-1)
        self._own_crcs = self._own_crcs or bool(columns.stored_crc.any() or columns.chain.any())
        self._batch = final.channel & _REMAINING
        self._term_before = int(columns.term[-2]) if len(columns) > 1 else self._term
        self._term, self._chain, self._expect = final.term, final.chain, final.index + 1
        self._chain_due = None
        self.bytes += end - at
        parts.append(columns)
        return end

    def _judged(self, data: bytes, at: int, last: bool, parts: list[Columns], limit: int) -> tuple[int, bool]:
        """Add up to `limit` entries, and handle the first irregular place. Return the offset reached, and
        whether more bytes are needed."""
        if self._searching:
            at, found = self._search(data, at, last)
            if not found:
                return at, True
        out: list[Entry] = []
        at, more = self._run(data, at, last, out, limit)
        parts.append(columns_of(out))
        if not more and self._searching:
            at += 1  # do not search at the place that was just refused
        return at, more

    def retry(self) -> None:
        """Check a torn tail again, because a live writer may have completed it."""
        if self.stop is Stop.TORN:
            self.stop = Stop.RUNNING

    def _run(self, data: bytes, at: int, last: bool, out: list[Entry], most: int) -> tuple[int, bool]:
        """Add entries one by one, at most `most`. Return the offset reached, and whether more bytes are
        needed."""
        view = memoryview(data)
        limit = len(data)
        base = self.start + self.offset
        unpack = HEADER.unpack_from
        pack_chain = CHAIN.pack
        new = Entry._make
        while limit - at >= HEADER_SIZE:
            if len(out) >= most:
                return at, False
            magic, size, index, term, pos, channel, chain, stored, body_size = unpack(data, at)
            end = at + size
            if (
                (magic != MAGIC and not self._is_apaches(magic, stored, chain))
                or index != self._expect
                or pos != base + at
                or size != body_size + HEADER_SIZE
                or not HEADER_SIZE <= size <= MAX_ENTRY_SIZE
                or term < self._term
                or end > limit
            ):
                verdict = self._judge(data, at, last)
                if verdict is not _Next.ACCEPT:
                    return at, verdict is _Next.MORE
            crc = crc32(view[at + HEADER_SIZE : end], channel if channel & COVERED else 0)
            damage = 0
            if stored or chain or self._own_crcs:
                self._own_crcs = True
                if crc != stored:
                    damage = BODY_DAMAGED
                linked, due_before, self._chain_due = pack_chain(index, term, stored), self._chain_due, None
                if self._chain is None:
                    damage |= CHAIN_UNKNOWN
                elif (due := crc32(linked, self._chain)) != chain:
                    if due_before is not None and crc32(linked, due_before) == chain:
                        self._rotten_chain_field(index - 1)
                    else:
                        damage |= CHAIN_BROKEN
                        self._chain_due = None if damage & BODY_DAMAGED else due
            else:
                damage = CHAIN_UNKNOWN
            if damage and not self._damaged(index, damage):
                return at, False
            if damage & BODY_DAMAGED and not any(data[end - _CUT_ZEROS : end]):
                self._half_written = index
            remaining = channel & _REMAINING
            if self._batch and remaining != self._batch - 1 and index <= self._must_reach:
                text = f"{self._batch} more entries of the batch were announced, this one says {remaining}"
                self.faults.append(Fault("BATCH_BROKEN", index, index, text))
            self._batch = remaining
            if not damage & CHAIN_BROKEN:
                if term < self._term:
                    self.faults.append(self._fallen_term(index, term))
                self._term_before, self._term = self._term, term
            self._chain = chain
            self._expect = index + 1
            self.bytes += size
            out.append(new((index, term, pos, size, channel, crc, stored, chain, damage)))
            at = end
        if last:
            return at, self._judge(data, at, last) is _Next.MORE
        return at, True

    def _rotten_chain_field(self, index: int) -> None:
        """Note that the chain value of this entry is damaged, because the next entry continues the value that
        it should have."""
        for number in range(len(self.faults) - 1, -1, -1):
            if self.faults[number][:2] == ("CHAIN_BREAK", index):
                text = "the chain value is corrupt: the next entry continues the correct value"
                self.faults[number] = Fault("BIT_ROT", index, index, text)
                return

    def _fallen_term(self, index: int, term: int) -> Fault:
        """Return the fault of a falling term. If there is no chain and one entry's term differs from that of
        both its neighbours, that entry is damaged."""
        if not self._own_crcs and self._term_before <= term:
            text = f"the header is corrupt; it says term {self._term} between {self._term_before} and {term}"
            return Fault("BIT_ROT", index - 1, index - 1, text)
        return Fault("TERM_REGRESSION", index, index, f"term {term} after term {self._term}")

    def _is_apaches(self, magic: int, stored: int, chain: int) -> bool:
        return magic in APACHE_MAGICS and not (stored or chain or self._own_crcs)

    def _damaged(self, index: int, damage: int) -> bool:
        """Record the damage of a committed entry. Returns False, and stops the walk, if the entry is not
        committed, so that the log can end here."""
        if damage == CHAIN_UNKNOWN:
            return True
        if index > self._must_reach or not self._still_reaches(index):
            if not self.stop:
                self.stop = Stop.TORN if damage & BODY_DAMAGED else Stop.END
            return False
        if damage & BODY_DAMAGED:
            self.faults.append(Fault("BIT_ROT", index, index, "the body does not match its CRC"))
        else:
            self.faults.append(Fault("CHAIN_BREAK", index, index, "the chain does not continue here"))
        return True

    def _still_reaches(self, index: int) -> bool:
        """Check whether this index must still be in the segment, because the file may have been retired or
        cut meanwhile."""
        if self._recheck is not None:
            must_reach = self._recheck()
            if must_reach is None:
                self.stop = Stop.RETIRED
                return False
            self._must_reach = must_reach
        return index <= self._must_reach

    def _judge(self, data: bytes, at: int, last: bool) -> _Next:
        """Decide what to do at a place where the next entry does not simply follow."""
        rest = len(data) - at
        if not last and rest < MAX_ENTRY_SIZE and (rest < HEADER_SIZE or self._header_fits(data, at)):
            return _Next.MORE
        if rest >= MIN_BLANK_SIZE and BLANK.unpack_from(data, at)[0] == BLANK_MAGIC:
            return self._at_blank(data, at)
        if rest < MIN_BLANK_SIZE and self._may_end():
            if not self.stop:
                self.stop = Stop.FULL
            return _Next.DONE
        if self._expect is None:
            return self._at_start(data, at)
        if self._expect > self._must_reach or not self._still_reaches(self._expect):
            return self._at_tail(data, at)
        if rest >= HEADER_SIZE and self._is_odd_but_whole(data, at):
            return _Next.ACCEPT
        self._searching = True
        # If a header was cut, the rest of it and all that follows are zeros.
        behind = data[at + HEADER_SIZE : at + 2 * HEADER_SIZE]
        self._only_zeros = not self._has_next and not any(behind) and (len(behind) > 0 or not last)
        return _Next.DONE

    def _may_end(self) -> bool:
        """Whether the file may end here, because no entry that must be in it is missing."""
        if self._expect is None:
            return False
        return self._expect > self._must_reach or not self._still_reaches(self._expect)

    def _header_fits(self, data: bytes, at: int) -> bool:
        """Whether the header belongs here and only the rest of its entry's body is outside the window."""
        header = unpack_header(data, at)
        return bool(
            known_magic(header)
            and header.pos == self.start + self.offset + at
            and header.size == header.body_size + HEADER_SIZE <= MAX_ENTRY_SIZE
            and header.body_size >= 0
            and len(data) - at < header.size
        )

    def _at_blank(self, data: bytes, at: int) -> _Next:
        self.stop = Stop.BLANK
        said = BLANK.unpack_from(data, at)[1]
        rest = self.size - self.offset - at
        if said != rest:
            text = f"it says {said} bytes and has {rest}"
            self.faults.append(Fault("BLANK_TAIL", -1, -1, text))
        return _Next.DONE

    def _at_start(self, data: bytes, at: int) -> _Next:
        """Start a segment. Its first header gives the index of its first entry."""
        if len(data) - at >= HEADER_SIZE:
            header = unpack_header(data, at)
            whole = header.size == header.body_size + HEADER_SIZE
            whole = whole and 0 <= header.body_size <= len(data) - at - HEADER_SIZE
            placed = header.pos == self.start + self.offset + at and header.index >= 0
            if known_magic(header) and whole and placed:
                self._expect = header.index
                self._chain = 0 if header.index == 0 else None
                return _Next.ACCEPT
        self._searching = True
        return _Next.DONE

    def _at_tail(self, data: bytes, at: int) -> _Next:
        if self.stop:
            return _Next.DONE
        self.stop = Stop.END
        if len(data) - at >= HEADER_SIZE:
            header = unpack_header(data, at)
            placed = header.index == self._expect and header.pos == self.start + self.offset + at
            if known_magic(header) and placed:
                self.stop = Stop.TORN
        if self._has_next and self._expect == self._must_reach + 1:
            self.stop = Stop.FULL
            self.faults.append(Fault("BLANK_TAIL", -1, -1, "the segment is not closed by a blank tail"))
        elif self._is_cut(self._expect) and not any(data[at : at + HEADER_SIZE]):
            self._end_early(self._half_written)
        return _Next.DONE

    def _is_cut(self, expect: int | None) -> bool:
        """Whether only the first part of the last entry was written, if only zeros follow it."""
        return expect is not None and self._half_written == expect - 1 and not self._has_next

    def _end_early(self, first: int) -> None:
        """End the log before entry `first`, which is not damaged but was never written completely here."""
        self.stop = Stop.ZEROS
        self._drop_last = first == self._half_written
        self.faults = [fault for fault in self.faults if not first <= fault.first == fault.last]

    def _is_odd_but_whole(self, data: bytes, at: int) -> bool:
        """Whether this is a well-formed entry that should not be here, because of a falling term or a jump of
        the index.

        A damaged header looks the same. The chain value decides which it is, and if there is none, the next
        header.
        """
        header = unpack_header(data, at)
        _, size, index, term, pos, _, chain, stored, body_size = header
        end = at + size
        fits = size == body_size + HEADER_SIZE and HEADER_SIZE <= size <= MAX_ENTRY_SIZE and end <= len(data)
        if not known_magic(header) or pos != self.start + self.offset + at or not fits:
            return False
        if index == self._expect:
            return True  # only the term falls; the caller compares it with the chain
        if chain and self._chain is not None:
            genuine = crc32(CHAIN.pack(index, term, stored), self._chain) == chain
        else:
            genuine = len(data) - end >= HEADER_SIZE and HEADER.unpack_from(data, end)[2] == index + 1
        expected = self._expect or 0
        if genuine:
            self.faults.append(Fault("INDEX_GAP", index, index, f"index {index} follows {expected - 1}"))
            if expected < index:
                self.holes.append((expected, index - 1))
        return bool(genuine)

    def _search(self, data: bytes, at: int, last: bool) -> tuple[int, bool]:
        """Search for the next header whose `pos` is its own place. Return the offset reached, and whether the
        walk can continue there."""
        base = self.start + self.offset
        lowest = -1 if self._expect is None else self._expect
        highest = max(self._must_reach, lowest) + 1
        at_end = len(data) - at < MIN_BLANK_SIZE
        if self._only_zeros:
            begin = min(at + HEADER_SIZE, len(data))
            self._only_zeros = data.count(0, begin) == len(data) - begin
        while True:
            at = data.find(_MAGIC_BYTES, at)
            if at < 0 or at + HEADER_SIZE > len(data):
                break
            _, size, index, term, pos, _, _, _, body_size = HEADER.unpack_from(data, at)
            sane = size == body_size + HEADER_SIZE and HEADER_SIZE <= size <= MAX_ENTRY_SIZE and term >= 0
            if pos == base + at and sane and lowest <= index <= highest:
                self._go_on_at(index, lowest, base + at)
                return at, True
            at += 1
        if not last:
            return max(len(data) - HEADER_SIZE + 1, 0) if at < 0 else at, False
        self._searching = False
        if lowest < 0 and not self._has_next:
            self.stop = Stop.END  # a segment prepared for entries that have not come yet
        elif lowest >= 0 and self._only_zeros and not at_end:
            self._end_early(lowest - self._is_cut(lowest))
        elif lowest >= 0 or self._still_reaches(self._must_reach):
            self.stop = Stop.LOST
            if lowest <= self._must_reach:
                self.holes.append((lowest, self._must_reach))
            if at_end:
                text = f"the file ends after {self.size} bytes, before what must be in it"
                self.faults.append(Fault("BIT_ROT", lowest, max(lowest, self._must_reach), text))
            else:
                text = "no entry can be found after it in this segment"
                self._fault_lost(lowest, self._must_reach, text)
        return len(data), False

    def _go_on_at(self, index: int, lowest: int, pos: int) -> None:
        self._searching = False
        if lowest < index:
            self.holes.append((lowest, index - 1))
        self._fault_lost(lowest, index - 1, f"the log continues at pos {pos} with index {index}")
        self._expect = index
        self._chain = 0 if index == 0 else None
        self._chain_due = None
        self._batch = 0

    def _fault_lost(self, first: int, last: int, text: str) -> None:
        self.faults.append(Fault("BIT_ROT", first, max(first, last), f"the header is corrupt; {text}"))


def collapse(faults: list[Fault]) -> list[Fault]:
    """Join faults with the same code and adjacent indexes into one fault, which keeps the first text."""
    result: list[Fault] = []
    open_runs: dict[str, int] = {}
    for fault in faults:
        at = open_runs.get(fault.code)
        if at is not None and fault.first >= 0 and result[at].last + 1 == fault.first:
            result[at] = result[at]._replace(last=fault.last)
        else:
            open_runs[fault.code] = len(result)
            result.append(fault)
    return result
