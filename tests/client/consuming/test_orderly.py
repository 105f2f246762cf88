"""Consuming in order: one at a time for each queue, nothing overtakes, and only who has the lock."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from dledger.client import (
    AsyncPushConsumer,
    ClientError,
    ClientOptions,
    ConsumeOrderlyStatus,
    ConsumerOptions,
    ConsumeStatus,
    FromWhere,
    MessageModel,
    PushConsumer,
    ReceivedMessage,
)
from dledger.remoting.codes import RequestCode, ResponseCode
from dledger.remoting.commands import Request
from dledger.remoting.server import Connection
from tests.broker.harness import skip_s
from tests.client.consumer_kit import committed, fill, until
from tests.client.consuming.test_consumers import produce
from tests.client.fake_cluster import FakeBroker, FakeCluster, eventually, skip_now
from tests.client.test_sync import running

QUICK = ConsumerOptions(
    concurrency=4,
    rebalance_retry_s=0.01,
    suspend_s=0.02,
    commit_s=0.02,
    close_timeout_s=20.0,
    lock_renew_s=0.05,
    lock_valid_s=30,
)
SUSPEND = ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT


def consumer(fake: FakeCluster, listener: Any, options: ConsumerOptions = QUICK, **more: Any) -> Any:
    """In order, of topic `orders`, from the beginning."""
    return AsyncPushConsumer(
        "group",
        fake.namesrv,
        listener,
        topic="orders",
        from_where=FromWhere.FIRST,
        orderly=True,
        options=options,
        **more,
    )


def play(test: Callable[[FakeCluster], Any], queues: int = 2) -> None:
    """Against a cluster with this many queues."""

    async def main() -> None:
        async with FakeCluster(topics={"orders": queues}) as fake, asyncio.timeout(300):
            await test(fake)

    asyncio.run(main())


def test_each_queue_comes_in_order_and_one_at_a_time_and_queues_beside_each_other() -> None:
    seen: dict[int, list[int]] = {}
    now: dict[int, int] = {}
    most = 0
    both = asyncio.Event()

    async def handle(message: ReceivedMessage) -> ConsumeOrderlyStatus | None:
        nonlocal most
        queue = message.queue.queue_id
        assert now.setdefault(queue, 0) == 0, "two calls for one queue"
        now[queue] += 1
        most = max(most, sum(now.values()))
        if most == 2:
            both.set()
        await both.wait()  # the first call of one queue does not end before that of the other begins
        await asyncio.sleep(0.001)
        now[queue] -= 1
        seen.setdefault(queue, []).append(message.queue_offset)
        return None if message.queue_offset % 2 else ConsumeOrderlyStatus.SUCCESS

    async def test(fake: FakeCluster) -> None:
        await produce(fake, 60)
        async with consumer(fake, handle):
            await eventually(lambda: sum(map(len, seen.values())) == 60)
            assert set(fake.locks) >= {("group", "orders", 0), ("group", "orders", 1)}
        assert seen == {queue: list(range(len(seen[queue]))) for queue in (0, 1)} and most == 2
        assert committed(fake) == 60 and not fake.locks, "given back at the end"

    play(test)


def test_nothing_overtakes_what_failed() -> None:
    calls: list[tuple[int, int, int]] = []

    def handle(message: ReceivedMessage) -> Any:
        calls.append((message.queue.queue_id, message.queue_offset, message.reconsume_times))
        if message.queue_offset == 2 and message.reconsume_times < 3:
            if message.reconsume_times == 0:
                raise RuntimeError("not now")
            return (SUSPEND, ConsumeStatus.RECONSUME_LATER, True)[message.reconsume_times - 1]
        return ConsumeStatus.SUCCESS

    with running(FakeCluster(topics={"orders": 2})) as fake:
        fill(fake, 20)
        with PushConsumer(
            "group",
            fake.namesrv,
            handle,
            topic="orders",
            orderly=True,
            from_where=FromWhere.FIRST,
            options=QUICK,
        ):
            until(lambda: committed(fake) == 20)
        for queue in (0, 1):
            offsets = [(offset, times) for of, offset, times in calls if of == queue]
            count = len(fake.queue("orders", queue))
            assert offsets == [(0, 0), (1, 0), *((2, times) for times in range(4))] + [
                (offset, 0) for offset in range(3, count)
            ]
        assert not fake.sent_back


@pytest.mark.parametrize("takes_back", [True, False])
def test_what_had_its_tries_is_a_dead_letter_or_stays(takes_back: bool) -> None:
    calls: list[int] = []

    async def handle(messages: Any) -> Any:
        calls.extend(message.queue_offset for message in messages)
        return SUSPEND if any(message.queue_offset == 1 for message in messages) else None

    async def test(fake: FakeCluster) -> None:
        fake.takes_back = takes_back
        await produce(fake, 3)
        options = replace(QUICK, max_reconsume_times=2, batch_size=1)
        async with consumer(fake, None, options, batch_listener=handle):
            if takes_back:
                await eventually(lambda: committed(fake) == 3)
                assert calls == [0, 1, 1, 1, 2]
                (told,) = fake.sent_back
                assert (told.delayLevel, told.maxReconsumeTimes) == (-1, 2)
            else:
                await eventually(lambda: len(calls) > 6)
                assert set(calls[1:]) == {1} and committed(fake) == 1

    play(test, queues=1)


def test_commit_and_rollback_are_the_listeners_with_auto_commit_off() -> None:
    calls: list[int] = []
    answers = iter([None, None, ConsumeOrderlyStatus.ROLLBACK, None, None, ConsumeOrderlyStatus.COMMIT, None])

    async def handle(message: ReceivedMessage) -> Any:
        calls.append(message.queue_offset)
        return next(answers, ConsumeOrderlyStatus.SUCCESS)

    async def test(fake: FakeCluster) -> None:
        await produce(fake, 5)
        async with consumer(fake, handle, replace(QUICK, auto_commit=False)):
            await eventually(lambda: len(calls) == 8)
            await eventually(lambda: committed(fake) == 3)
            await asyncio.sleep(0.05)
        assert calls == [0, 1, 2, 0, 1, 2, 3, 4] and committed(fake) == 3

    play(test, queues=1)


def test_a_queue_that_somebody_else_has_is_left_alone_until_it_is_free() -> None:
    seen: list[int] = []

    async def handle(message: ReceivedMessage) -> None:
        seen.append(message.queue.queue_id)

    async def test(fake: FakeCluster) -> None:
        await produce(fake, 10)
        fake.locks["group", "orders", 0] = "somebody"
        async with consumer(fake, handle) as one:
            await eventually(lambda: len(seen) == 5)
            await asyncio.sleep(0.05)
            assert set(seen) == {1} and [
                queue.queue_id for queue in one.queues if queue.topic == "orders"
            ] == [1]
            fake.offsets["group", "orders", 0] = 3
            del fake.locks["group", "orders", 0]
            await eventually(lambda: len(seen) == 7)
        assert seen[5:] == [0, 0], "from where the group stands since"

    play(test)


def test_a_lost_lock_drops_the_queue_and_what_runs_counts_no_more() -> None:
    seen: list[int] = []
    go = asyncio.Event()

    async def handle(message: ReceivedMessage) -> None:
        seen.append(message.queue_offset)
        await go.wait()

    async def test(fake: FakeCluster) -> None:
        await produce(fake, 5)
        async with consumer(fake, handle) as one:
            await eventually(lambda: seen == [0])
            fake.locks["group", "orders", 0] = "somebody"
            await eventually(lambda: not [queue for queue in one.queues if queue.topic == "orders"])
            go.set()
            await asyncio.sleep(0.05)
            assert seen == [0] and committed(fake) == 0
            assert fake.locks["group", "orders", 0] == "somebody"
            del fake.locks["group", "orders", 0]
            await eventually(lambda: len(seen) == 6)
        assert seen == [0, 0, 1, 2, 3, 4]

    play(test, queues=1)


@pytest.mark.parametrize("to_another", [True, False])
def test_a_queue_that_comes_back_waits_for_the_call_that_ran_when_it_was_lost(to_another: bool) -> None:
    """Its lock was over, or somebody else's for a moment; it is ours again while the listener is busy."""
    seen: list[int] = []
    running = 0
    go = asyncio.Event()

    async def handle(message: ReceivedMessage) -> None:
        nonlocal running
        seen.append(message.queue_offset)
        assert not running, "two calls of one queue at a time"
        running += 1
        await go.wait()
        running -= 1

    async def test(fake: FakeCluster) -> None:
        await produce(fake, 5)

        def ours() -> bool:
            return any(queue.topic == "orders" for queue in one.queues)

        async with consumer(fake, handle) as one:
            await eventually(lambda: seen == [0])
            if to_another:
                fake.locks["group", "orders", 0] = "somebody"
                await eventually(lambda: not ours())
                del fake.locks["group", "orders", 0]
            else:
                (queue,) = (queue for queue in one.queues if queue.topic == "orders")
                one._locks._until[queue] = 0.0
                one._locks.drop_expired()
                assert not ours()
            await asyncio.sleep(0.2)
            assert seen == [0] and not ours()
            go.set()
            await eventually(lambda: len(seen) == 6)
        assert seen == [0, 0, 1, 2, 3, 4]

    play(test, queues=1)


