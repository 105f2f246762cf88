"""Consumes in order: one call at a time for each queue, and no message after one that failed
(ConsumeMessageOrderlyService)."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence

from msgspec.structs import replace

from dledger.client.consuming.consume_service import Assigned, ConsumeService
from dledger.client.consuming.consume_statistics import ConsumeStatistics
from dledger.client.consuming.consumer_options import ConsumerOptions, reconsume_limit
from dledger.client.consuming.listener_calls import ListenerCalls
from dledger.client.consuming.send_back import DEAD_LETTER, message_name
from dledger.client.core import ClientCore
from dledger.client.listeners import CONSUMED, ConsumeOrderlyStatus, ConsumeStatus, Unit
from dledger.client.message import ReceivedMessage

TURN_S = 1.0
"""A worker works on one queue for at most this many seconds, then it turns to the next one
(maxTimeConsumeContinuously)."""


class _InOrder:
    """One queue: its waiting messages, and whether a worker has it."""

    def __init__(self, assigned: Assigned) -> None:
        self.assigned = assigned
        self.waiting: deque[ReceivedMessage] = deque()
        self.open: list[ReceivedMessage] = []
        """Messages that the listener has consumed, but for which it has not yet returned COMMIT. Used with
        `auto_commit=False`."""
        self.listed = False
        """Whether this queue is in the list of queues with work, or at a worker, or waiting for its next
        attempt."""
        self.idle = asyncio.Event()
        self.idle.set()


class OrderlyService(ConsumeService):
    """Calls the listener with the messages of a queue one after the other (ConsumeMessageOrderlyService)."""

    def __init__(
        self,
        core: ClientCore,
        calls: ListenerCalls,
        options: ConsumerOptions,
        consumer_group: str,
        broadcasting: bool,
        on_fatal: Callable[[BaseException], None],
        statistics: ConsumeStatistics,
        may_call: Callable[[Assigned], bool],
    ) -> None:
        """`may_call` returns whether this consumer may work on a queue at this moment."""
        super().__init__(core, calls, options, consumer_group, broadcasting, on_fatal, statistics)
        self._may_call = may_call
        self._queues: dict[Assigned, _InOrder] = {}
        self._ready: deque[_InOrder] = deque()

    def put(self, assigned: Assigned, messages: Sequence[ReceivedMessage]) -> None:
        """See `ConsumeService`."""
        if messages and not self._calls.stopped:
            found = self._queues.get(assigned)
            if found is None:
                found = self._queues[assigned] = _InOrder(assigned)
            found.waiting.extend(messages)
            self._list(found)

    async def released(self, assigned: Assigned) -> None:
        """Wait until no call for this queue is running. The caller must have made sure that no other call
        begins."""
        found = self._queues.get(assigned)
        if found is not None:
            await found.idle.wait()
            self._queues.pop(assigned, None)

    def busy(self, assigned: Assigned) -> bool:
        """Whether a call for this queue is running."""
        found = self._queues.get(assigned)
        return found is not None and not found.idle.is_set()

    def clear(self) -> None:
        """See `ConsumeService`."""
        self._ready.clear()

    def _list(self, queue: _InOrder) -> None:
        if not queue.listed and queue.waiting:
            queue.listed = True
            self._ready.append(queue)
            self._available.set()

    async def _work_on_next(self) -> bool:
        if not self._ready:
            return False
        queue = self._ready.popleft()
        queue.idle.clear()
        try:
            pause_s = await self._turn(queue)
        finally:
            queue.idle.set()
        if pause_s:
            asyncio.get_running_loop().call_later(pause_s, self._again, queue)
        else:
            self._again(queue)
        return True

    def _again(self, queue: _InOrder) -> None:
        queue.listed = False
        if self._ends(queue):
            self._queues.pop(queue.assigned, None)
        else:
            self._list(queue)

    def _ends(self, queue: _InOrder) -> bool:
        process = queue.assigned.process
        return process.dropped or process.leaving or self._calls.stopped

    async def _turn(self, queue: _InOrder) -> float:
        """Call the listener with the waiting messages of a queue, one after the other, for up to `TURN_S`.
        Returns how many seconds the queue has to pause before its next turn."""
        until = self._core.now() + TURN_S
        while queue.waiting and self._core.now() < until:
            # Checked before each call, because a lock may expire in the middle of a turn.
            if self._ends(queue):
                return 0.0
            if not self._may_call(queue.assigned):
                return self._options.suspend_s  # the lock is lost, and soon the queue is, too
            unit: Unit
            if self._calls.batches:
                unit = [
                    queue.waiting.popleft() for _ in range(min(self._options.batch_size, len(queue.waiting)))
                ]
            else:
                unit = queue.waiting.popleft()
            messages = [unit] if isinstance(unit, ReceivedMessage) else list(unit)
            began = self._core.now()
            statuses, fatal = await self._calls.run([unit])
            if fatal is not None:
                self.stop_soon()
                self._on_fatal(fatal)
            if queue.assigned.process.dropped or not statuses:
                return 0.0  # the queue's new owner consumes them again
            consumed = len(messages) if statuses[0] in CONSUMED else 0
            took_s = self._core.now() - began
            topic = queue.assigned.process.queue.topic
            self._statistics.called(topic, consumed, len(messages) - consumed, 1, took_s)
            if not await self._settle(queue, messages, statuses[0]):
                return self._options.suspend_s
        return 0.0

    async def _settle(self, queue: _InOrder, messages: list[ReceivedMessage], status: object) -> bool:
        """Do what the listener's status demands. Returns whether the queue goes on at once, without a
        pause."""
        if status in (ConsumeStatus.SUCCESS, ConsumeOrderlyStatus.SUCCESS):
            queue.open += messages
            if self._options.auto_commit:
                self._commit(queue)
            return True
        if status is ConsumeOrderlyStatus.COMMIT:
            queue.open += messages
            self._commit(queue)
            return True
        if status is ConsumeOrderlyStatus.ROLLBACK:
            queue.waiting.extendleft(reversed([*queue.open, *messages]))
            queue.open = []
            return False
        again = await self._failed(queue, messages)
        queue.waiting.extendleft(reversed(again))
        return not again

    def _commit(self, queue: _InOrder) -> None:
        queue.assigned.consumed(queue.open)
        queue.open = []

    async def _failed(self, queue: _InOrder, messages: list[ReceivedMessage]) -> list[ReceivedMessage]:
        """Return the failed messages that will be delivered to the listener again. Messages that have used up
        their deliveries are sent to the dead letters instead."""
        again: list[ReceivedMessage] = []
        for message in messages:
            limit = reconsume_limit(self._options, orderly=True)
            if limit is None or message.reconsume_times < limit:
                again.append(replace(message, reconsume_times=message.reconsume_times + 1))
            elif self._broadcasting:
                self._core.log.warning(
                    "message dropped: broadcasting mode has no dead letters", **message_name(message)
                )
                queue.assigned.consumed([message])
            elif await self._send_back.send(message, DEAD_LETTER):
                queue.assigned.consumed([message])
            else:
                again.append(message)
        return again
