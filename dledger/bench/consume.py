"""Reads all queues of a topic from their beginning, and checks that every offset follows the one before
it."""

from __future__ import annotations

import asyncio
import struct
from collections import deque
from collections.abc import Callable

from dledger.bench.report import Load, Tally
from dledger.client.consuming.offsets import QueueOffsets
from dledger.client.core import ClientCore
from dledger.client.errors import BrokerRefused, ClientError
from dledger.client.message import MessageQueue
from dledger.client.options import ClientOptions
from dledger.client.routes import subscribe_queues
from dledger.formats.record import MAGIC_V1, MAGIC_V2
from dledger.remoting.codes import RequestCode, ResponseCode
from dledger.remoting.headers import PULL_SUBSCRIPTION, PullMessageHeader, PullMessageResponseHeader
from dledger.runtime import Env

_HEAD = struct.Struct(">iiIiiq")
"""Begin of a record: size, magic, body CRC, queue id, flag, queue offset."""
_BODY_SIZE = struct.Struct(">i")
_BODY_SIZE_AT = 84

PULL_COUNT = 1024
"""Largest number of messages in one pull, unless --batch gives another number. Brokers have limits of
their own."""


class OrderBroken(ClientError):
    """Raised if the offsets of a queue do not follow one another."""


def count_records(body: bytes, expected: int) -> tuple[int, int]:
    """Count the records in the body of a pull answer (with IPv4 hosts), whose offsets must begin with
    `expected`. Return the number of records, and the number of bytes of their bodies.

    Raises OrderBroken if an offset is not the next one, or if the bytes are no records.
    """
    at, end, body_bytes = 0, len(body), 0
    first = expected
    unpack = _HEAD.unpack_from
    try:
        while at < end:
            size, magic, _, _, _, offset = unpack(body, at)
            if offset != expected or magic not in (MAGIC_V1, MAGIC_V2) or size <= 0:
                raise OrderBroken(f"offset {offset} where {expected} was due (magic {magic & 0xFFFFFFFF:#x})")
            body_bytes += _BODY_SIZE.unpack_from(body, at + _BODY_SIZE_AT)[0]
            expected += 1
            at += size
    except struct.error as error:
        raise OrderBroken(f"a record is cut off: {error}") from error
    return expected - first, body_bytes


class _Queue:
    def __init__(self, queue: MessageQueue, offset: int, end: int) -> None:
        self.queue = queue
        self.offset = offset
        self.end = end


class _Run:
    def __init__(self, core: ClientCore, load: Load, tally: Tally, queues: list[_Queue]) -> None:
        self.core = core
        self.load = load
        self.tally = tally
        self.ready = deque(queue for queue in queues if queue.offset < queue.end)
        self.deadline = None if load.seconds is None else core.now() + load.seconds

    def over(self) -> bool:
        load = self.load
        return (load.messages is not None and self.tally.messages >= load.messages) or (
            self.deadline is not None and self.core.now() >= self.deadline
        )

    async def work(self) -> None:
        """Pull one queue after another until all are read to their end. A run has `window` such workers."""
        while self.ready and not self.over():
            queue = self.ready.popleft()
            await self._pull(queue)
            if queue.offset < queue.end:
                self.ready.append(queue)

    async def _pull(self, queue: _Queue) -> None:
        load, name = self.load, queue.queue
        header = PullMessageHeader(
            consumerGroup="bench",
            topic=name.topic,
            queueId=name.queue_id,
            queueOffset=queue.offset,
            maxMsgNums=load.batch if load.batch > 1 else PULL_COUNT,
            sysFlag=PULL_SUBSCRIPTION,
            commitOffset=0,
            suspendTimeoutMillis=0,
            subVersion=0,
            subscription="*",
            expressionType="TAG",
        )
        started = self.core.now()
        group = self.core.group(name.broker_name)
        answer = await self.core.invoke_leader(group, name.topic, RequestCode.PULL_MESSAGE, header)
        if answer.code == ResponseCode.SUCCESS:
            count, size = count_records(answer.body, queue.offset)
            self.tally.latency.record(self.core.now() - started)
            self.tally.messages += count
            self.tally.body_bytes += size
            queue.offset += count
        elif answer.code in (ResponseCode.PULL_RETRY_IMMEDIATELY, ResponseCode.PULL_OFFSET_MOVED):
            following = answer.header(PullMessageResponseHeader).nextBeginOffset
            raise OrderBroken(
                f"{name}: the broker skips from offset {queue.offset} to {following} ({answer.remark})"
            )
        elif answer.code == ResponseCode.PULL_NOT_FOUND:  # a leader that has just taken over
            await asyncio.sleep(0.001)
        else:
            raise BrokerRefused(f"pull {name}: code {answer.code}: {answer.remark}", answer.code)


async def consume(
    env: Env,
    load: Load,
    cpu_s: Callable[[], float],
    progress: Callable[[Tally], None],
    settle: Callable[[], None],
) -> dict[str, object]:
    """Read the messages that the topic has at the start, or fewer if the time or the number of messages is
    reached before.

    At most `window` pulls are in flight, and at most one per queue. No offsets are committed. Raises
    ClientError if the topic is missing or the order is broken.
    """
    tally = Tally(cpu_s)
    async with ClientCore(env, load.namesrv, ClientOptions()) as core:
        offsets = QueueOffsets(core)
        queues = [
            _Queue(queue, await offsets.lowest(queue), await offsets.highest(queue))
            for queue in subscribe_queues(load.topic, await core.refresh(load.topic))
        ]
        settle()
        tally.begin(core.now())
        run = _Run(core, load, tally, queues)
        try:
            async with asyncio.TaskGroup() as tasks:
                workers = [
                    tasks.create_task(run.work(), name=f"pull {number}")
                    for number in range(min(load.window, len(queues)))
                ]
                while not all(worker.done() for worker in workers):
                    await asyncio.wait(workers, timeout=1.0)
                    progress(tally)
        except BaseExceptionGroup as group:
            errors = group.subgroup(ClientError)
            if errors is None:
                raise
            raise errors.exceptions[0] from group
        result = tally.result(load, "consume", core.now())
        result["queues"] = len(queues)
        result["order"] = "every queue offset followed the one before"
        result["left"] = sum(queue.end - queue.offset for queue in queues)
        return result
