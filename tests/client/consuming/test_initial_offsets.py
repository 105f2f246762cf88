"""Where a group begins that has no committed offset, whatever the brokers would say."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

from dledger.client import (
    AsyncLitePullConsumer,
    AsyncProducer,
    AsyncPullConsumer,
    AsyncPushConsumer,
    ConsumerOptions,
    FromWhere,
    LitePullConsumer,
    Message,
    MessageModel,
    MessageQueue,
    Producer,
    PushConsumer,
)
from dledger.remoting.codes import RequestCode, ResponseCode
from dledger.remoting.commands import Request
from dledger.remoting.headers import UpdateConsumerOffsetHeader
from dledger.remoting.server import Connection
from tests.client.consumer_kit import until
from tests.client.consuming.test_consumers import Collector, produce
from tests.client.fake_cluster import GROUP, STORED_AT_MS, FakeBroker, FakeCluster, eventually

QUICK = ConsumerOptions(rebalance_retry_s=0.01, commit_s=3600.0, close_timeout_s=20.0)
QUEUES = [MessageQueue("orders", GROUP, number) for number in range(4)]


async def send(fake: FakeCluster, *bodies: bytes, queue: int = 0, topic: str = "orders") -> None:
    async with AsyncProducer("producers", fake.namesrv) as producer:
        for body in bodies:
            await producer.send(Message(topic, body), queue=MessageQueue(topic, GROUP, queue))


class Pulled:
    """A lite pull consumer that is driven like a push consumer."""

    def __init__(self, fake: FakeCluster, listener: Collector, **settings: Any) -> None:
        self.inner = AsyncLitePullConsumer("group", fake.namesrv, topic="orders", **settings)
        self._listener = listener

    async def __aenter__(self) -> Pulled:
        await self.inner.start()
        self._task = asyncio.ensure_future(self._poll())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        await self.inner.close()

    async def _poll(self) -> None:
        while True:
            for message in await self.inner.poll(timeout_s=20.0):
                await self._listener(message)


def pushed(fake: FakeCluster, listener: Collector, **settings: Any) -> AsyncPushConsumer:
    return AsyncPushConsumer("group", fake.namesrv, listener, topic="orders", **settings)


def in_order(fake: FakeCluster, listener: Collector, **settings: Any) -> AsyncPushConsumer:
    return AsyncPushConsumer("group", fake.namesrv, listener, topic="orders", orderly=True, **settings)


def to_each(fake: FakeCluster, listener: Collector, **settings: Any) -> AsyncPushConsumer:
    model = MessageModel.BROADCASTING
    return AsyncPushConsumer("group", fake.namesrv, listener, topic="orders", model=model, **settings)


Kind = Callable[..., AbstractAsyncContextManager[Any]]
SHARING = [pushed, in_order, Pulled]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Broadcasting consumers keep their offsets in the working directory."""
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("kind", [*SHARING, to_each])
def test_last_begins_with_what_is_sent_after_the_start(kind: Kind) -> None:
    async def main() -> None:
        async with FakeCluster(topics={"orders": 2}) as fake, asyncio.timeout(60):
            await send(fake, b"before", b"before")
            listener = Collector()
            async with kind(fake, listener, options=QUICK):
                await send(fake, b"after")
                await send(fake, b"after too", queue=1)
                await eventually(lambda: len(listener.messages) >= 2)
            assert sorted(listener.bodies) == [b"after", b"after too"]

    asyncio.run(main())


@pytest.mark.parametrize("kind", SHARING)
def test_a_time_is_where_a_new_group_begins(kind: Kind) -> None:
    async def main() -> None:
        async with FakeCluster(topics={"orders": 1}) as fake, asyncio.timeout(60):
            await send(fake, b"0", b"1", b"2", b"3")
            listener = Collector()
            at = {"from_where": "timestamp", "from_timestamp_ms": STORED_AT_MS + 2}
            async with kind(fake, listener, options=QUICK, **at):
                await eventually(lambda: len(listener.messages) >= 2)
            assert listener.bodies == [b"2", b"3"]

    asyncio.run(main())


