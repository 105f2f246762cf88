"""The guard. It raises an error when code inside a simulated node uses real time, real random numbers,
threads, sockets or files.

While the guard is installed, functions of the standard library are replaced by functions that check. Outside
of a node's turn they behave as usual. The guard cannot see names that were imported before it was installed
(`from time import monotonic`), nor C types (`datetime.now`). A lint over the syntax tree finds those.
"""

from __future__ import annotations

import builtins
import functools
import io
import os
import random
import secrets
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dledger.chaos.machine.job_thread import JobThread


class OutsideWorldError(Exception):
    """Raised when code of a node reaches the real clock, files, network or threads without the interfaces of
    `dledger/runtime/`."""


_TIME = (
    "time",
    "time_ns",
    "monotonic",
    "monotonic_ns",
    "perf_counter",
    "perf_counter_ns",
    "process_time",
    "process_time_ns",
    "sleep",
)
_RANDOM = (
    "random",
    "uniform",
    "randint",
    "randrange",
    "getrandbits",
    "randbytes",
    "choice",
    "choices",
    "sample",
    "shuffle",
    "gauss",
    "expovariate",
    "normalvariate",
    "triangular",
    "betavariate",
    "seed",
    "_urandom",
)
_TARGETS: tuple[tuple[object, tuple[str, ...]], ...] = (
    (time, _TIME),
    (random, _RANDOM),
    (os, ("urandom", "getrandom", "open", "fork")),
    (uuid, ("uuid1", "uuid4")),
    (secrets, ("token_bytes", "token_hex", "token_urlsafe", "randbits", "randbelow", "choice")),
    (threading.Thread, ("start",)),
    (socket.socket, ("__init__",)),
    (socket, ("socketpair", "create_connection", "getaddrinfo", "gethostname")),
    (subprocess.Popen, ("__init__",)),
    (builtins, ("open",)),
    (io, ("open",)),
)

# The logging module stamps each record with the machine's time. Such records never reach a trace.
_EXEMPT = ("logging",)


class Guard:
    """Context manager that installs the guard. The world sets `inside` while code of a node runs."""

    def __init__(self) -> None:
        self.inside = False
        self.installed: bool = False
        self._thread = 0
        self._other: JobThread | None = None  # the thread of a spread job
        # (place, name, original, replacement) of each function. Made at the first installation.
        self._replacements: list[tuple[Any, str, Any, Any]] = []

    def __enter__(self) -> Guard:
        if self.installed:
            raise RuntimeError("the guard is installed already")
        if not self._replacements:
            self._prepare()
        self.installed = True
        self._thread = threading.get_ident()
        for owner, name, _, replacement in self._replacements:
            setattr(owner, name, replacement)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.installed = False
        for owner, name, original, _ in self._replacements:
            setattr(owner, name, original)

    @contextmanager
    def watching(self, thread: JobThread) -> Iterator[None]:
        """Context manager that checks another thread too, while that thread runs code of a node."""
        own, self._other = self._other, thread
        try:
            yield
        finally:
            self._other = own

    def _is_ours(self) -> bool:
        # Other threads do not belong to the simulator.
        running = threading.get_ident()
        return running == self._thread or (self._other is not None and running == self._other.identity)

    def _prepare(self) -> None:
        for owner, names in _TARGETS:
            for name in names:
                original = getattr(owner, name, None)
                if original is not None:
                    label = f"{getattr(owner, '__name__', owner)}.{name}"
                    self._replacements.append((owner, name, original, self._checked(label, original)))
        seed = random.Random.seed
        self._replacements.append((random.Random, "seed", seed, self._checked_seed(seed)))

    def _refuses(self, caller: str) -> bool:
        return self.inside and caller.partition(".")[0] not in _EXEMPT and self._is_ours()

    def _checked(self, label: str, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def checked(*args: Any, **kwargs: Any) -> Any:
            if self.inside and self._refuses(sys._getframe(1).f_globals.get("__name__", "")):
                raise OutsideWorldError(f"{label}() inside a node: use the doors of runtime/")
            return original(*args, **kwargs)

        return checked

    def _checked_seed(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def seed(generator: random.Random, a: Any = None, *args: Any, **kwargs: Any) -> Any:
            if a is None and self.inside and self._is_ours():
                raise OutsideWorldError("random.Random() without a seed inside a node: use env.random")
            return original(generator, a, *args, **kwargs)

        return seed
