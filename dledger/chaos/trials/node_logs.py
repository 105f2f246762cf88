"""What the nodes of a trial wrote into their logs about elections, in milliseconds.

From these lines follows where the time of a failover went. The kernel's clock stamps all of them, so times of
different nodes on one machine can be compared.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

_LINE = re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}) (\w+) +(\S+) (.*)")
NOTICED = ("connection to the leader lost leader=", "the process of the leader has ended")
ELECTED = "role role=LEADER "
SERVING = "serving term="


@dataclass(frozen=True)
class Line:
    """One line of a node's log."""

    at_s: float
    """Seconds since the beginning of the trial."""
    node: str
    text: str


@dataclass(frozen=True)
class Parts:
    """Where the time of one failover went, in ms since the fault. None if no line says so."""

    noticed_ms: float | None
    """A node noticed that the leader was gone."""
    elected_ms: float | None
    """A node had won the election: it had a quorum of votes, and its own term and vote were fsynced."""
    serving_ms: float | None
    """The entry that opens the new term was committed and applied."""


def parse_line(text: str) -> tuple[float, str] | None:
    """The wall time of a log line, in seconds since the epoch, and its event. None if the text does not begin
    a line of our log."""
    match = _LINE.match(text)
    if match is None:
        return None
    return datetime.strptime(match[1], "%Y-%m-%d %H:%M:%S,%f").timestamp(), match[4]


def read_lines(directory: Path, node: str, began: float) -> Iterator[Line]:
    """The lines of all log files in a node's log directory. `began` is the wall time of the beginning, in
    seconds since the epoch."""
    for path in sorted(directory.glob("broker.log*")):
        for text in path.read_text(encoding="utf-8", errors="replace").splitlines():
            if (found := parse_line(text)) is not None:
                yield Line(found[0] - began, node, found[1])


def parts_of(lines: Sequence[Line], at_s: float, node: str, until_s: float) -> Parts:
    """The parts of the failover after a fault at `node`. `lines` are those of all nodes, sorted by time.
    Those after `until_s` belong to a later fault."""
    after = [line for line in lines if at_s - 0.001 <= line.at_s <= until_s and line.node != node]

    def first(*texts: str) -> float | None:
        times = (line.at_s for line in after if any(text in line.text for text in texts))
        found = next(times, None)
        return None if found is None else round((found - at_s) * 1000, 1)

    return Parts(first(*NOTICED), first(ELECTED), first(SERVING))
