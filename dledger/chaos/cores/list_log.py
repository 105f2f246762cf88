"""A log for the pure cores: a list of entries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

ENTRY_BYTES = 100
"""Size, in bytes, that every entry counts for, whatever its text is."""


@dataclass(frozen=True)
class Entry:
    """One entry: its term, its text, and the voters if it is a configuration."""

    term: int
    text: str
    voters: tuple[str, ...] | None = None

    def __str__(self) -> str:
        return f"{self.term}:{self.text}"


class ListLog:
    """A log in memory. It is the `LogView` of replication and the `LogTip` of election."""

    def __init__(self) -> None:
        self.first_index: int = 0
        self.durable_index: int = -1
        self.changes: int = 0
        """How often entries were appended or removed."""
        self._entries: list[Entry] = []

    @property
    def last_index(self) -> int:
        """Index of the last entry, -1 for an empty log."""
        return self.first_index + len(self._entries) - 1

    @property
    def durable_mark(self) -> int:
        """See `LogView`. Entries of this log never rot, so the durable mark is the durable index."""
        return self.durable_index

    @property
    def last_term(self) -> int:
        """Term of the last entry, -1 for an empty log."""
        return self._entries[-1].term if self._entries else -1

    def term_of(self, index: int) -> int | None:
        """See `LogView`."""
        if index == -1:
            return -1
        return self.entry(index).term if self.first_index <= index <= self.last_index else None

    def last_of_term_at_most(self, term: int, index: int) -> int:
        """See `LogView`."""
        while index >= self.first_index and self.entry(index).term > term:
            index -= 1
        return index if index >= self.first_index else -1

    def range_end(self, first: int, max_bytes: int) -> tuple[int, int]:
        """See `LogView`."""
        last = min(self.last_index, first + max(max_bytes // ENTRY_BYTES, 1) - 1)
        return last, (last - first + 1) * ENTRY_BYTES

    def entry(self, index: int) -> Entry:
        """The entry at `index`, which must be in the log."""
        return self._entries[index - self.first_index]

    def entries(self, first: int, last: int) -> tuple[Entry, ...]:
        """The entries `first..last`."""
        return tuple(self._entries[first - self.first_index : last - self.first_index + 1])

    def append(self, entries: Sequence[Entry]) -> None:
        """Add entries at the end."""
        self.changes += 1
        self._entries += entries

    def cut(self, index: int) -> None:
        """Remove the entries from `index` on."""
        self.changes += 1
        del self._entries[index - self.first_index :]
        self.durable_index = min(self.durable_index, index - 1)

    def retire(self, first: int) -> None:
        """Remove the entries below `first`, as retention does."""
        del self._entries[: first - self.first_index]
        self.first_index = first

    def __str__(self) -> str:
        return " ".join(map(str, self._entries)) or "empty"
