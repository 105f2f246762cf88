"""Coverage marks: named situations that a run over many seeds must have reached, observed from outside.

Most are observed by the probe. Some are log lines of the product; so these lines cannot be lost unnoticed.
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
"""Pairs of a part of a log line and the mark that it reaches."""

NEVER = ("damaged push frame dropped",)
"""Parts of log lines that no run may show: the simulated network delivers what was sent."""


class Marks:
    """How often each mark was reached in one run."""

    def __init__(self) -> None:
        self.reached: dict[str, int] = {}

    def reach(self, mark: str) -> None:
        """Count a mark once more."""
        self.reached[mark] = self.reached.get(mark, 0) + 1

    def line(self, text: str) -> None:
        """Reach the marks for a log line of a node."""
        for part, mark in LINES:
            if part in text:
                self.reach(mark)
