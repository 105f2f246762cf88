"""Push and pull consumers: delivery, tags, retries, offsets, division of queues, flow control."""

from __future__ import annotations

import asyncio
import json
import threading
import zlib
from pathlib import Path

import pytest

from dledger.client import (
    AsyncProducer,
    AsyncPullConsumer,
    AsyncPushConsumer,
    ClientError,
    ClientOptions,
    ConsumerOptions,
    ConsumeStatus,
    FlowLimits,
    FromWhere,
    Message,
    MessageModel,
    PullOptions,
    ReceivedMessage,
)
from dledger.remoting.codes import RequestCode, ResponseCode
from dledger.remoting.commands import Request
from dledger.remoting.server import Connection
from tests.client.fake_cluster import STORED_AT_MS, FakeBroker, FakeCluster, eventually

QUICK = ConsumerOptions(
    rebalance_retry_s=0.01,
    local_retry_first_s=0.01,
    send_back_retry_s=0.01,
    commit_s=0.02,
    close_timeout_s=20.0,
)


class Collector:
    """A listener that keeps what it gets."""

    def __init__(self) -> None:
        self.messages: list[ReceivedMessage] = []

    async def __call__(self, message: ReceivedMessage) -> None:
        self.messages.append(message)

    @property
    def bodies(self) -> list[bytes]:
        return [message.body for message in self.messages]


async def produce(fake: FakeCluster, count: int, topic: str = "orders", **fields: str) -> None:
    async with AsyncProducer("producers", fake.namesrv) as producer:
        for number in range(count):
            await producer.send(Message(topic, b"%d" % number, **fields))  # type: ignore[arg-type]


def test_a_push_consumer_gets_every_message_and_commits() -> None:
    async def main() -> None:
        listener = Collector()
        async with FakeCluster(topics={"orders": 3}) as fake, asyncio.timeout(60):
            await produce(fake, 20, tags="paid", keys="k")
            consumer = AsyncPushConsumer(
                "group", fake.namesrv, listener, from_where=FromWhere.FIRST, options=QUICK
            )
            consumer.subscribe("orders")
            async with consumer:
                await eventually(lambda: len(listener.messages) == 20)
                await eventually(lambda: sum(fake.offsets.values()) == 20)
            assert sorted(map(int, listener.bodies)) == list(range(20))
            message = listener.messages[0]
            assert (message.topic, message.tags, message.keys) == ("orders", "paid", ["k"])
            assert message.message_id == message.unique_key
            assert message.store_host == "127.0.0.1:10911"
            assert "group" not in fake.brokers[0].clients or not fake.brokers[0].clients["group"]

    asyncio.run(main())


def test_a_group_goes_on_where_it_stopped() -> None:
    async def main() -> None:
        async with FakeCluster(topics={"orders": 2}) as fake, asyncio.timeout(60):
            for _ in range(2):
                await produce(fake, 10)
                listener = Collector()
                consumer = AsyncPushConsumer(
                    "group", fake.namesrv, listener, from_where=FromWhere.FIRST, options=QUICK
                )
                consumer.subscribe("orders")
                async with consumer:
                    await eventually(lambda found=listener.messages: len(found) == 10)  # type: ignore[misc]
                    await asyncio.sleep(0.01)
                assert len(listener.messages) == 10

    asyncio.run(main())


def test_only_subscribed_tags_are_delivered() -> None:
    async def main() -> None:
        listener = Collector()
        async with FakeCluster(topics={"orders": 1}) as fake, asyncio.timeout(60):
            for tag in ("a", "b", "c"):
                await produce(fake, 2, tags=tag)
            consumer = AsyncPushConsumer(
                "group", fake.namesrv, listener, from_where=FromWhere.FIRST, options=QUICK
            )
            consumer.subscribe("orders", "a || c")
            async with consumer:
                await eventually(lambda: fake.offsets.get(("group", "orders", 0)) == 6)
            assert [message.tags for message in listener.messages] == ["a", "a", "c", "c"]

    asyncio.run(main())