@pytest.mark.parametrize("kind", [*SHARING, to_each])
def test_a_topic_that_its_first_message_makes_is_read_from_there(kind: Kind) -> None:
    async def main() -> None:
        async with FakeCluster() as fake, asyncio.timeout(60):
            listener = Collector()
            async with kind(fake, listener, options=QUICK):
                await produce(fake, 3)
                await eventually(lambda: len(listener.messages) >= 3)
            assert sorted(listener.bodies) == [b"0", b"1", b"2"]

    asyncio.run(main())


@pytest.mark.parametrize("kind", [*SHARING, to_each])
def test_queues_that_are_added_are_read_from_their_first_message(kind: Kind) -> None:
    async def main() -> None:
        async with FakeCluster(topics={"orders": 1}) as fake, asyncio.timeout(60):
            await send(fake, b"before")
            listener = Collector()
            async with kind(fake, listener, options=QUICK) as consumer:
                fake.topics["orders"] = 2
                await send(fake, b"in the new queue", queue=1)
                await getattr(consumer, "inner", consumer)._core.refresh("orders")
                await eventually(lambda: listener.messages)
            assert listener.bodies == [b"in the new queue"]

    asyncio.run(main())


@pytest.mark.parametrize("kind", SHARING)
def test_a_queue_that_was_added_while_nobody_ran_is_read_from_its_first_message(kind: Kind) -> None:
    async def main() -> None:
        async with FakeCluster(topics={"orders": 2}) as fake, asyncio.timeout(60):
            await send(fake, b"before")
            async with kind(fake, Collector(), options=QUICK):
                pass
            fake.topics["orders"] = 4
            await send(fake, b"later", queue=3)
            listener = Collector()
            async with kind(fake, listener, options=QUICK):
                await eventually(lambda: listener.messages)
            assert listener.bodies == [b"later"]

    asyncio.run(main())


@pytest.mark.parametrize("kind", SHARING)
def test_where_a_group_begins_is_committed_before_anything_is_consumed(kind: Kind) -> None:
    """Else a queue that moves would be begun at its end again."""

    async def main() -> None:
        async with FakeCluster(topics={"orders": 4}) as fake, asyncio.timeout(60):
            await send(fake, b"before", queue=2)
            async with kind(fake, Collector(), options=QUICK):
                assert fake.offsets == {("group", "orders", number): int(number == 2) for number in range(4)}
                for one in fake.brokers:
                    for connection in one.server.connections:
                        connection.abort()  # as a consumer that is killed: it commits nothing more
            fake.offsets |= {("group", "orders", number): int(number == 2) for number in range(4)}
            await send(fake, b"between", queue=2)
            listener = Collector()
            async with kind(fake, listener, options=QUICK):
                await eventually(lambda: listener.messages)
            assert listener.bodies == [b"between"]

    asyncio.run(main())


def test_members_that_start_together_read_what_is_sent_after_the_first_start_and_nothing_before() -> None:
    async def main() -> None:
        async with FakeCluster(topics={"orders": 8}) as fake, asyncio.timeout(60):
            for queue in range(8):
                await send(fake, b"before", queue=queue)
            listener = Collector()
            members = [pushed(fake, listener, options=QUICK) for _ in range(3)]
            await asyncio.gather(*(member.start() for member in members))
            for queue in range(8):
                await send(fake, b"%d" % queue, queue=queue)
            await eventually(lambda: len(set(listener.bodies)) >= 8)
            await asyncio.gather(*(member.close() for member in members))
            assert set(listener.bodies) == {b"%d" % queue for queue in range(8)}

    asyncio.run(main())


