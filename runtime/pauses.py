"""Pauses of the garbage collector: plain figures, written by the program's shell, read by whoever reports."""

from __future__ import annotations

GENERATIONS = 3


class Pauses:
    """Of one process since its start. In simulation nobody writes them."""

    def __init__(self) -> None:
        self.count = [0] * GENERATIONS
        """Collections of each generation."""
        self.seconds = 0.0
        """All together."""
        self.worst_s = 0.0

    def note(self, generation: int, seconds: float) -> None:
        """One collection ended."""
        self.count[generation] += 1
        self.seconds += seconds
        self.worst_s = max(self.worst_s, seconds)
