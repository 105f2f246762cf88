"""The beginning of a log: nothing, or a snapshot, lies before its first entry (safety.md S20). Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LogBase:
    """The entry before the first one held, and where the log continues after it.

    `chain` is None when that entry is not known: the log begins late, and no snapshot describes what came
    before.
    """

    index: int
    term: int
    pos: int
    chain: int | None
    store_time_ms: int = -1
    """Store time of that entry's record, -1 when it is not known."""

    @property
    def known(self) -> bool:
        """Whether the entry's term and chain value are known."""
        return self.chain is not None


ORIGIN = LogBase(-1, -1, 0, 0)
"""The base of a log that still holds its very first entry."""
