"""Where each term starts in the log. Pure."""

from __future__ import annotations

from bisect import bisect_right


class TermTable:
    """Terms of all entries `first..last`. Only the first index of each term is stored. Terms never
    decrease."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._terms: list[int] = []

    def add(self, index: int, term: int) -> None:
        """Add the term of the entry at `index`, which is behind all others."""
        if not self._terms or term > self._terms[-1]:
            self._starts.append(index)
            self._terms.append(term)
        elif term < self._terms[-1]:
            raise ValueError(f"the term falls from {self._terms[-1]} to {term} at index {index}")

    def term_of(self, index: int) -> int | None:
        """Term of an entry that the log holds (the caller checks the bounds). None for an index below the
        first one in the table."""
        place = bisect_right(self._starts, index) - 1
        return self._terms[place] if place >= 0 else None

    def truncate(self, index: int) -> None:
        """Remove entries from `index` on."""
        while self._starts and self._starts[-1] >= index:
            self._starts.pop()
            self._terms.pop()

    def forget_before(self, index: int) -> None:
        """Remove entries before `index`."""
        place = bisect_right(self._starts, index) - 1
        if place > 0:
            del self._starts[:place]
            del self._terms[:place]
        if self._starts and self._starts[0] < index:
            self._starts[0] = index

    def last_of_term_at_most(self, term: int, index: int) -> int:
        """Largest i <= `index` whose term is <= `term`; -1 if there is no such entry."""
        place = bisect_right(self._starts, index) - 1
        while place >= 0 and self._terms[place] > term:
            index = self._starts[place] - 1
            place -= 1
        return index if place >= 0 else -1
