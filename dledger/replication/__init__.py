"""What is replicated and committed: `leader` (per-peer progress, quorum), `follower`, `quorum`. Pure.

The log is seen through `LogView`; whatever touches disk or network is an effect.
"""

from __future__ import annotations

from typing import Protocol


class LogView(Protocol):
    """What replication needs to know of the log. Indexes start at 0; -1 means "none"."""

    @property
    def first_index(self) -> int:
        """First entry held."""

    @property
    def last_index(self) -> int:
        """Last entry held (written or still in memory)."""

    @property
    def durable_index(self) -> int:
        """Last entry that is fsynced (in ASYNC_FLUSH: written), with nothing rotten before it."""

    @property
    def durable_mark(self) -> int:
        """Last entry that was made durable, rotten by now or not: what lies behind it is in memory alone."""

    def term_of(self, index: int) -> int | None:
        """Term of an entry; -1 for index -1; None when the log does not hold it."""

    def last_of_term_at_most(self, term: int, index: int) -> int:
        """Largest i <= index whose term is <= `term`; -1 when there is none."""

    def range_end(self, first: int, max_bytes: int) -> tuple[int, int | None]:
        """(last index, byte size) of a run from `first` of about `max_bytes`; size None when it is not known.

        The run lies in one segment, holds at least one entry, and ends at the end of a client batch.
        """
