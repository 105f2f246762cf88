"""Several groups in one process (R12): a fault of one group leaves the others alone, also at the start."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from serve_group import ServeGroup

from dledger.chaos.machine import World
from dledger.errors import EXIT_STORE
from dledger.log.store import LogStore


def test_a_state_that_cannot_be_read_ends_its_own_group_only() -> None:
    with World(1) as world:
        group = ServeGroup(world, groups=("a", "b"))
        assert isinstance(group.append(b"x", group="a")[0], int)
        world.run_for(2)
        group.stop("n0")
        group.disk("n0").fail("open", 1000, "/store/a/count")
        group.start("n0")
        world.run_for(3)
        assert group.runs("n0")
        assert isinstance(group.append(b"y", group="b")[0], int)
        group.stop("n0")
        [failure] = group.failures["n0"]
        assert failure.exit_code == EXIT_STORE
        assert "/store/a/count" in failure.reason and "remove it" in failure.reason


def test_a_stop_does_not_wait_for_a_group_that_is_being_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    with World(1) as world:
        group = ServeGroup(world, groups=("a", "b"))
        group.append(b"x", group="a")
        world.run_for(2)
        group.stop("n0")
        opened = LogStore.open

        async def slow(self: LogStore, *args: Any, **kwargs: Any) -> Any:
            if "/b" in self._dir:
                await asyncio.sleep(60)
            return await opened(self, *args, **kwargs)

        monkeypatch.setattr(LogStore, "open", slow)
        group.start("n0")
        world.run_for(3)
        assert isinstance(group.append(b"y", group="a")[0], int)
        began = world.now
        group.stop("n0")
        assert (world.now - began) / 1e9 < 5
        monkeypatch.undo()
        group.start("n0")
        world.run_until(group.all_serve, 10)
        assert group.saved("n0", "a")["count"] == 2