def test_a_lock_that_is_lost_before_its_queue_is_begun_begins_nothing() -> None:
    seen: list[int] = []

    async def handle(message: ReceivedMessage) -> None:
        seen.append(message.queue_offset)

    async def test(fake: FakeCluster) -> None:
        await produce(fake, 5)
        held: list[Any] = []

        def script(broker: FakeBroker, connection: Connection, request: Request) -> bool:
            """The answer where the group stands comes when the test says; somebody else gets the queue."""
            if request.code != RequestCode.QUERY_CONSUMER_OFFSET or request.ext().get("topic") != "orders":
                return False
            if held:
                return False
            held.append(partial(connection.respond, request, ResponseCode.QUERY_NOT_FOUND))
            fake.locks["group", "orders", 0] = "somebody"
            return True

        def asked() -> int:
            return fake.brokers[0].requests.count(RequestCode.LOCK_BATCH_MQ)

        fake.script = script
        async with consumer(fake, handle) as one:
            await eventually(lambda: bool(held))
            before = asked()
            await eventually(lambda: asked() > before)
            held[0]()
            await asyncio.sleep(0.1)
            assert not seen and not [queue for queue in one.queues if queue.topic == "orders"]
            fake.offsets["group", "orders", 0] = 2
            del fake.locks["group", "orders", 0]
            await eventually(lambda: seen == [2, 3, 4])

    play(test, queues=1)


