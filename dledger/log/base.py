"""What lies before the first entry of a log: nothing, or a snapshot (safety.md S20). Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LogBase:
    """The entry before the first one held, and where the log goes on behind it.

    `chain` is None when that entry is not known: the log begins late, and no snapshot says what came before.
    """

    index: int
    term: int
    pos: int
    chain: int | None
    store_time_ms: int = -1
    """Of that entry's record, -1 when it is not known."""

    @property
    def known(self) -> bool:
        """Whether the entry's term and chain value are known."""
        return self.chain is not None


ORIGIN = LogBase(-1, -1, 0, 0)
"""Of a log that holds its first entry."""