def test_a_member_that_joins_while_another_one_begins_reads_no_history() -> None:
    """The first member has committed the ends of some queues, and waits with the first queue."""

    async def main() -> None:
        async with FakeCluster(topics={"orders": 4}) as fake, asyncio.timeout(60):
            for queue in range(4):
                await send(fake, b"before", queue=queue)
            listener = Collector()
            waits = asyncio.Event()
            held: list[tuple[FakeBroker, Connection, Request]] = []

            def hold_the_first(broker: FakeBroker, connection: Connection, request: Request) -> bool:
                code = request.code == RequestCode.UPDATE_CONSUMER_OFFSET
                if not code or held or request.header(UpdateConsumerOffsetHeader).queueId:
                    return False
                held.append((broker, connection, request))
                waits.set()
                return True

            fake.script = hold_the_first
            one, two = (pushed(fake, listener, options=QUICK) for _ in range(2))
            starting = [asyncio.ensure_future(one.start())]
            await waits.wait()
            assert len(fake.offsets) == 3
            asked = len(fake.brokers[0].requests)
            starting.append(asyncio.ensure_future(two.start()))
            await eventually(lambda: len(fake.brokers[0].requests) > asked + 1)
            fake.script = None
            held[0][0]._update_offset(held[0][1], held[0][2])
            await asyncio.gather(*starting)
            await send(fake, b"after", queue=1)
            await eventually(lambda: listener.messages)
            await asyncio.gather(one.close(), two.close())
            assert set(listener.bodies) == {b"after"}

    asyncio.run(main())


def test_a_member_that_joins_before_the_first_has_read_a_new_topic_does_not_skip_it() -> None:
    async def main() -> None:
        async with FakeCluster() as fake, asyncio.timeout(60):
            first = pushed(fake, Collector(), options=QUICK)
            async with first:
                first._rebalancer.stop()  # it will not see the topic
                await produce(fake, 3)
                listener = Collector()
                async with pushed(fake, listener, options=QUICK):
                    await first._core.unregister(None, "group")
                    first._rebalancer.ready = False
                    await eventually(lambda: len(listener.messages) >= 3)
            assert sorted(listener.bodies) == [b"0", b"1", b"2"]

    asyncio.run(main())


def test_a_topic_that_is_subscribed_later_is_begun_at_its_end_by_then() -> None:
    async def main() -> None:
        async with FakeCluster(topics={"orders": 1, "bills": 2}) as fake, asyncio.timeout(60):
            await send(fake, b"before", topic="bills")
            await send(fake, b"before", topic="bills", queue=1)
            listener = Collector()
            old = pushed(fake, listener, options=QUICK)
            consumer = pushed(fake, listener, options=QUICK)
            async with old, consumer:
                consumer.subscribe("bills")
                await consumer._looked("bills")
                for queue in range(2):  # one of them is the other member's, which does not read it
                    await send(fake, b"after", topic="bills", queue=queue)
                await eventually(lambda: listener.messages)
            assert set(listener.bodies) == {b"after"}

    asyncio.run(main())


@pytest.mark.parametrize("kind", [PushConsumer, LitePullConsumer])
def test_with_threads(kind: type[PushConsumer] | type[LitePullConsumer]) -> None:
    async def main() -> None:
        async with FakeCluster(topics={"orders": 1}) as fake, asyncio.timeout(60):
            await send(fake, b"before")
            await asyncio.to_thread(drive, fake, kind)

    def drive(fake: FakeCluster, kind: type[PushConsumer] | type[LitePullConsumer]) -> None:
        got: list[bytes] = []
        with Producer("producers", fake.namesrv) as producer:
            if kind is PushConsumer:
                with PushConsumer(
                    "group", fake.namesrv, lambda m: got.append(m.body), topic="orders", options=QUICK
                ) as pushing:
                    producer.send("orders", b"after")
                    pushing.subscribe("bills")
                    producer.send("bills", b"of a new topic")
                    until(lambda: len(got) >= 2)
            else:
                with LitePullConsumer("group", fake.namesrv, topic="orders", options=QUICK) as pulling:
                    producer.send("orders", b"after")
                    pulling.subscribe("bills")
                    producer.send("bills", b"of a new topic")
                    until(lambda: got.extend(m.body for m in pulling.poll(0.05)) or len(got) >= 2)
        assert sorted(got) == [b"after", b"of a new topic"]

    asyncio.run(main())