def test_a_function_is_called_in_a_thread() -> None:
    async def main() -> None:
        got: list[bytes] = []

        def handle(message: ReceivedMessage) -> None:
            with pytest.raises(RuntimeError):
                asyncio.get_running_loop()
            got.append(message.body)

        async with FakeCluster(topics={"orders": 1}) as fake, asyncio.timeout(60):
            await produce(fake, 5)
            consumer = AsyncPushConsumer(
                "group", fake.namesrv, handle, from_where=FromWhere.FIRST, options=QUICK
            )
            consumer.subscribe("orders")
            async with consumer:
                await eventually(lambda: len(got) == 5)

    asyncio.run(main())


def test_a_failed_message_is_given_back_to_the_broker() -> None:
    async def main() -> None:
        async def handle(message: ReceivedMessage) -> ConsumeStatus:
            if message.body == b"1":
                raise ValueError("cannot")
            return ConsumeStatus.RECONSUME_LATER if message.body == b"2" else ConsumeStatus.SUCCESS

        async with FakeCluster(topics={"orders": 1}) as fake, asyncio.timeout(60):
            await produce(fake, 4)
            consumer = AsyncPushConsumer(
                "group", fake.namesrv, handle, from_where=FromWhere.FIRST, options=QUICK
            )
            consumer.subscribe("orders")
            async with consumer:
                await eventually(lambda: fake.offsets.get(("group", "orders", 0)) == 4)
            assert sorted(header.offset for header in fake.sent_back) == [1000, 2000]
            assert fake.sent_back[0].originTopic == "orders"

    asyncio.run(main())


def test_the_log_says_where_a_listener_failed(caplog: pytest.LogCaptureFixture) -> None:
    def handle(message: ReceivedMessage) -> None:
        {}["missing"]

    async def main() -> None:
        async with FakeCluster(topics={"orders": 1}) as fake, asyncio.timeout(60):
            await produce(fake, 1)
            consumer = AsyncPushConsumer(
                "group", fake.namesrv, handle, from_where=FromWhere.FIRST, options=QUICK
            )
            consumer.subscribe("orders")
            async with consumer:
                await eventually(lambda: len(fake.sent_back) > 0)

    asyncio.run(main())
    (said,) = [line for line in caplog.messages if line.startswith("listener failed")]
    line = handle.__code__.co_firstlineno + 1
    assert f"error=KeyError('missing') at={__file__}:{line} in handle " in said


def test_a_failed_message_is_tried_again_here_when_the_broker_takes_none_back() -> None:
    async def main() -> None:
        seen: list[int] = []
        go = threading.Event()

        def handle(message: ReceivedMessage) -> None:
            if message.body == b"0":
                seen.append(message.reconsume_times)
                if message.reconsume_times == 2:
                    go.wait(60)
                if message.reconsume_times < 3:
                    raise ValueError("not yet")

        async with FakeCluster(topics={"orders": 1}) as fake, asyncio.timeout(60):
            fake.takes_back = False
            await produce(fake, 3)
            consumer = AsyncPushConsumer(
                "group", fake.namesrv, handle, from_where=FromWhere.FIRST, options=QUICK
            )
            consumer.subscribe("orders")
            async with consumer:
                await eventually(lambda: len(seen) == 3)
                await asyncio.sleep(0.05)
                assert fake.offsets.get(("group", "orders", 0), 0) == 0  # behind the failing message
                go.set()
                await eventually(lambda: fake.offsets.get(("group", "orders", 0)) == 3)
            assert seen == [0, 1, 2, 3]

    asyncio.run(main())


def test_two_consumers_share_the_queues_and_one_inherits_them() -> None:
    async def main() -> None:
        first, second = Collector(), Collector()
        async with FakeCluster(topics={"orders": 4}) as fake, asyncio.timeout(60):
            one = AsyncPushConsumer("group", fake.namesrv, first, from_where=FromWhere.FIRST, options=QUICK)
            two = AsyncPushConsumer("group", fake.namesrv, second, from_where=FromWhere.FIRST, options=QUICK)
            one.subscribe("orders")
            two.subscribe("orders")
            async with one:
                await eventually(lambda: len(one.queues) == 4)
                async with two:
                    await eventually(lambda: len(one.queues) == 2 and len(two.queues) == 2)
                    assert not [queue for queue in one.queues if queue in two.queues]
                    await produce(fake, 8)
                    await eventually(lambda: len(first.messages) == 4 and len(second.messages) == 4)
                await eventually(lambda: len(one.queues) == 4)
                await produce(fake, 4)
                await eventually(lambda: len(first.messages) == 8)
            assert len(second.messages) == 4

    asyncio.run(main())


