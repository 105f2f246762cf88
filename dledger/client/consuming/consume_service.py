"""Hands pulled messages to the listener: the common part of the two ways of consuming.

`concurrent_service` calls the listener with many messages at once, `orderly_service` with one after the other
for each queue.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

from dledger.client.consuming.consume_statistics import ConsumeStatistics
from dledger.client.consuming.consumer_options import ConsumerOptions
from dledger.client.consuming.listener_calls import ListenerCalls, Raised
from dledger.client.consuming.process_queue import ProcessQueue
from dledger.client.consuming.send_back import SendBack
from dledger.client.core import ClientCore
from dledger.client.listeners import Unit
from dledger.client.message import ReceivedMessage

_RESULTS = {
    "CONSUME_SUCCESS": "CR_SUCCESS",
    "SUCCESS": "CR_SUCCESS",
    "COMMIT": "CR_COMMIT",
    "ROLLBACK": "CR_ROLLBACK",
}
"""Maps the name of a listener's result to RocketMQ's CMResult. Any other result is CR_LATER."""


class Assigned(Protocol):
    """A queue assigned to this consumer, with its waiting messages."""

    process: ProcessQueue

    def consumed(self, messages: Sequence[ReceivedMessage]) -> None:
        """Note that these messages are finished."""


class ConsumeService:
    """Hands pulled messages to the listener of one consumer; base class of `ConcurrentService` and
    `OrderlyService`."""

    def __init__(
        self,
        core: ClientCore,
        calls: ListenerCalls,
        options: ConsumerOptions,
        consumer_group: str,
        broadcasting: bool,
        on_fatal: Callable[[BaseException], None],
        statistics: ConsumeStatistics,
    ) -> None:
        """`on_fatal` is called with an exception of a listener that ends the consumer."""
        self._statistics = statistics
        self._core = core
        self._calls = calls
        self._on_fatal = on_fatal
        self._options = options
        self._group = consumer_group
        self._broadcasting = broadcasting
        self._running = 0
        self._available = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._send_back = SendBack(core, consumer_group, options)

    def start(self) -> None:
        """Start the workers."""
        for number in range(self._options.concurrency):
            self._core.spawn(self._work(), f"consume {self._group} {number}")

    @property
    def inside(self) -> bool:
        """Whether the code that asks is itself running inside the listener."""
        return self._calls.inside

    def stop_soon(self) -> None:
        """Start no further call. May be called from any thread."""
        self._calls.stopped = True

    async def stop(self) -> None:
        """Start no further call, and wait for the running ones (up to `close_timeout_s`)."""
        self.stop_soon()
        self.clear()
        try:
            async with asyncio.timeout(self._options.close_timeout_s):
                await self._idle.wait()
        except TimeoutError:
            self._core.log.warning(
                "listeners are still running at close", group=self._group, calls=self._running
            )

    async def consume_now(self, message: ReceivedMessage) -> tuple[str, str | None]:
        """Call the listener with a message that an operator sent to this consumer. Returns RocketMQ's
        CMResult, and the reason if there is one (such as the exception of the listener). The result has no
        further effect."""
        results: list[object] = []
        unit: Unit = [message] if self._calls.batches else message
        verdicts, fatal = await self._calls.run([unit], results)
        if fatal is not None:
            self.stop_soon()
            self._on_fatal(fatal)
        if results and isinstance(results[-1], Raised):
            return "CR_THROW_EXCEPTION", repr(results[-1].error)
        return (_RESULTS.get(verdicts[0].value, "CR_LATER"), None) if verdicts else ("CR_LATER", "stopped")

    def put(self, assigned: Assigned, messages: Sequence[ReceivedMessage]) -> None:
        """Add messages of one queue to those that wait to be consumed."""
        raise NotImplementedError

    def clear(self) -> None:
        """Drop all waiting messages."""
        raise NotImplementedError

    async def _work_on_next(self) -> bool:
        """Take some waiting messages and call the listener with them. Returns False if no message is
        waiting."""
        raise NotImplementedError

    async def _work(self) -> None:
        while True:
            await self._available.wait()
            self._running += 1
            self._idle.clear()
            try:
                if not await self._work_on_next():
                    self._available.clear()
            finally:
                self._running -= 1
                if not self._running:
                    self._idle.set()
