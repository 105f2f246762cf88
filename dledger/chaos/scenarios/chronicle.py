"""All entries that ever were in a log, by (index, term), and the states that they lead to.

This is the judge's own memory. It is needed because the log of every node may begin late; then no disk has
the earlier entries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Protocol

from dledger.chaos.invariants import Entry, InvariantViolated
from dledger.formats.entry import HEADER_SIZE, EntryHeader, unpack_header
from dledger.log.reading import store_time_of


class Replay(Protocol):
    """A state machine of the judge. Entries are applied to it one after another."""

    index: int
    """Index of the last entry applied, -1 for none."""

    def apply(self, header: EntryHeader, record: bytes) -> None:
        """Apply one entry. Raises InvariantViolated if the entry breaks a rule."""

    def encode(self) -> bytes:
        """The state as bytes. Equal states give equal bytes."""


class Chronicle:
    """All entries that ever were in a log, each as the first node had it. Other nodes have equal copies if
    the chain checksums are equal."""

    def __init__(self, committed: Mapping[int, Entry], fresh: Callable[[], Replay]) -> None:
        """`committed` is the group's collection of committed entries, which grows during the run. `fresh`
        makes the state before the first entry."""
        self._committed = committed
        self._fresh = fresh
        self._entries: dict[tuple[int, int], bytes] = {}

    def note(self, index: int, term: int, data: memoryview) -> None:
        """Note an entry that was added to a log."""
        if (index, term) not in self._entries:
            self._entries[index, term] = bytes(data)

    def store_time(self, index: int, term: int) -> int:
        """Store time of the record in an entry, in ms. -1 if the entry was never noted or has no record."""
        return store_time_of(self._entries.get((index, term), b""))

    def entries(self, first: int, last: int) -> Iterator[tuple[EntryHeader, bytes]]:
        """Yield (header, record) of the committed entries `first` to `last`. Raises InvariantViolated if one
        was never committed."""
        for index in range(first, last + 1):
            entry = self._committed.get(index)
            data = None if entry is None else self._entries.get((index, entry.term))
            if entry is None or data is None:
                raise InvariantViolated(f"nobody committed entry {index}, but a log begins behind it")
            yield unpack_header(data), data[HEADER_SIZE:]

    def states(self, indexes: Iterable[int]) -> dict[int, bytes]:
        """Maps each of these indexes to the encoded state after that entry. All entries from the first one on
        are replayed."""
        wanted = dict.fromkeys(indexes)
        found: dict[int, bytes] = {}
        state = self._fresh()
        if state.index in wanted:
            found[state.index] = state.encode()
        for header, record in self.entries(0, max(wanted, default=-1)):
            state.apply(header, record)
            if header.index in wanted:
                found[header.index] = state.encode()
        return found