def test_what_brokers_warn_of_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """In an answer to a heartbeat, such as members of a group that subscribe differently."""

    async def main() -> None:
        async with FakeCluster(topics={"orders": 4}) as fake, asyncio.timeout(60):
            for broker in fake.brokers:
                broker.warning = "members of consumer group group have different subscriptions"
            consumer = AsyncPushConsumer("group", fake.namesrv, Collector(), options=QUICK)
            consumer.subscribe("orders")
            async with consumer:
                await eventually(lambda: len(consumer.queues) == 4)
                await consumer._core.beat()
                await consumer._core.beat()
        assert sum("group group have different subscriptions" in line for line in caplog.messages) == 1

    asyncio.run(main())


def test_batch_listeners_get_several_messages() -> None:
    async def main() -> None:
        sizes: list[int] = []

        async def handle(messages: object) -> None:
            assert isinstance(messages, list)
            sizes.append(len(messages))

        options = ConsumerOptions(batch_size=4, rebalance_retry_s=0.01, commit_s=0.02, concurrency=1)
        async with FakeCluster(topics={"orders": 1}) as fake, asyncio.timeout(60):
            await produce(fake, 10)
            consumer = AsyncPushConsumer(
                "group", fake.namesrv, batch_listener=handle, from_where=FromWhere.FIRST, options=options
            )
            consumer.subscribe("orders")
            async with consumer:
                await eventually(lambda: sum(sizes) == 10)
            assert max(sizes) == 4

    asyncio.run(main())


def test_pulling_pauses_while_the_listener_is_slow() -> None:
    async def main() -> None:
        gate = asyncio.Event()
        got: list[bytes] = []

        async def handle(message: ReceivedMessage) -> None:
            await gate.wait()
            got.append(message.body)

        options = ConsumerOptions(
            concurrency=2,
            rebalance_retry_s=0.01,
            pull=PullOptions(batch_size=5, flow=FlowLimits(max_messages=10)),
        )
        async with FakeCluster(topics={"orders": 1}) as fake, asyncio.timeout(60):
            await produce(fake, 50)
            consumer = AsyncPushConsumer(
                "group", fake.namesrv, handle, from_where=FromWhere.FIRST, options=options
            )
            consumer.subscribe("orders")
            async with consumer:
                await eventually(lambda: consumer.queues)
                (assigned,) = consumer._share._assigned.values()
                await eventually(lambda: assigned.process.count == 10)
                await asyncio.sleep(0.03)
                assert assigned.process.count == 10, "and no more"
                gate.set()
                await eventually(lambda: len(got) == 50)

    asyncio.run(main())


def test_broadcasting_reads_all_queues_and_keeps_offsets_in_a_file(tmp_path: Path) -> None:
    async def main() -> None:
        options = ConsumerOptions(offsets_dir=str(tmp_path), rebalance_retry_s=0.01, commit_s=0.02)
        client = ClientOptions(instance_name="one")
        async with FakeCluster(topics={"orders": 2}) as fake, asyncio.timeout(60):
            for expected in (6, 0):
                if expected:
                    await produce(fake, expected)
                listener = Collector()
                consumer = AsyncPushConsumer(
                    "group",
                    fake.namesrv,
                    listener,
                    model=MessageModel.BROADCASTING,
                    from_where=FromWhere.FIRST,
                    options=options,
                    client=client,
                )
                consumer.subscribe("orders")
                async with consumer:
                    await eventually(lambda reader=consumer: len(reader.queues) == 2)  # type: ignore[misc]
                    await eventually(lambda got=listener, all=expected: len(got.messages) >= all)  # type: ignore[misc]
                    await asyncio.sleep(0.03)
                assert len(listener.messages) == expected
            assert fake.offsets == {}
        text = (tmp_path / "127.0.0.1@one" / "group" / "offsets.json").read_text()
        assert '"queueId":0,"topic":"orders"}:3' in text

    asyncio.run(main())


