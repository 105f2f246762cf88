"""The longest turn of an event loop, counted in steps of the interpreter."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import pytest

MAX_STEPS = 250_000
"""Steps that one turn may take. A step takes some 35 ns, and a request may hold the loop for 10 ms."""


class Steps:
    """Counts the steps of the interpreter within `counting`.

    A step is a line of Python that is executed, or a call of a function in C. Unlike time, the count is the
    same on a machine that is busy or slow. What one call in C does is not seen, so its input must be bounded
    in bytes.
    """

    def __init__(self) -> None:
        self.count = 0

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Count from 0 what this thread does."""
        self.count = 0
        sys.setprofile(self._profile)
        sys.settrace(self._trace)
        try:
            yield
        finally:
            sys.settrace(None)
            sys.setprofile(None)

    def of(self, work: Callable[[], object]) -> int:
        """The steps of one call."""
        with self.counting():
            work()
        return self.count

    def _trace(self, frame: FrameType, event: str, argument: Any) -> Any:
        self.count += 1
        return self._trace

    def _profile(self, frame: FrameType, event: str, argument: Any) -> None:
        if event == "c_call":
            self.count += 1


class Turns:
    """Keeps the steps of the longest callback that the loop makes within `watching`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.longest = 0
        self._watching = False
        steps = Steps()
        run_handle = asyncio.Handle._run

        def counted(handle: asyncio.Handle) -> None:
            if not self._watching:
                run_handle(handle)
                return
            with steps.counting():
                run_handle(handle)
            self.longest = max(self.longest, steps.count)

        monkeypatch.setattr(asyncio.Handle, "_run", counted)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Look for the longest callback from now on."""
        self.longest = 0
        self._watching = True
        try:
            yield
        finally:
            self._watching = False