@pytest.mark.parametrize("timeout_s", [20.0, 100.0], ids=["renewals fail", "a renewal hangs"])
def test_a_lock_that_cannot_be_renewed_ends_before_the_brokers_does(timeout_s: float) -> None:
    """The loop's clock is moved: to shortly before the end of the lock, and behind it."""
    seen: list[int] = []
    ended: list[int] = []
    turns = asyncio.Semaphore(0)
    options = replace(QUICK, lock_valid_s=60)

    async def handle(message: ReceivedMessage) -> None:
        seen.append(message.queue_offset)
        await turns.acquire()
        ended.append(message.queue_offset)

    async def test(fake: FakeCluster) -> None:
        await produce(fake, 20)
        client = ClientOptions(failover_timeout_s=timeout_s, request_timeout_s=timeout_s)
        async with consumer(fake, handle, options, client=client) as one:
            turns.release()
            await eventually(lambda: seen == [0, 1])
            fake.script = lambda broker, connection, request: request.code == RequestCode.LOCK_BATCH_MQ
            await skip_s(40)
            turns.release()
            await eventually(lambda: seen == [0, 1, 2])
            skip_now(25)
            turns.release()
            await eventually(lambda: ended == [0, 1, 2])
            await eventually(lambda: not any(queue.topic == "orders" for queue in one.queues))
            await asyncio.sleep(0.1)
            assert seen == [0, 1, 2], "no call began behind the end of the lock"
            fake.script = None
            for _ in range(20):
                turns.release()
            skip_now(timeout_s)  # what hangs has failed
            await eventually(lambda: len(seen) > 6)
            assert seen[3] <= seen[2] + 1, "none is left out"

    play(test, queues=1)


def test_queues_change_hands_behind_the_call_that_runs() -> None:
    events: list[tuple[str, int, int]] = []
    go = asyncio.Event()

    async def test(fake: FakeCluster) -> None:
        await produce(fake, 40)

        def listener(name: str) -> Any:
            async def handle(message: ReceivedMessage) -> None:
                events.append((name, message.queue.queue_id, message.queue_offset))
                if message.queue_offset == 3:
                    await go.wait()

            return handle

        async with consumer(fake, listener("a")) as first:
            await eventually(lambda: {("a", 0, 3), ("a", 1, 3)} <= set(events))
            async with consumer(fake, listener("b")) as second:
                await eventually(lambda: first._share.leaving)  # one is asked for, and its call still runs
                await asyncio.sleep(0.1)
                assert all(name == "a" for name, _, _ in events)
                go.set()
                await eventually(lambda: any(name == "b" for name, _, _ in events))
                assert len([queue for queue in second.queues if queue.topic == "orders"]) == 1
                await eventually(lambda: len(events) >= 40)
        for queue in (0, 1):
            offsets = [offset for _, of, offset in events if of == queue]
            assert offsets == list(range(20)), "none twice, none out of order"
        assert committed(fake) == 40

    play(test)


def test_broadcasting_needs_no_locks(tmp_path: Path) -> None:
    seen: list[int] = []

    async def handle(message: ReceivedMessage) -> Any:
        seen.append(message.queue_offset)
        return SUSPEND if message.queue_offset == 1 and message.reconsume_times == 0 else None

    async def test(fake: FakeCluster) -> None:
        await produce(fake, 3)
        options = replace(QUICK, offsets_dir=str(tmp_path))
        async with consumer(fake, handle, options, model=MessageModel.BROADCASTING):
            await eventually(lambda: seen == [0, 1, 1, 2])
        assert not fake.locks and RequestCode.LOCK_BATCH_MQ not in fake.brokers[0].requests

    play(test, queues=1)


def test_options_that_cannot_work_are_refused() -> None:
    with pytest.raises(ClientError, match="lock_renew_s"):
        ConsumerOptions(lock_renew_s=30, lock_valid_s=30)
    with pytest.raises(ClientError, match="max_reconsume_times"):
        ConsumerOptions(max_reconsume_times=-1)
