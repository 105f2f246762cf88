"""Keeps one dialling task for every wanted peer, while the set of wanted peers changes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import Any


class Dials:
    """Runs `dial(peer, address)`, which keeps a connection until it is cancelled, for each peer given to
    `want`."""

    def __init__(self, name: str, dial: Callable[[str, str], Coroutine[Any, Any, None]]) -> None:
        self._name = name
        self._dial = dial
        self._wanted: dict[str, str] = {}
        self._changed = asyncio.Event()

    def want(self, addresses: Mapping[str, str]) -> None:
        """Keep connections to these peers from now on, id -> host:port."""
        if addresses != self._wanted:
            self._wanted = dict(addresses)
            self._changed.set()

    async def run(self) -> None:
        """Dial until cancelled. An error that a task raises ends all tasks."""
        running: dict[str, tuple[str, asyncio.Task[None]]] = {}
        async with asyncio.TaskGroup() as group:
            while True:
                for peer, (address, task) in list(running.items()):
                    if self._wanted.get(peer) != address:
                        del running[peer]
                        task.cancel()
                for peer, address in sorted(self._wanted.items()):
                    if peer not in running:
                        work = self._dial(peer, address)
                        running[peer] = (
                            address,
                            group.create_task(work, name=f"{self._name}-dial-{peer}"),
                        )
                await self._changed.wait()
                self._changed.clear()
