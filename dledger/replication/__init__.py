"""Replication and commit. `leader` tracks the progress of each peer, `follower` handles pushes, and `quorum`
computes majorities.

These modules are pure: they do no I/O. They see the log through `LogView`, and return everything that touches
disk or network as an effect.
"""

from __future__ import annotations

from typing import Protocol


class LogView(Protocol):
    """The view of the log that replication needs. Indexes start at 0, and -1 means "none"."""

    @property
    def first_index(self) -> int:
        """Index of the first entry that the log holds."""

    @property
    def last_index(self) -> int:
        """Index of the last entry that the log holds, written or still in memory."""

    @property
    def durable_index(self) -> int:
        """Index up to which all entries are fsynced (under ASYNC_FLUSH: written) and none is corrupt."""

    @property
    def durable_mark(self) -> int:
        """Index of the last entry that was made durable, even if that entry has become corrupt. Later entries
        are in memory only."""

    def term_of(self, index: int) -> int | None:
        """Term of an entry. -1 for index -1, and None if the log does not hold the entry."""

    def last_of_term_at_most(self, term: int, index: int) -> int:
        """Largest index that is at most `index` and whose entry has at most this term. -1 if there is no such
        entry."""

    def range_end(self, first: int, max_bytes: int) -> tuple[int, int | None]:
        """Find where a push that begins with entry `first` should end. Returns (last index, size in bytes);
        the size is None if it is not known.

        The push has about `max_bytes`, but at least one entry. It lies in one segment, and ends where a
        client batch ends.
        """
