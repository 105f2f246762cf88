"""The entries of a log that are known to be corrupt, as a small set of index ranges. Pure.

Each entry is in one of three states on a node: *have* (it is in the log and not in this set), *faulty* (it is
in the log, was durable once and can no longer be read), or *never had* (the log ends before it). Only faulty
entries are repaired. A node never cuts an entry that it has, or that is faulty, because of a doubt (safety.md
S4).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator


class FaultyEntries:
    """A set of indexes, held as disjoint, sorted ranges `first..last`. Adjacent ranges are joined."""

    def __init__(self) -> None:
        self.ranges: list[tuple[int, int]] = []
        """The ranges; callers must not change them. They are public because for each message several places
        check whether there are any."""

    def __bool__(self) -> bool:
        return bool(self.ranges)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return iter(list(self.ranges))

    def __contains__(self, index: int) -> bool:
        return self.within(index, index) is not None

    @property
    def count(self) -> int:
        """Number of entries in all ranges."""
        return sum(last - first + 1 for first, last in self.ranges)

    def within(self, first: int, last: int) -> int | None:
        """The first faulty index of `first..last`, None if there is no faulty one."""
        if last < first:
            return None
        place = bisect_right(self.ranges, first, key=lambda item: item[0]) - 1
        if place >= 0 and self.ranges[place][1] >= first:
            return first
        if place + 1 < len(self.ranges) and self.ranges[place + 1][0] <= last:
            return self.ranges[place + 1][0]
        return None

    def add(self, first: int, last: int) -> bool:
        """Add entries `first..last`. Returns True if some of them were not known to be faulty."""
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
        """Remove entries `first..last`, which are whole again or no longer in the log."""
        kept = []
        for begin, end in self.ranges:
            if begin < first:
                kept.append((begin, min(end, first - 1)))
            if end > last:
                kept.append((max(begin, last + 1), end))
        self.ranges = kept

    def truncate(self, index: int) -> None:
        """Remove entries from `index` on, which are no longer in the log."""
        if self.ranges:
            self.remove(index, max(index, self.ranges[-1][1]))
