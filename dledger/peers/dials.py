"""Keeps one task for each peer to which a connection is wanted, while the set of these peers changes. A task
dials its peer again and again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import Any


class Dials:
    """Runs one task `dial(peer, address)` for each peer given to `want`. `dial` keeps a connection until it
    is cancelled."""

    def __init__(self, name: str, dial: Callable[[str, str], Coroutine[Any, Any, None]]) -> None:
        self._name = name
        self._dial = dial
        self._wanted: dict[str, str] = {}
        self._changed = asyncio.Event()

    def want(self, addresses: Mapping[str, str]) -> None:
        """Keep connections to these peers from now on. `addresses` maps the id of a peer to its host:port."""
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
