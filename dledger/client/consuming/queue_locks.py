"""Locks of queues that are consumed in order. The brokers keep the locks, and the consumer renews them
regularly (requests 41 LOCK_BATCH_MQ and 42 UNLOCK_BATCH_MQ).

If a broker hears nothing from a consumer for 60 s, it takes the queue away from that consumer. A consumer
considers a lock valid for half of that, counted from the time of its request. So it stops before another
consumer may begin, even if any requests and answers are lost. A lock that expired for a moment is lost, even
if the broker would renew it: another consumer may have consumed in between.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence

from dledger.client.consuming.consumer_options import ConsumerOptions
from dledger.client.core import ClientCore
from dledger.client.errors import BrokerRefused, ClientError, refused_text
from dledger.client.message import MessageQueue
from dledger.remoting.bodies import LockAnswer, LockRequest, decode_body
from dledger.remoting.bodies import MessageQueue as WireQueue
from dledger.remoting.codes import RequestCode, ResponseCode
from dledger.remoting.errors import BadBody
from dledger.remoting.headers import NoHeader

BATCH = 512
"""Largest number of queues in one request."""


class QueueLocks:
    """The queues that one consumer has locked."""

    def __init__(self, core: ClientCore, consumer_group: str, options: ConsumerOptions) -> None:
        self.on_lost: Callable[[MessageQueue], None] = lambda queue: None
        """Called with a queue whose lock was lost."""
        self._core = core
        self._group = consumer_group
        self._options = options
        self._until: dict[MessageQueue, float] = {}
        """Maps a queue to the loop time, in seconds, until which its lock is valid."""
        self._epochs: dict[MessageQueue, int] = {}
        """Maps a queue to a number that rises each time we lock the queue. By this number brokers recognise
        requests that arrive late."""
        self._last_epoch = 0

    def holds(self, queue: MessageQueue) -> bool:
        """Whether this consumer has a valid lock of the queue at this moment."""
        return self._until.get(queue, 0.0) > self._core.now()

    @property
    def queues(self) -> list[MessageQueue]:
        """The queues whose locks this consumer has, as far as it knows."""
        return list(self._until)

    async def lock(self, queues: Sequence[MessageQueue]) -> None:
        """Request locks for these queues. Afterwards `holds` tells which were granted. Raises ClientError if
        a broker could not be asked."""
        anew = [queue for queue in queues if queue not in self._until]
        if anew:  # higher than the epochs of an earlier process with the same client id
            self._last_epoch = max(self._last_epoch + 1, self._core.env.wall.now_ms())
            self._epochs.update(dict.fromkeys(anew, self._last_epoch))
        for broker, some in _batches(queues):
            asked = self._core.now()
            found = await self._ask(broker, some)
            for queue in some:
                if queue in found:
                    self._until[queue] = asked + self._options.lock_valid_s

    async def unlock(self, queues: Sequence[MessageQueue]) -> None:
        """Release locks. When the broker cannot be asked, the lock expires by itself."""
        own = [queue for queue in queues if self._until.pop(queue, None) is not None]
        epochs = {queue: self._epochs.pop(queue, 0) for queue in own}  # it may be locked anew meanwhile
        for broker, some in _batches(own):
            try:
                await self._invoke(broker, RequestCode.UNLOCK_BATCH_MQ, some, epochs)
            except ClientError as error:
                self._core.log.warning("queues not unlocked", group=self._group, broker=broker, error=error)

    async def renew_periodically(self) -> None:
        """Renew the locks every `lock_renew_s`, counted from the last attempt, until cancelled."""
        while True:
            began = self._core.now()
            async with asyncio.TaskGroup() as tasks:  # a broker group without a leader delays no other
                for broker, some in _batches(self._until):
                    tasks.create_task(self._renew(broker, some), name=f"renew locks {broker}")
            self.drop_expired()
            pause = self._options.lock_renew_s - (self._core.now() - began)
            await asyncio.sleep(max(pause, self._options.rebalance_retry_s))

    def drop_expired(self) -> None:
        """Report expired locks as lost."""
        now = self._core.now()
        for queue in [queue for queue, until in self._until.items() if until <= now]:
            self._lost(queue, "it was not renewed in time")

    async def _renew(self, broker: str, queues: list[MessageQueue]) -> None:
        asked = self._core.now()
        try:
            found = await self._ask(broker, queues)
        except ClientError as error:
            self._core.log.warning("locks not renewed", group=self._group, broker=broker, error=error)
            return
        for queue in queues:
            until = self._until.get(queue)
            if until is None:
                continue  # released meanwhile
            if queue not in found:
                self._lost(queue, "another consumer holds it")
            elif until > self._core.now():
                self._until[queue] = max(until, asked + self._options.lock_valid_s)

    def _lost(self, queue: MessageQueue, reason: str) -> None:
        self._until.pop(queue, None)
        self._core.log.warning("lock lost", group=self._group, queue=queue, reason=reason)
        self.on_lost(queue)

    async def _ask(self, broker: str, queues: list[MessageQueue]) -> dict[MessageQueue, None]:
        body = await self._invoke(broker, RequestCode.LOCK_BATCH_MQ, queues, self._epochs)
        try:
            answer = decode_body(body, LockAnswer, "answer to LOCK_BATCH_MQ")
        except BadBody as error:
            raise BrokerRefused(f"{broker}: {error.remark}") from error
        return {MessageQueue(one.topic, broker, one.queueId): None for one in answer.lockOKMQSet}

    async def _invoke(
        self, broker: str, code: RequestCode, queues: list[MessageQueue], known: Mapping[MessageQueue, int]
    ) -> bytes:
        wire = [WireQueue(queue.topic, broker, queue.queue_id) for queue in queues]
        epochs = [known.get(queue, 0) for queue in queues]
        body = LockRequest(self._group, self._core.client_id, wire, epochs=epochs).encode()
        group = self._core.group(broker)
        answer = await self._core.invoke_leader(group, queues[0].topic, code, NoHeader(), body)
        if answer.code != ResponseCode.SUCCESS:
            raise BrokerRefused(f"{code.name}: {refused_text(answer.code, answer.remark)}", answer.code)
        return bytes(answer.body)


def _batches(queues: Iterable[MessageQueue]) -> list[tuple[str, list[MessageQueue]]]:
    """Split queues into requests. Each request is for one broker group and has at most `BATCH` queues."""
    by_broker: dict[str, list[MessageQueue]] = {}
    for queue in queues:
        by_broker.setdefault(queue.broker_name, []).append(queue)
    return [
        (broker, some[at : at + BATCH])
        for broker, some in by_broker.items()
        for at in range(0, len(some), BATCH)
    ]
