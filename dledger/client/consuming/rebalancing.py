"""Decides which queues this consumer works on. Starts a reader for each of these queues, commits their
offsets, and hands queues over to other consumers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Container, Iterable, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Protocol

from dledger.client.consuming.allocation import allocate, strategy_of
from dledger.client.consuming.consume_statistics import ConsumeStatistics
from dledger.client.consuming.consumer_options import ConsumerOptions
from dledger.client.consuming.initial_offsets import InitialOffsets
from dledger.client.consuming.offsets import Progress
from dledger.client.consuming.orderly_service import OrderlyService
from dledger.client.consuming.process_queue import ProcessQueue
from dledger.client.consuming.queue_locks import QueueLocks
from dledger.client.consuming.queue_reader import QueueReader
from dledger.client.consuming.subscription import Subscription
from dledger.client.core import ClientCore
from dledger.client.encoding import RETRY_PREFIX
from dledger.client.errors import BrokerRefused, ClientError, TopicNotFound, refused_text
from dledger.client.message import MessageQueue, ReceivedMessage
from dledger.client.routes import subscribe_queues
from dledger.remoting.bodies import ConsumerIdList, decode_body
from dledger.remoting.codes import RequestCode, ResponseCode
from dledger.remoting.errors import BadBody
from dledger.remoting.headers import ConsumerGroupHeader

RETRY_TOPIC_TRIES = 10
"""How often the client looks for a missing retry topic of the group after short pauses. After that it looks
only at each regular rebalance."""


class Receiver(Protocol):
    """Receives the messages of all queues of this consumer."""

    def put(self, assigned: AssignedQueue, messages: Sequence[ReceivedMessage]) -> None:
        """Take messages of one queue, in order."""


class AssignedQueue:
    """A queue that this consumer works on: its waiting messages, its reader, and the reader's task. It is
    also the reader's sink."""

    def __init__(
        self,
        process: ProcessQueue,
        subscription: Subscription,
        dispatcher: Receiver,
        now_ms: Callable[[], int],
        on_reset: Callable[[int], None],
        locked: bool,
        statistics: ConsumeStatistics,
    ) -> None:
        self.process = process
        self.locked = locked
        """Whether the queue is locked, so that no other consumer may work on it."""
        self.pulled_at_ms: int = now_ms()
        """Wall-clock time, in ms since the epoch, at which a pull last moved the offset. Its messages may all
        have been filtered out."""
        self.consumed_at_ms: int = self.pulled_at_ms
        """Wall-clock time at which messages of this queue were last finished, in ms since the epoch."""
        self._statistics = statistics
        self._now_ms = now_ms
        self._on_reset = on_reset
        self.subscription = subscription
        self.committed: int | None = None
        self.sought = False
        """Whether the user chose the offset of this queue and it has not been committed since."""
        self.reader: QueueReader
        self.task: asyncio.Task[None]
        self._dispatcher = dispatcher
        self._room = asyncio.Event()

    async def room(self) -> None:
        while self.process.full:
            self._room.clear()
            await self._room.wait()

    def put(self, messages: list[ReceivedMessage], next_offset: int) -> None:
        self.pulled_at_ms = self._now_ms()
        if messages:
            self._statistics.pulled(self.process.queue.topic, len(messages), self.reader.pull_s)
        self.process.put(messages, next_offset)
        self._dispatcher.put(self, messages)

    def moved(self, next_offset: int) -> None:
        self.process.reset(next_offset)

    def reset(self, next_offset: int) -> None:
        self._on_reset(next_offset)

    def consumed(self, messages: Sequence[ReceivedMessage]) -> None:
        self.consumed_at_ms = self._now_ms()
        self.process.remove(messages)
        self._room.set()


def _reading(queue: MessageQueue) -> str:
    return f"pull {queue.topic} {queue.broker_name} {queue.queue_id}"


