"""Detects that this process is a fork of the one that made an object: threads and loops do not exist in a
fork."""

from __future__ import annotations

import os


class Forks:
    """Counts the forks between the first process and this one."""

    def __init__(self) -> None:
        self.count: int = 0
        """Compare it with an earlier value: a different one means that there was a fork in between."""
        os.register_at_fork(after_in_child=self._happened)

    def _happened(self) -> None:
        self.count += 1


FORKS = Forks()
"""The counter of this process."""
