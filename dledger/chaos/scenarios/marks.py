"""Coverage marks: named situations that a run over many seeds must have reached, observed from outside.

Most marks are observed by the probe of a node. Some are log lines of the product, so it is noticed if the
product no longer writes such a line.
"""

from __future__ import annotations

LINES: tuple[tuple[str, str], ...] = (
    ("the log ended with a partly written entry", "torn tail recovered"),
    ("promoted node=", "node promoted"),
    ("its new store replaces it", "lost store replaced by a new one"),
    ("store is refilled", "store refilled"),
    ("log begins later", "a log begins later"),
    ("installing a snapshot", "a snapshot installed"),
    ("health now=STALLED", "a disk stalls"),
    ("health now=DISK_FULL", "a disk is full"),
    ("health now=FAULTY", "entries are faulty"),
    ("entries repaired peer=", "entries repaired by a peer"),
    ("configurations found at=", "members in doubt until a repair"),
    ("the event loop stood still", "clients were closed after a standstill"),
)
"""Pairs of (part of a log line, mark that this line reaches)."""

NEVER = ("damaged push frame dropped",)
"""Parts of log lines that no run may show, because the simulated network does not damage data."""


class Marks:
    """How often each mark was reached in one run."""

    def __init__(self) -> None:
        self.reached: dict[str, int] = {}

    def reach(self, mark: str) -> None:
        """Count a mark once more."""
        self.reached[mark] = self.reached.get(mark, 0) + 1

    def line(self, text: str) -> None:
        """Count the marks that a log line of a node stands for."""
        for part, mark in LINES:
            if part in text:
                self.reach(mark)
