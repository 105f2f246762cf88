"""The trace of a run. Each event is one line with fixed columns for time (ns), node, kind and detail.

Two runs of one seed must give equal lines, even in different processes. So a detail never holds a default
repr, an address or the order of a set.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable


class Trace:
    """Collects the lines, or passes each line to `sink`. It always keeps the number of lines and their
    digest."""

    def __init__(self, sink: Callable[[str], None] | None = None) -> None:
        self.lines: list[str] = []
        self.count: int = 0
        self._sink = sink if sink is not None else self.lines.append
        self._hash = hashlib.sha256()

    def add(self, now: int, node: str, kind: str, detail: str) -> None:
        """Add one event. `now` is the time as the node sees it, which may be a little ahead of the world's
        time."""
        line = f"{now:>16d} {node:<8} {kind:<9} {detail}"
        self.count += 1
        self._hash.update(line.encode())
        self._hash.update(b"\n")
        self._sink(line)

    @property
    def digest(self) -> str:
        """SHA-256 over all lines so far."""
        return self._hash.hexdigest()


def first_difference(one: list[str], other: list[str]) -> str | None:
    """The first difference between two traces, with the lines before it. None if the traces are equal."""
    for number, (left, right) in enumerate(zip(one, other, strict=False)):
        if left != right:
            before = "\n".join("  " + line for line in one[max(0, number - 5) : number])
            return f"line {number + 1}:\n{before}\n< {left}\n> {right}"
    if len(one) != len(other):
        longer = one if len(one) > len(other) else other
        short = min(len(one), len(other))
        return f"line {short + 1}: one trace ends, the other goes on with\n  {longer[short]}"
    return None