def test_committed_is_none_where_the_group_has_no_offset() -> None:
    async def main() -> None:
        async with FakeCluster(topics={"orders": 4}) as fake, asyncio.timeout(60):
            await send(fake, b"before")
            async with AsyncPullConsumer("group", fake.namesrv) as pull:
                assert await pull.committed(QUEUES[0]) is None
                assert await pull._offsets.committed(QUEUES[0], "another") is None
                await pull.assign(QUEUES)
                assert [pull.position(queue) for queue in QUEUES] == [1, 0, 0, 0]
                assert await pull.committed(QUEUES[0]) is None  # the application commits
                await pull.commit()
                assert await pull.committed(QUEUES[0]) == 1
            async with AsyncLitePullConsumer("lite", fake.namesrv, options=QUICK) as lite:
                assert await lite.committed(QUEUES[0]) is None
                await lite.assign(QUEUES)
                assert await lite.committed(QUEUES[0]) == 1
            fake.offsets["old", "orders", 0] = -1  # as old brokers of Apache say it
            async with AsyncPullConsumer("old", fake.namesrv) as pull:
                assert await pull.committed(QUEUES[0]) is None

    asyncio.run(main())


@pytest.mark.parametrize("kind", [AsyncPullConsumer, AsyncLitePullConsumer])
def test_a_queue_that_appears_before_it_is_assigned_is_read_from_its_first_message(
    kind: type[AsyncPullConsumer] | type[AsyncLitePullConsumer],
) -> None:
    async def main() -> None:
        async with FakeCluster(topics={"orders": 1}) as fake, asyncio.timeout(60):
            await send(fake, b"before")
            async with kind("group", fake.namesrv) as consumer:
                await consumer.assign(QUEUES[:1])
                with pytest.raises(Exception, match="create it"):
                    await (
                        consumer.queues("bills")
                        if isinstance(consumer, AsyncPullConsumer)
                        else consumer.fetch_queues("bills")
                    )
                fake.topics["orders"] = 2
                await send(fake, b"in the new queue", queue=1)
                fake.topics["bills"] = 1
                await send(fake, b"in the new topic", topic="bills")
                await consumer._core.refresh("orders")
                await consumer.assign([*QUEUES[:2], MessageQueue("bills", GROUP, 0)])
                got: list[bytes] = []
                while len(got) < 2:
                    got += [message.body for message in await consumer.poll(timeout_s=20.0)]
            assert sorted(got) == [b"in the new queue", b"in the new topic"]

    asyncio.run(main())


def test_a_first_offset_that_the_broker_refuses_does_not_keep_the_group_from_reading() -> None:
    async def main() -> None:
        async with FakeCluster(topics={"orders": 1}) as fake, asyncio.timeout(60):
            await send(fake, b"before")

            def refuse(broker: FakeBroker, connection: Connection, request: Request) -> bool:
                if request.code == RequestCode.UPDATE_CONSUMER_OFFSET:
                    connection.respond(request, ResponseCode.NO_PERMISSION, remark="no")
                    return True
                return False

            fake.script = refuse
            listener = Collector()
            async with pushed(fake, listener, options=QUICK):
                await send(fake, b"after")
                await eventually(lambda: listener.messages)
            assert listener.bodies == [b"after"]

    asyncio.run(main())


def test_a_start_that_nobody_answers_returns_and_begins_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dledger.client.consuming.group_consumer.START_S", 0.05)

    async def main() -> None:
        async with FakeCluster(topics={"orders": 1}) as fake, asyncio.timeout(60):
            await send(fake, b"before")
            fake.brokers[0].silent = True
            listener = Collector()
            async with pushed(fake, listener, options=QUICK):
                fake.brokers[0].silent = False
                for connection in list(fake.brokers[0].server.connections):
                    connection.abort()
                await eventually(lambda: ("group", "orders", 0) in fake.offsets)
                await send(fake, b"after")
                await eventually(lambda: listener.messages)
            assert listener.bodies == [b"after"]

    asyncio.run(main())


def test_first_is_first() -> None:
    async def main() -> None:
        async with FakeCluster(topics={"orders": 1}) as fake, asyncio.timeout(60):
            await send(fake, b"0", b"1", b"2")
            fake.lowest["orders", 0] = 1
            listener = Collector()
            async with pushed(fake, listener, options=QUICK, from_where=FromWhere.FIRST):
                await eventually(lambda: len(listener.messages) == 2)
            assert listener.bodies == [b"1", b"2"]

    asyncio.run(main())