class QueueShare:
    """The queues that this consumer works on."""

    def __init__(
        self,
        core: ClientCore,
        consumer_group: str,
        options: ConsumerOptions,
        progress: Progress,
        dispatcher: Receiver,
        locks: QueueLocks | None,
        statistics: ConsumeStatistics,
    ) -> None:
        """`locks` is given for a consumer that works in order and shares the queues with others."""
        self._statistics = statistics
        self._core = core
        self._group = consumer_group
        self._options = options
        self._progress = progress
        self._dispatcher = dispatcher
        self._locks = locks
        self._assigned: dict[MessageQueue, AssignedQueue] = {}
        self._leaving: dict[MessageQueue, AssignedQueue] = {}
        """Queues that this consumer is handing over. They stay locked until the running call for them has
        ended."""
        self._told: dict[MessageQueue, int] = {}
        """Maps a queue to a new offset that somebody else (such as an operator) set for the group. This
        consumer released the queue because of it, and the next owner begins at this offset. The offset at the
        broker may be stale, because a commit was in flight."""
        self._committing = asyncio.Lock()
        self.on_reset: Callable[[], None] = lambda: None
        """Called when queues have to be divided again, because some were released to begin at another
        offset."""

    @property
    def queues(self) -> list[MessageQueue]:
        """The queues that this consumer works on, sorted."""
        return sorted(self._assigned)

    @property
    def leaving(self) -> list[MessageQueue]:
        """Queues that are being handed over."""
        return list(self._leaving)

    async def committed(self, queue: MessageQueue) -> int | None:
        """The offset at which the group continues in a queue; None if it has no committed offset."""
        told = self._told.pop(queue, None)
        return await self._progress.load(queue) if told is None else told

    def add(self, queue: MessageQueue, subscription: Subscription, start: int) -> None:
        """Begin to work on a queue."""
        assigned = AssignedQueue(
            ProcessQueue(queue, start, self._options.pull.flow),
            subscription,
            self._dispatcher,
            self._core.env.wall.now_ms,
            partial(self.reset, queue),
            self._locks is not None,
            self._statistics,
        )
        assigned.reader = QueueReader(
            self._core, self._group, queue, subscription, self._options.pull, start, assigned
        )
        assigned.task = self._core.spawn(assigned.reader.run(), _reading(queue))
        self._assigned[queue] = assigned

    def assigned(self, queue: MessageQueue) -> AssignedQueue | None:
        """The state of a queue of this consumer; None if the queue is not assigned to it."""
        return self._assigned.get(queue)

    def select(self, queue: MessageQueue, subscription: Subscription) -> None:
        """Use another subscription for a queue, from its current offset on. A pull that waits at a broker is
        restarted."""
        assigned = self._assigned[queue]
        if assigned.subscription != subscription:
            assigned.subscription = assigned.reader.subscription = subscription
            assigned.task.cancel()
            assigned.task = self._core.spawn(assigned.reader.run(), _reading(queue))

    def restart(self, queue: MessageQueue, offset: int, *, sought: bool = False) -> None:
        """Continue a queue at another offset. `sought`: the user chose this offset. Messages of the queue
        that are in process no longer count."""
        assigned = self._assigned.pop(queue)
        assigned.process.dropped = True
        assigned.task.cancel()
        self.add(queue, assigned.subscription, offset)
        self._assigned[queue].sought = sought

    def reset(self, queue: MessageQueue, offset: int) -> None:
        """Continue at this offset, because somebody else (such as an operator) has set the group's offset.
        Messages of the queue that are in process no longer count; those at or after the offset come again."""
        assigned = self._assigned.get(queue)
        leaving = self._leaving.get(queue)
        if assigned is None and leaving is not None:  # the offset at which it ended no longer counts
            leaving.process.dropped = True
            if self._locks is not None and self._locks.holds(queue):
                self._told[queue] = offset
        elif queue in self._told:
            self._told[queue] = offset
        if assigned is None or (not assigned.process.count and assigned.process.commit_offset == offset):
            return
        self._core.log.info("offset was reset", group=self._group, queue=queue, to=offset)
        if self._locks is None:
            self.restart(queue, offset)
            return
        assigned.process.dropped = True
        self._told[queue] = offset
        self._begin_leaving([queue], self._locks)  # a call may be running: the next one waits for its end
        self.on_reset()

    def all(self) -> list[tuple[MessageQueue, AssignedQueue]]:
        """All queues of this consumer, sorted, each with its state."""
        return sorted(self._assigned.items(), key=lambda item: item[0])

    async def not_ours(self, queues: Iterable[MessageQueue]) -> None:
        """Note that other consumers get these queues. If the group's offsets in them were set by somebody
        else, and this consumer knows the new offsets, it commits them. Then it releases the locks of these
        queues."""
        if self._locks is None:
            return
        ours = [queue for queue in queues if queue not in self._assigned and queue not in self._leaving]
        told = {queue: self._told.pop(queue) for queue in ours if queue in self._told}
        if not await self._save({queue: told[queue] for queue in told if self._locks.holds(queue)}):
            self._told = told | self._told  # the next rebalance tries again
        held = self._locks.queues
        await self._locks.unlock([queue for queue in ours if queue in held and queue not in self._told])

    async def remove(self, queues: Sequence[MessageQueue]) -> None:
        """Hand queues over: commit what was consumed, and leave the rest to the next owner."""
        if self._locks is not None:
            self._begin_leaving(queues, self._locks)
            return
        offsets: dict[MessageQueue, int] = {}
        back: set[MessageQueue] = set()
        for queue in queues:
            assigned = self._assigned.pop(queue)
            assigned.process.dropped = True
            assigned.task.cancel()
            if assigned.process.commit_offset != assigned.committed:
                offsets[queue] = assigned.process.commit_offset
                if assigned.sought:
                    back.add(queue)
        await self._save(offsets, back)

    def _begin_leaving(self, queues: Sequence[MessageQueue], locks: QueueLocks) -> None:
        for queue in queues:
            assigned = self._leaving[queue] = self._assigned.pop(queue)
            assigned.process.leaving = True
            assigned.task.cancel()
            name = f"hand over {queue.topic} {queue.broker_name} {queue.queue_id}"
            self._core.spawn(self._leave(queue, assigned, locks), name)

    async def _leave(self, queue: MessageQueue, assigned: AssignedQueue, locks: QueueLocks) -> None:
        """Hand over a locked queue: wait until no call for it is running, commit what was consumed, and
        release the lock. So the next owner begins where this consumer ended."""
        await self._released(assigned)
        gone = assigned.process.dropped  # lost, or set to another offset: its own offset is not committed
        if not gone:
            assigned.process.dropped = True
            if assigned.process.commit_offset != assigned.committed:
                back = (queue,) if assigned.sought else ()
                await self._save({queue: assigned.process.commit_offset}, back)
            if queue not in self._told:  # a reset may have come meanwhile
                await locks.unlock([queue])
        self._leaving.pop(queue, None)
        if gone or queue in self._told:
            self.on_reset()  # we may get it again; another consumer has to wait until our lock expires

    async def _released(self, assigned: AssignedQueue) -> None:
        if isinstance(self._dispatcher, OrderlyService):
            await self._dispatcher.released(assigned)

    def lost(self, queue: MessageQueue) -> None:
        """Handle the loss of a queue's lock: the results of running calls no longer count. If this consumer
        gets the queue again while a call is still running, the next call waits until that call has ended."""
        if self._locks is None:
            return
        self._told.pop(queue, None)
        assigned = self._assigned.get(queue) or self._leaving.get(queue)
        if assigned is not None:
            assigned.process.dropped = True
            if queue in self._assigned:
                self._begin_leaving([queue], self._locks)

    async def commit(self) -> None:
        """Commit what was consumed since the last commit. Errors are logged, and the commit is retried."""
        try:
            await self.commit_now()
        except (ClientError, OSError) as error:
            self._not_committed(error)

    async def commit_now(self) -> None:
        """Commit what was consumed since the last commit. Raises ClientError or OSError.

        Commits run one after the other. Otherwise two commits that set a queue back could run at the same
        time, and the later one could undo what another consumer of the group committed between them.
        """
        async with self._committing:
            own = {**self._leaving, **self._assigned}
            offsets = {
                queue: assigned.process.commit_offset
                for queue, assigned in own.items()
                if not assigned.process.dropped and assigned.process.commit_offset != assigned.committed
            }
            if offsets:
                sought = {queue for queue in offsets if own[queue].sought}
                await self._progress.save(offsets, sought)
                for queue, offset in offsets.items():
                    own[queue].committed = offset
                    own[queue].sought = False

    async def commit_periodically(self) -> None:
        """Commit every `commit_s`, until cancelled."""
        while True:
            await asyncio.sleep(self._options.commit_s)
            await self.commit()

    def pause(self) -> None:
        """Stop pulling."""
        for assigned in self._assigned.values():
            assigned.task.cancel()

    async def close(self) -> None:
        """Commit a last time and release all queues."""
        await self.commit()
        if self._locks is not None:
            await self._save({queue: at for queue, at in self._told.items() if self._locks.holds(queue)})
        self._told = {}
        own = {**self._assigned, **self._leaving}
        for assigned in own.values():
            assigned.process.dropped = True
        self._assigned.clear()
        if self._locks is not None:
            # A queue whose listener still runs stays locked, until the lock expires.
            held = self._locks.queues
            await self._locks.unlock([one for one in held if one not in own or not self._busy(own[one])])

    def _busy(self, assigned: AssignedQueue) -> bool:
        return isinstance(self._dispatcher, OrderlyService) and self._dispatcher.busy(assigned)

    async def _save(self, offsets: dict[MessageQueue, int], back: Container[MessageQueue] = ()) -> bool:
        """Save offsets; returns whether that succeeded. Errors are logged.

        A save that sets a queue back waits for a commit in flight (`commit_now`). That commit may set the
        same queue back, too, and could arrive after the next owner has committed more.
        """
        try:
            async with self._committing if back else nullcontext():
                if offsets:
                    await self._progress.save(offsets, back)
        except (ClientError, OSError) as error:
            self._not_committed(error)
            return False
        return True

    def _not_committed(self, error: Exception) -> None:
        self._core.log.warning("offsets not committed", group=self._group, error=error)


