"""How fast messages that waited are delivered."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from dledger.broker.schedule import delivery_pace
from dledger.broker.schedule.delivery_pace import (
    BATCH_BYTES,
    SHARED_BATCH_BYTES,
    UNDERWAY_BYTES,
    DeliveryPace,
)
from tests.broker.harness import run, skip_s

WRITER = cast(Any, SimpleNamespace(max_batch=4 * 1024 * 1024))


def test_alone_much_may_be_under_way() -> None:
    async def test() -> None:
        applied = 0
        pace = DeliveryPace([], lambda: applied)
        assert pace.room(WRITER) == BATCH_BYTES and not pace.full and not pace.waits
        batches = UNDERWAY_BYTES // BATCH_BYTES
        for number in range(batches):
            assert not pace.full
            pace.added(number + 1, BATCH_BYTES)
        assert pace.full and pace.waits
        applied = 1
        assert not pace.full and pace.waits
        applied = batches
        assert not pace.full and not pace.waits

    run(test)


def test_beside_others_one_small_batch_is_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        monkeypatch.setattr(delivery_pace, "SHARED_S", 60.0)
        applied, waiting = 0, ["an answer"]
        pace = DeliveryPace(waiting, lambda: applied)
        assert pace.room(WRITER) == SHARED_BATCH_BYTES
        pace.added(1, 100)
        assert pace.full
        applied = 1
        assert not pace.full
        pace.added(2, 0)  # its messages were recalled: there is nothing whose arrival could be heard of
        assert not pace.full
        pace.added(3, 100)
        waiting.clear()
        assert pace.full  # others were there just now
        await skip_s(60)
        assert not pace.full and pace.room(WRITER) == BATCH_BYTES
        assert pace.room(cast(Any, SimpleNamespace(max_batch=1000))) == 1000
        pace.clear()
        assert not pace.waits

    run(test)
