"""Detects whether this process is a fork of the process that made an object. Threads and event loops do not
exist in a fork."""

from __future__ import annotations

import os


class Forks:
    """Counts how many forks there were from the first process to this one."""

    def __init__(self) -> None:
        self.count: int = 0
        """The number of forks. If it differs from an earlier value, there was a fork in between."""
        os.register_at_fork(after_in_child=self._happened)

    def _happened(self) -> None:
        self.count += 1


FORKS = Forks()
"""The counter of this process."""