class Rebalancer:
    """Divides the queues of each subscribed topic among the consumers of the group, periodically."""

    def __init__(
        self,
        core: ClientCore,
        consumer_group: str,
        options: ConsumerOptions,
        share: QueueShare,
        initial_offsets: InitialOffsets,
        broadcasting: bool,
        locks: QueueLocks | None,
    ) -> None:
        self._locks = locks
        self._strategy = strategy_of(options.allocate)
        self.subscriptions: dict[str, Subscription] = {}
        self._core = core
        self._group = consumer_group
        self._options = options
        self._share = share
        self._initial_offsets = initial_offsets
        self._broadcasting = broadcasting
        self.ready = False
        """Whether the consumer has looked at its topics. Only then do heartbeats name this consumer."""
        self.met: asyncio.Event = asyncio.Event()
        """Set when the consumer has looked at its topics for the first time and has sent a heartbeat to the
        brokers."""
        self._due = asyncio.Event()
        self._stopped = False
        self._missed = 0
        """How many rebalances so far found no retry topic of the group."""
        self._said: dict[str, str] = {}  # topic -> the trouble that was logged last

    def soon(self) -> None:
        """Make it rebalance at once, because something changed."""
        self._due.set()

    def stop(self) -> None:
        """Stop changing the assignment."""
        self._stopped = True

    async def run(self) -> None:
        """Rebalance now, then every `rebalance_s` and whenever `soon` is called, until cancelled."""
        await self._meet()
        while not self._stopped:
            self._due.clear()
            good = True
            for subscription in list(self.subscriptions.values()):
                good = await self._try(subscription) and good
            pause = self._options.rebalance_s if good else self._options.rebalance_retry_s
            try:
                async with asyncio.timeout(pause):
                    await self._due.wait()
            except TimeoutError:
                pass

    async def _meet(self) -> None:
        for topic in list(self.subscriptions):
            self._core.watched[topic] = None
            await self._core.refresh_quietly(topic)
            try:
                await self._initial_offsets.look(topic)
            except (ClientError, OSError) as error:
                self._core.log.debug(
                    "initial offset of a queue not known yet, trying again", topic=topic, error=error
                )
        if any(topic not in self._core.routes for topic in self.subscriptions):
            await self._core.refresh_quietly(None)  # the brokers that will have the topic should know us
        self.ready = True
        await self._core.beat()  # brokers must know us before they are asked who is in the group
        self.met.set()

    async def _try(self, subscription: Subscription) -> bool:
        """Rebalance one topic. Returns False if it has to be tried again soon."""
        topic = subscription.topic
        try:
            good = await self._rebalance(subscription)
        except TopicNotFound as error:
            if topic.startswith(RETRY_PREFIX):
                # Brokers create it at the first heartbeat of the group, some of them only for the first
                # message that is sent back. So try again soon, but not for ever.
                self._missed += 1
                return self._missed > RETRY_TOPIC_TRIES
            trouble = str(error)
        except (ClientError, OSError) as error:
            trouble = str(error)
        else:
            self._said.pop(topic, None)
            return good
        if self._said.get(topic) != trouble:
            self._said[topic] = trouble
            self._core.log.warning("no queues assigned", group=self._group, topic=topic, reason=trouble)
        return False

    async def _rebalance(self, subscription: Subscription) -> bool:
        topic = subscription.topic
        if not self._initial_offsets.decided(topic):
            await self._initial_offsets.look(topic)
            self._core.beat_soon()  # the next heartbeat says that we consume it
        queues = subscribe_queues(topic, await self._core.route(topic))
        mine = queues
        if not self._broadcasting and queues:
            consumers = await self._consumers(queues)
            if self._core.client_id not in consumers:
                self._core.beat_soon()
                return False
            mine = allocate(self._strategy, self._group, self._core.client_id, queues, consumers)
        if self._stopped:
            return True
        held = [queue for queue in self._share.queues if queue.topic == topic]
        await self._share.remove([queue for queue in held if queue not in mine])
        await self._share.not_ours([queue for queue in queues if queue not in mine])
        for queue in self._share.queues:
            if queue.topic == topic:
                self._share.select(queue, subscription)
        new = [queue for queue in mine if queue not in held and queue not in self._share.leaving]
        if self._locks is not None and new:
            await self._locks.lock(new)  # first: only then no other consumer moves the group's offset
            if self._stopped:
                await self._locks.unlock(new)
                return True
        begun = False
        for queue in new:
            if self._locks is None or self._locks.holds(queue):
                start = await self._share.committed(queue)
                if start is None:
                    start, begun = await self._initial_offsets.offset(queue), True
                if self._stopped:
                    return True
                if self._locks is not None and not self._locks.holds(queue):
                    continue  # lost meanwhile, so the group's offset may have changed
                self._share.add(queue, subscription, start)
        if begun:
            await self._share.commit()  # another consumer that gets such a queue begins there, too
        if mine != held:
            self._core.log.info("queues assigned", group=self._group, topic=topic, count=len(mine))
        return all(queue in self._share.queues for queue in mine)

    async def _consumers(self, queues: Sequence[MessageQueue]) -> list[str]:
        """Client ids of the group's consumers, from a broker that serves the topic (request 38
        GET_CONSUMER_LIST_BY_GROUP)."""
        group = self._core.group(queues[0].broker_name)
        answer = await self._core.invoke_leader(
            group,
            queues[0].topic,
            RequestCode.GET_CONSUMER_LIST_BY_GROUP,
            ConsumerGroupHeader(self._group),
        )
        if answer.code == ResponseCode.SYSTEM_ERROR:  # no consumer is known: our heartbeat is late
            return []
        if answer.code != ResponseCode.SUCCESS:
            raise BrokerRefused(refused_text(answer.code, answer.remark), answer.code)
        try:
            return decode_body(answer.body, ConsumerIdList, "consumer list").consumerIdList
        except BadBody as error:
            raise BrokerRefused(f"consumer list: {error.remark}") from error