def test_starting_needs_a_subscription_and_one_listener() -> None:
    with pytest.raises(ClientError, match="either"):
        AsyncPushConsumer("group", "127.0.0.1:1")

    async def main() -> None:
        with pytest.raises(ClientError, match="no topic is subscribed"):
            async with AsyncPushConsumer("group", "127.0.0.1:1", Collector()):
                pass

    asyncio.run(main())


def test_a_pull_consumer_reads_seeks_and_commits() -> None:
    async def main() -> None:
        async with FakeCluster(topics={"orders": 2}) as fake, asyncio.timeout(60):
            await produce(fake, 10)
            async with AsyncPullConsumer("reports", fake.namesrv) as consumer:
                queues = await consumer.queues("orders")
                await consumer.assign(queues, start=FromWhere.FIRST)
                got: list[ReceivedMessage] = []
                while len(got) < 10:
                    got += await consumer.poll(20.0)
                assert sorted(int(message.body) for message in got) == list(range(10))
                await consumer.commit()
                assert [await consumer.committed(queue) for queue in queues] == [5, 5]
                assert await consumer.poll(0.01) == []

                await consumer.seek(queues[0], 3)
                assert consumer.position(queues[0]) == 3
                assert [message.queue_offset for message in await consumer.poll(20.0)] == [3, 4]
                await consumer.seek_to_time(queues[1], STORED_AT_MS + 4)
                assert [message.queue_offset for message in await consumer.poll(20.0)] == [4]
                await consumer.seek_to_end(queues[1])
                assert await consumer.poll(0.01) == []
                await consumer.seek_to_begin(queues[1])
                assert len(await consumer.poll(20.0, max_messages=2)) == 2
                assert consumer.position(queues[1]) == 2

            async with AsyncPullConsumer("reports", fake.namesrv) as again:
                await again.assign(queues)
                assert await again.poll(0.02) == []

    asyncio.run(main())


def test_a_pull_consumer_skips_what_it_does_not_want() -> None:
    async def main() -> None:
        async with FakeCluster(topics={"orders": 1}) as fake, asyncio.timeout(60):
            for tag in ("a", "b"):
                await produce(fake, 40, tags=tag)
            async with AsyncPullConsumer("reports", fake.namesrv) as consumer:
                consumer.subscribe("orders", "b")
                (queue,) = await consumer.queues("orders")
                await consumer.assign([queue], start=FromWhere.FIRST)
                got: list[ReceivedMessage] = []
                while len(got) < 40:
                    got += await consumer.poll(20.0)
                assert {message.tags for message in got} == {"b"}
                assert consumer.position(queue) == 80

    asyncio.run(main())


def test_a_pull_consumer_sets_its_group_back_only_after_a_seek() -> None:
    def refuses_commits(broker: FakeBroker, connection: Connection, request: Request) -> bool:
        if request.code != RequestCode.UPDATE_CONSUMER_OFFSET:
            return False
        connection.respond(request, ResponseCode.SYSTEM_ERROR, remark="others are connected")
        return True

    async def main() -> None:
        async with FakeCluster(topics={"orders": 1}) as fake, asyncio.timeout(60):
            await produce(fake, 9)
            async with AsyncPullConsumer("reports", fake.namesrv) as consumer:
                (queue,) = await consumer.queues("orders")
                await consumer.assign([queue], start=FromWhere.FIRST)
                assert len(await consumer.poll(20.0, 4)) == 4
                await consumer.commit()
                key = ("reports", "orders", 0)
                assert fake.offsets[key] == 4
                fake.offsets[key] = 8  # another one of the group went on
                await consumer.commit()
                assert fake.offsets[key] == 8
                await consumer.seek(queue, 2)
                fake.script = refuses_commits
                with pytest.raises(ClientError):
                    await consumer.commit()
                fake.script = None
                await consumer.commit()
                assert fake.offsets[key] == 2, "also after an attempt that failed"
                assert (fake.commits[-1].setsBack, fake.commits[-1].membership) == (True, "1.7")
                await consumer.commit()
                assert (fake.commits[-1].setsBack, fake.commits[-1].membership) == (False, None)
                await consumer.seek(queue, 1)
                await asyncio.gather(consumer.commit(), consumer.commit())
                assert [one.setsBack for one in fake.commits[-2:]] == [True, False]

    asyncio.run(main())


