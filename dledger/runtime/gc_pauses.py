"""Delays of a program that it does not cause by its own work: its garbage collector, and other programs on
its cores.

Plain figures, written by the program's shell and read for reports.
"""

from __future__ import annotations

from collections.abc import Callable

GENERATIONS = 3


class Pauses:
    """Delays of one process since its start. In simulation they are not measured."""

    def __init__(self) -> None:
        self.count: list[int] = [0] * GENERATIONS
        """Number of collections of each generation."""
        self.seconds: float = 0.0
        """Seconds of all collections together."""
        self.worst_s: float = 0.0
        self.waited_s: Callable[[], float] = lambda: 0.0
        """How long the thread of the event loop was ready and had no core, in seconds since its start; 0
        where the system does not report it."""

    def note(self, generation: int, seconds: float) -> None:
        """Note the end of one collection."""
        self.count[generation] += 1
        self.seconds += seconds
        self.worst_s = max(self.worst_s, seconds)
