"""Whether this process is a fork of the one that made something: threads and loops do not come along."""

from __future__ import annotations

import os


class Forks:
    """Counts the forks between the first process and this one."""

    def __init__(self) -> None:
        self.count: int = 0
        """Compare with its value at another time: a different one means that a fork lies between."""
        os.register_at_fork(after_in_child=self._happened)

    def _happened(self) -> None:
        self.count += 1


FORKS = Forks()
"""Of this process."""
