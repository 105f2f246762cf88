"""Reports the progress of a long run on standard error, so that standard output holds only the result."""

from __future__ import annotations

import sys
import time

EVERY_S = 0.5
"""Pause between two updates of the progress line on a terminal, in seconds. Elsewhere the pause is ten
seconds."""
ELSEWHERE_S = 10.0
LOOK_EVERY = 1024
"""Number of calls of `Progress.at` from one reading of the clock to the next."""


class Progress:
    """Reports the steps of a run, one after another. With `quiet` it prints nothing."""

    def __init__(self, name: str, *, quiet: bool = False) -> None:
        self._name = name
        self._quiet = quiet
        self._watched = sys.stderr.isatty()
        self._step = ""
        self._total = 1
        self._begin = 0
        self._calls = 0
        self._said = self._began = 0.0

    def begins(self, step: str, total: int, begin: int = 0) -> None:
        """Begin a step that goes over `total` bytes; `begin` is the position of the first one."""
        self._step, self._total, self._begin, self._calls = step, max(total, 1), begin, 0
        self._said = self._began = time.monotonic()
        self._say(f"{step}: {total / 1e6:.0f} MB")

    def at(self, position: int) -> None:
        """Report the position that the step has reached."""
        self._calls += 1
        if self._calls % LOOK_EVERY:
            return
        now = time.monotonic()
        if now - self._said >= (EVERY_S if self._watched else ELSEWHERE_S):
            self._said = now
            done = min((position - self._begin) / self._total, 1.0)
            self._say(f"{self._step}: {done:.0%}", over=True)

    def ends(self) -> None:
        """End the step."""
        self._say(f"{self._step}: done in {time.monotonic() - self._began:.1f} s")

    def _say(self, text: str, *, over: bool = False) -> None:
        if not self._quiet:
            end = "\r" if over and self._watched else "\n"
            print(f"{self._name}: {text}", file=sys.stderr, end=end, flush=True)
