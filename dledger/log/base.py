"""The beginning of a log: before its first entry lies nothing, or a snapshot (safety.md S20). Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LogBase:
    """The entry before the first one of the log, and the position `pos` where the log begins.

    `chain` is None if that entry is not known, because the log begins late and no snapshot describes what
    came before.
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