def test_an_offset_beyond_the_end_is_corrected() -> None:
    async def main() -> None:
        async with FakeCluster(topics={"orders": 1}) as fake, asyncio.timeout(60):
            await produce(fake, 2)
            async with AsyncPullConsumer("reports", fake.namesrv) as consumer:
                (queue,) = await consumer.queues("orders")
                await consumer.assign([queue])
                await consumer.seek(queue, 99)
                await eventually(lambda: consumer.position(queue) == 2)
                await produce(fake, 1)
                assert len(await consumer.poll(20.0)) == 1

    asyncio.run(main())


def test_compressed_bodies_are_unfolded() -> None:
    async def main() -> None:
        text = json.dumps(list(range(3000))).encode()
        assert len(zlib.compress(text)) < len(text)
        async with FakeCluster(topics={"orders": 1}) as fake, asyncio.timeout(60):
            async with AsyncProducer("producers", fake.namesrv) as producer:
                await producer.send(Message("orders", text))
            async with AsyncPullConsumer("reports", fake.namesrv) as consumer:
                await consumer.assign(await consumer.queues("orders"), start=FromWhere.FIRST)
                (message,) = await consumer.poll(20.0)
                assert message.body == text
                assert message.sys_flag == 0

    asyncio.run(main())


def test_a_queue_is_handed_over_where_its_consumer_stopped() -> None:
    """No commit by time: what one consumer finished, the other does not get again; a result that comes
    after the hand-over no longer counts."""

    async def main() -> None:
        options = ConsumerOptions(rebalance_retry_s=0.01, commit_s=60, close_timeout_s=20.0)
        gate = asyncio.Event()
        first, second = Collector(), Collector()

        async def slow_on_the_last(message: ReceivedMessage) -> None:
            if message.queue_offset == 4:
                await gate.wait()
            first.messages.append(message)

        waiting: list[tuple[Connection, Request]] = []

        def commits_first(broker: FakeBroker, connection: Connection, request: Request) -> bool:
            """The second consumer asks where the group is after the first one has committed."""
            asks = request.code == RequestCode.QUERY_CONSUMER_OFFSET
            if asks and len(first.messages) >= 8 and not fake.offsets:
                waiting.append((connection, request))
                return True
            if request.code == RequestCode.UPDATE_CONSUMER_OFFSET:
                asked, waiting[:] = list(waiting), []
                for one in asked:
                    asyncio.get_running_loop().call_soon(broker.server.handlers[one[1].code], *one)
            return False

        async with FakeCluster(topics={"orders": 2}) as fake, asyncio.timeout(60):
            fake.script = commits_first
            await produce(fake, 10)
            consumers = [
                AsyncPushConsumer(
                    "group", fake.namesrv, listener, from_where=FromWhere.FIRST, options=options
                )
                for listener in (slow_on_the_last, second)
            ]
            for consumer in consumers:
                consumer.subscribe("orders")
            async with consumers[0]:
                await eventually(lambda: len(first.messages) == 8)
                async with consumers[1]:
                    await eventually(lambda: [message.queue_offset for message in second.messages] == [4])
                    (moved,) = consumers[1].queues
                    gate.set()
                    await eventually(lambda: len(first.messages) == 10)
                    assert fake.offsets["group", "orders", moved.queue_id] == 4
                assert fake.offsets["group", "orders", moved.queue_id] == 5
        assert len(second.messages) == 1

    asyncio.run(main())
