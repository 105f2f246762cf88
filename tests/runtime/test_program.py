"""What a program's shell does with the interpreter: the collector's pauses are noted, its heap is frozen."""

from __future__ import annotations

import asyncio
import gc
import sys
from collections.abc import Iterator

import pytest

from runtime.pauses import Pauses
from runtime.program import GC_THRESHOLDS, SWITCH_INTERVAL_S, run_until_signal, settle


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
