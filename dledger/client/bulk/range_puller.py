"""Pulling ranges of queues, for programs without an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence

from dledger.client.bulk.ranges import RangeOptions, RangeReader
from dledger.client.consuming.subscription import ALL
from dledger.client.errors import ClientError
from dledger.client.loop_thread import BlockingClient
from dledger.client.message import (
    MessageQueue,
)

PULLED_AHEAD = 8
"""How many queues a `RangePuller` pulls from at once. It is also the largest number of answers that wait for
the application."""


class RangePuller(BlockingClient[RangeReader]):
    """Lists queues and pulls ranges of them, without using any group's offsets; see
    `dledger.client.bulk.ranges`.

    >>> with RangePuller("127.0.0.1:9876", RangeOptions("reports")) as puller:  # doctest: +SKIP
    ...     bounds = puller.bounds(puller.queues("orders"))
    ...     for queue, records in puller.pull([(queue, *ends) for queue, ends in bounds.items()]): ...
    """

    def __init__(self, namesrv: str | Sequence[str], options: RangeOptions) -> None:
        super().__init__("range reader")
        self.options = options
        self._namesrv = namesrv

    def _make(self) -> RangeReader:
        return RangeReader(self._namesrv, self.options)

    def pull(
        self, ranges: Iterable[tuple[MessageQueue, int, int]], expression: str = ALL
    ) -> Iterator[tuple[MessageQueue, bytes]]:
        """Pull the records of all ranges at the same time; a range is (queue, start, end), without `end`.
        Yields (queue, records); the records of each range come in order."""
        inner, thread = self._open()
        arrived: asyncio.Queue[tuple[MessageQueue, bytes] | ClientError | None] = asyncio.Queue(PULLED_AHEAD)
        pulling = thread.submit(_pull_all(inner, list(ranges), expression, arrived))
        try:
            while (item := self._wait(thread, arrived.get())) is not None:
                if isinstance(item, ClientError):
                    raise item
                yield item
            pulling.result()
        finally:
            pulling.cancel()

    # Generated from RangeReader by scripts/blocking_methods.py: change it there.

    def broker_groups(self) -> list[str]:
        """The names of all broker groups that a NameServer knows, sorted. Raises NoNameServer."""
        return self._run(lambda inner: inner.broker_groups())

    def topics(self) -> list[str]:
        """All topics that any NameServer knows, sorted. Raises NoNameServer or BrokerRefused."""
        return self._run(lambda inner: inner.topics())

    def system_topics(self) -> list[str]:
        """Topics that brokers create for themselves, according to the NameServers; the list also contains the
        names of clusters and brokers."""
        return self._run(lambda inner: inner.system_topics())

    def queues(self, topic: str) -> list[MessageQueue]:
        """The queues of a topic. Raises TopicNotFound or NoNameServer."""
        return self._run(lambda inner: inner.queues(topic))

    def bounds(self, queues: Iterable[MessageQueue]) -> dict[MessageQueue, tuple[int, int]]:
        """For each queue: the offset of its oldest message, and the offset that its next message will get."""
        return self._run(lambda inner: inner.bounds(queues))

    def at_time(self, queues: Iterable[MessageQueue], timestamp_ms: int) -> dict[MessageQueue, int]:
        """For each queue: the offset of the first message stored at or after a time, in ms since the
        epoch."""
        return self._run(lambda inner: inner.at_time(queues, timestamp_ms))

    def lives(self, queues: Iterable[MessageQueue]) -> dict[tuple[str, str], str]:
        """Ask the leaders which lives the topics of these queues have (`formats.life`): (topic, broker group)
        -> life. It changes when the topic is deleted and made again.

        A topic is missing in the result if its group does not have it, or if the broker does not report
        lives, as Apache's brokers. Raises NoBroker, BrokerRefused.
        """
        return self._run(lambda inner: inner.lives(queues))

    def keeps_order(self, group: str) -> bool:
        """Whether store times never decrease in the queues of a broker group. True for our brokers, whose log
        guarantees this.

        Other brokers take store times from their own clock, which may be behind the clock of the leader
        before them. Raises NoBroker or BrokerRefused.
        """
        return self._run(lambda inner: inner.keeps_order(group))

    def recognise_resends(self, groups: Iterable[str]) -> dict[str, bool | None]:
        """Ask all registered brokers of these broker groups whether they recognise each message that is sent
        again with an idempotency key: address -> answer. They do if they are brokers of this project, not of
        an older version, and keep an index of keys (`messageIndexEnable`).

        The answer is None for a broker that cannot be reached, or that refuses to show its settings. Raises
        NoNameServer.
        """
        return self._run(lambda inner: inner.recognise_resends(groups))

    def oldest_times(self, groups: Iterable[str]) -> dict[str, int | None]:
        """Ask all registered brokers of these broker groups for the store time of the oldest entry of their
        log, in ms since the epoch: address -> answer. What was stored later is still in the log.

        The answer is None for a broker that cannot be reached, or that does not say it. Raises NoNameServer.
        """
        return self._run(lambda inner: inner.oldest_times(groups))


async def _pull_all(
    reader: RangeReader,
    ranges: Sequence[tuple[MessageQueue, int, int]],
    expression: str,
    arrived: asyncio.Queue[tuple[MessageQueue, bytes] | ClientError | None],
) -> None:
    free = asyncio.Semaphore(PULLED_AHEAD)

    async def one(queue: MessageQueue, start: int, end: int) -> None:
        async with free:
            try:
                async for records in reader.pull(queue, start, end, expression):
                    await arrived.put((queue, records))
            except ClientError as error:
                await arrived.put(error)

    try:
        async with asyncio.TaskGroup() as tasks:
            for queue, start, end in ranges:
                tasks.create_task(one(queue, start, end), name=f"pull {queue.topic} {queue.queue_id}")
    finally:
        await arrived.put(None)
