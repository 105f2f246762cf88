"""Which entries of a log are known to be rotten: a small set of index ranges. Pure.

Of an entry a node says *have* (it lies in the log and is not in here), *faulty* (it lies in the log, was
durable once and cannot be read any more), or *never had* (the log ends before it). Only the second is
repaired, and none of the first two is ever cut on doubt (safety.md S4).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator


class FaultyEntries:
    """Disjoint, sorted ranges `first..last`, joined where they touch."""

    def __init__(self) -> None:
        self.ranges: list[tuple[int, int]] = []
        """To be looked at, not changed: whether there are any is asked several times a message."""

    def __bool__(self) -> bool:
        return bool(self.ranges)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return iter(list(self.ranges))

    def __contains__(self, index: int) -> bool:
        return self.within(index, index) is not None

    @property
    def count(self) -> int:
        """Entries in all ranges."""
        return sum(last - first + 1 for first, last in self.ranges)

    def within(self, first: int, last: int) -> int | None:
        """The first faulty index of `first..last`, None when there is none."""
        if last < first:
            return None
        place = bisect_right(self.ranges, first, key=lambda item: item[0]) - 1
        if place >= 0 and self.ranges[place][1] >= first:
            return first
        if place + 1 < len(self.ranges) and self.ranges[place + 1][0] <= last:
            return self.ranges[place + 1][0]
        return None

    def add(self, first: int, last: int) -> bool:
        """Entries `first..last` are faulty; True when that is news."""
        if last < first or any(begin <= first and last <= end for begin, end in self.ranges):
            return False
        kept = []
        for begin, end in self.ranges:
            if end < first - 1 or begin > last + 1:
                kept.append((begin, end))
            else:
                first, last = min(first, begin), max(last, end)
        self.ranges = sorted([*kept, (first, last)])
        return True

    def remove(self, first: int, last: int) -> None:
        """Entries `first..last` are whole again, or gone."""
        kept = []
        for begin, end in self.ranges:
            if begin < first:
                kept.append((begin, min(end, first - 1)))
            if end > last:
                kept.append((max(begin, last + 1), end))
        self.ranges = kept

    def truncate(self, index: int) -> None:
        """Entries from `index` on are gone."""
        if self.ranges:
            self.remove(index, max(index, self.ranges[-1][1]))
