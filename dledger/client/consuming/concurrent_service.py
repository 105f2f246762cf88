"""Consuming many messages at once, in no particular order (ConsumeMessageConcurrentlyService)."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence

from msgspec.structs import replace

from dledger.client.consuming.consume_service import Assigned, ConsumeService
from dledger.client.consuming.consume_statistics import ConsumeStatistics
from dledger.client.consuming.consumer_options import ConsumerOptions
from dledger.client.consuming.listener_calls import ListenerCalls, place
from dledger.client.consuming.send_back import message_name
from dledger.client.core import ClientCore
from dledger.client.listeners import ConsumeStatus, Status, Unit, messages_of
from dledger.client.message import ReceivedMessage

MAX_CHUNK = 32
"""Largest number of messages that one worker takes at once; it takes so many only while many wait."""
WATCHED_TIMES = 8
"""How often, within `consume_timeout_s`, running calls are checked."""
RETRY_LEVEL = 3
"""Delay level (10 s) of messages whose call took too long, as in RocketMQ."""


class _Run:
    """The messages that one worker has taken at once. They are watched, to find calls that take too long.

    A *unit* is the argument of one call of the listener: a message or a batch.
    """

    def __init__(self, assigned: Assigned, units: list[Unit], now: float) -> None:
        self.assigned = assigned
        self.units = units
        self.results: list[object] = []
        self.at = 0
        self.settled = 0
        """How many units, counted from the first, are finished although the run goes on. Their result does
        not wait for a later unit whose call takes too long."""
        self.since = now
        """Loop time at which the worker was first seen working on unit number `at`."""
        self.sent_back: set[int] = set()
        """Queue offsets of messages that are sent back to the broker because their call took too long."""


class ConcurrentService(ConsumeService):
    """Calls the listener with messages of any queue as they arrive, many at once."""

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
        super().__init__(core, calls, options, consumer_group, broadcasting, on_fatal, statistics)
        self._backlog: deque[tuple[Assigned, deque[ReceivedMessage]]] = deque()
        self._waiting = 0
        self._runs: dict[_Run, None] = {}

    def start(self) -> None:
        """See `ConsumeService`."""
        super().start()
        self._core.spawn(self._watch(), f"watch {self._group}")

    def put(self, assigned: Assigned, messages: Sequence[ReceivedMessage]) -> None:
        """See `ConsumeService`."""
        if messages and not self._calls.stopped:
            self._backlog.append((assigned, deque(messages)))
            self._waiting += len(messages)
            self._available.set()

    def clear(self) -> None:
        """See `ConsumeService`."""
        self._backlog.clear()

    async def _work_on_next(self) -> bool:
        taken = self._take()
        if taken is None:
            return False
        await self._consume(*taken)
        return True

    def _take(self) -> tuple[Assigned, list[ReceivedMessage]] | None:
        """Take messages for one worker. It takes few while few messages wait, so that all workers get
        some."""
        while self._backlog and not self._calls.stopped:
            assigned, messages = self._backlog[0]
            if assigned.process.dropped:
                self._waiting -= len(messages)
                self._backlog.popleft()
                continue
            count = min(MAX_CHUNK, max(1, self._waiting // self._options.concurrency))
            if self._calls.batches:
                count = max(count, self._options.batch_size)
            chunk = [messages.popleft() for _ in range(min(count, len(messages)))]
            self._waiting -= len(chunk)
            if not messages:
                self._backlog.popleft()
            return assigned, chunk
        self._waiting = 0
        return None

    async def _consume(self, assigned: Assigned, messages: list[ReceivedMessage]) -> None:
        units: list[Unit] = list(messages)
        if self._calls.batches:
            size = self._options.batch_size
            units = [messages[at : at + size] for at in range(0, len(messages), size)]
        run = _Run(assigned, units, self._core.now())
        self._runs[run] = None
        began = self._core.now()
        try:
            verdicts, fatal = await self._calls.run(units, run.results)
        finally:
            del self._runs[run]
        if fatal is not None:
            self.stop_soon()
            self._on_fatal(fatal)
        done, failed = _parted(run, units, verdicts)
        self._statistics.called(
            assigned.process.queue.topic, len(done), len(failed), len(verdicts), self._core.now() - began
        )
        if run.settled:
            done, failed = _parted(run, units[run.settled :], verdicts[run.settled :])
        await self._settle(assigned, done, failed)

    async def _settle(
        self, assigned: Assigned, done: list[ReceivedMessage], failed: list[ReceivedMessage]
    ) -> None:
        if assigned.process.dropped:
            return  # the queue's new owner consumes them again
        for message in failed:
            if self._broadcasting:
                self._core.log.warning(
                    "message dropped: broadcasting mode has no retries", **message_name(message)
                )
                done.append(message)
            elif await self._send_back.send(message):
                done.append(message)
            else:
                self._retry_here(assigned, message)
        assigned.consumed(done)

    async def _watch(self) -> None:
        """Look for calls that take too long, until cancelled."""
        limit_s = self._options.consume_timeout_s
        while True:
            await asyncio.sleep(limit_s / WATCHED_TIMES)
            now = self._core.now()
            for run in list(self._runs):
                at = place(run.results)
                if at != run.at:
                    run.at, run.since = at, now
                elif now - run.since >= limit_s and at < len(run.units):
                    await self._too_long(run, at)

    async def _too_long(self, run: _Run, at: int) -> None:
        messages = [one for one in messages_of(run.units[at]) if one.queue_offset not in run.sent_back]
        if not messages:
            return
        limit_s = self._options.consume_timeout_s
        self._core.log.warning("listener takes too long", limit_s=limit_s, **message_name(messages[0]))
        behind = [message for unit in run.units[at + 1 :] for message in messages_of(unit)]
        del run.units[at + 1 :]  # other workers take them
        self.put(run.assigned, behind)
        await self._take_back(run, messages)
        if run in self._runs:
            # Messages before this call must not keep the committed offset back either.
            units, results = run.units[run.settled : at], run.results[run.settled : at]
            run.settled = at
            verdicts = [self._calls.verdict(*one) for one in zip(units, results, strict=True)]
            await self._settle(run.assigned, *_parted(run, units, verdicts))

    async def _take_back(self, run: _Run, messages: list[ReceivedMessage]) -> None:
        for message in messages:
            if self._broadcasting or run.assigned.process.dropped:
                return
            run.sent_back.add(
                message.queue_offset
            )  # before sending: the call may end meanwhile, and would send it back again
            if await self._send_back.send(message, RETRY_LEVEL):
                run.assigned.consumed([message])
                continue
            run.sent_back.discard(message.queue_offset)  # the call's result counts, or the next check
            if run not in self._runs:
                self._retry_here(run.assigned, message)  # the call ended meanwhile; its result was ignored

    def _retry_here(self, assigned: Assigned, message: ReceivedMessage) -> None:
        """Call the listener with this message again after a pause. Until then the committed offset stays
        before the message."""
        options = self._options
        pause = options.send_back_retry_s
        if not self._send_back.supported(message):
            tries = min(message.reconsume_times, 16)
            pause = min(options.local_retry_first_s * 2**tries, options.local_retry_longest_s)
        again = replace(message, reconsume_times=message.reconsume_times + 1)
        asyncio.get_running_loop().call_later(pause, self.put, assigned, [again])


def _parted(
    run: _Run, units: Sequence[Unit], verdicts: Sequence[Status]
) -> tuple[list[ReceivedMessage], list[ReceivedMessage]]:
    """Split the messages of these units into those that are consumed and those that failed. Messages that
    were sent back meanwhile are in neither list."""
    done: list[ReceivedMessage] = []
    failed: list[ReceivedMessage] = []
    # Units after a stop have no verdict. They stay in process, so the committed offset stays before them.
    for unit, status in zip(units, verdicts, strict=False):
        members = [one for one in messages_of(unit) if one.queue_offset not in run.sent_back]
        (done if status is ConsumeStatus.SUCCESS else failed).extend(members)
    return done, failed
