"""What a leader does besides answering begins and ends with its leadership."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from dledger.broker.commit_log import CommitLogWriter
from dledger.broker.services import LeaderService, LeaderServices
from tests.client.fake_cluster import eventually

WRITER = cast(CommitLogWriter, object())


class Noted(LeaderService):
    def __init__(self, name: str, notes: list[str]) -> None:
        self.name = name
        self.notes = notes

    def begin(self, writer: CommitLogWriter) -> None:
        self.notes.append(f"begin {self.name}")

    async def run(self) -> None:
        self.notes.append(f"run {self.name}")
        try:
            while True:
                await asyncio.sleep(0.001)
                self.notes.append(f"turn {self.name}")
        finally:
            self.notes.append(f"cancelled {self.name}")

    def hand_over(self) -> None:
        self.notes.append(f"hand over {self.name}")

    def end(self, reason: str) -> None:
        self.notes.append(f"end {self.name}: {reason}")


class WithoutTask(LeaderService):
    """Leaves out every step."""


def test_they_begin_in_order_and_end_backwards() -> None:
    async def test() -> None:
        notes: list[str] = []
        services = LeaderServices([Noted("a", notes), WithoutTask(), Noted("b", notes)])
        owner = asyncio.create_task(services.run(), name="services")
        await asyncio.sleep(0)
        services.begin(WRITER)
        assert notes == ["begin a", "begin b"], "the tasks come a turn later"
        await eventually(lambda: "turn a" in notes)
        assert notes[2:4] == ["run a", "run b"]
        services.hand_over()
        assert notes[-2:] == ["hand over a", "hand over b"]
        services.end("over")
        assert notes[-2:] == ["end b: over", "end a: over"]
        count = len(notes)
        await eventually(lambda: len(notes) >= count + 2)
        assert sorted(notes[count:]) == ["cancelled a", "cancelled b"], "not one turn more"
        owner.cancel()
        with pytest.raises(asyncio.CancelledError):
            await owner

    asyncio.run(test())


def test_a_leadership_that_ends_before_the_first_step_runs_nothing() -> None:
    async def test() -> None:
        notes: list[str] = []
        services = LeaderServices([Noted("a", notes)])
        services.begin(WRITER)  # before the broker has started its tasks
        services.end("over")
        owner = asyncio.create_task(services.run(), name="services")
        await asyncio.sleep(0.01)
        services.begin(WRITER)
        services.end("again")
        await asyncio.sleep(0.01)
        assert notes == ["begin a", "end a: over", "begin a", "end a: again"]
        owner.cancel()
        with pytest.raises(asyncio.CancelledError):
            await owner

    asyncio.run(test())


def test_what_a_service_raises_ends_the_broker() -> None:
    class Broken(LeaderService):
        async def run(self) -> None:
            raise ValueError("a bug")

    async def test() -> None:
        services = LeaderServices([Broken()])
        services.begin(WRITER)
        with pytest.raises(ExceptionGroup) as raised:
            await services.run()
        assert isinstance(raised.value.exceptions[0], ValueError)

    asyncio.run(test())
