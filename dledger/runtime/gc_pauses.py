"""Delays of a program that it does not cause by its own work. The causes are its garbage collector, and other
programs that use the cores.

The figures are plain values. The program's shell, which does the I/O, writes them; reports read them.
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
        """Duration of all collections together, in seconds."""
        self.worst_s: float = 0.0
        self.waited_s: Callable[[], float] = lambda: 0.0
        """Returns for how long, in seconds since its start, the thread of the event loop was ready but had no
        core; 0 if the system does not report it."""

    def note(self, generation: int, seconds: float) -> None:
        """Note the end of one collection."""
        self.count[generation] += 1
        self.seconds += seconds
        self.worst_s = max(self.worst_s, seconds)
