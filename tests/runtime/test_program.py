"""What a program's shell does with interpreter and loop: pauses of the collector are noted, the heap is
frozen, errors that come by the hundred are told once."""

from __future__ import annotations

import asyncio
import errno
import gc
import logging
import os
import sys
from collections.abc import Iterator
from typing import Any
from unittest.mock import Mock

import pytest

from dledger.runtime.gc_pauses import Pauses
from dledger.runtime.program import (
    ACCEPT_QUIET_S,
    GC_THRESHOLDS,
    SWITCH_INTERVAL_S,
    LoopErrors,
    run_until_signal,
    settle,
)


@pytest.fixture(autouse=True)
def same_switch_interval() -> Iterator[None]:
    """A program sets it for its process, which is the tests' here."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(0.005)
    yield
    sys.setswitchinterval(before)


def test_collections_are_recorded_while_the_program_runs_and_not_after() -> None:
    pauses = Pauses()
    thresholds = gc.get_threshold()

    async def start(stop: asyncio.Event) -> None:
        assert sys.getswitchinterval() == SWITCH_INTERVAL_S, "workers wait for the loop half a millisecond"
        assert gc.get_threshold() == GC_THRESHOLDS
        assert gc.get_freeze_count() > 1000, "modules are out of the collector's sight"
        gc.collect(0)
        gc.collect()

    run_until_signal(start, pauses)
    assert pauses.count[0] >= 1 and pauses.count[2] >= 1
    assert 0 < pauses.worst_s <= pauses.seconds
    seen = list(pauses.count)
    gc.collect()
    assert pauses.count == seen
    assert (gc.get_threshold(), gc.get_freeze_count()) == (thresholds, 0)


def test_what_is_there_when_the_program_is_up_is_frozen_too() -> None:
    kept: list[list[int]] = []

    async def start(stop: asyncio.Event) -> None:
        before = gc.get_freeze_count()
        kept.extend([number] for number in range(1000))
        settle()
        assert gc.get_freeze_count() >= before + 1000

    run_until_signal(start, Pauses())


def accept_failed(number: int = errno.EMFILE) -> dict[str, Any]:
    """What asyncio tells its exception handler for each try to accept a connection."""
    error = OSError(number, os.strerror(number))
    return {"message": "socket.accept() out of system resource", "exception": error, "socket": None}


def test_connections_that_cannot_be_accepted_are_told_once(caplog: pytest.LogCaptureFixture) -> None:
    """With 64 open files and as many idle connections there were 80 tracebacks a second."""

    async def start(stop: asyncio.Event) -> None:
        loop = asyncio.get_running_loop()
        for _ in range(300):
            loop.call_exception_handler(accept_failed())
        loop.call_exception_handler({"message": "a callback failed", "exception": ValueError("of another")})

    with caplog.at_level(logging.WARNING):
        run_until_signal(start, Pauses())
    told = [
        record.getMessage() for record in caplog.records if "the limit of open files is" not in record.message
    ]
    assert len(told) == 2 and "Too many open files" in told[0] and told[1].startswith("a callback failed")


def test_a_minute_later_they_are_told_again_with_their_number(caplog: pytest.LogCaptureFixture) -> None:
    loop = Mock()
    handler = LoopErrors()
    for loop.time.return_value in (0.0, 1.0, 2.0, ACCEPT_QUIET_S, ACCEPT_QUIET_S + 1):
        handler(loop, accept_failed(errno.ENFILE))
    assert [record.getMessage().rpartition(": ")[2] for record in caplog.records] == ["0", "2"]
    loop.default_exception_handler.assert_not_called()


@pytest.mark.parametrize(
    "context",
    [
        {"message": "Task exception was never retrieved"},
        {"message": "socket.accept() out of system resource", "exception": OSError(errno.EIO, "of a disk")},
        {"message": "Exception in callback", "exception": OSError(errno.EMFILE, "of a file")},
        {"exception": OSError(errno.EMFILE, "of nobody knows what")},
    ],
)
def test_all_other_errors_go_to_the_default_handler(context: dict[str, Any]) -> None:
    loop = Mock()
    LoopErrors()(loop, context)
    loop.default_exception_handler.assert_called_once_with(context)
