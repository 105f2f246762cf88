"""What keeps a program from running: its garbage collector, and other programs on its cores.

Plain figures, written by the program's shell, read by whoever reports.
"""

from __future__ import annotations

from collections.abc import Callable

GENERATIONS = 3


class Pauses:
    """Of one process since its start. In simulation nobody writes them."""

    def __init__(self) -> None:
        self.count: list[int] = [0] * GENERATIONS
        """Collections of each generation."""
        self.seconds: float = 0.0
        """All together."""
        self.worst_s: float = 0.0
        self.waited_s: Callable[[], float] = lambda: 0.0
        """How long the thread of the event loop was ready and had no core, since its start; 0 where the
        system does not tell."""

    def note(self, generation: int, seconds: float) -> None:
        """One collection ended."""
        self.count[generation] += 1
        self.seconds += seconds
        self.worst_s = max(self.worst_s, seconds)
