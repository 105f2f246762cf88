"""Replication and commit: `leader` (per-peer progress, quorum), `follower`, `quorum`. Pure.

The log is seen through `LogView`; everything that touches disk or network is an effect.
"""

from __future__ import annotations

from typing import Protocol


class LogView(Protocol):
    """View of the log that replication needs. Indexes start at 0; -1 means "none"."""

    @property
    def first_index(self) -> int:
        """Index of the first entry held."""

    @property
    def last_index(self) -> int:
        """Index of the last entry held (written or still in memory)."""

    @property
    def durable_index(self) -> int:
        """Index of the last entry that is fsynced (in ASYNC_FLUSH: written), with no corrupt entry before
        it."""

    @property
    def durable_mark(self) -> int:
        """Index of the last entry that was made durable, even if it is corrupt by now. Later entries are in
        memory only."""

    def term_of(self, index: int) -> int | None:
        """Term of an entry; -1 for index -1; None when the log does not hold it."""

    def last_of_term_at_most(self, term: int, index: int) -> int:
        """Largest i <= index whose term is <= `term`; -1 if there is no such entry."""

    def range_end(self, first: int, max_bytes: int) -> tuple[int, int | None]:
        """(last index, byte size) of a run from `first` of about `max_bytes`; size None when it is not known.

        The run lies in one segment, holds at least one entry, and ends at the end of a client batch.
        """
