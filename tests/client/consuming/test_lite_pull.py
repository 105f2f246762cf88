"""The lite pull consumer: shared queues, messages when they are asked for, acknowledged one by one or not."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from dledger.broker.schedule.delay_levels import DEFAULT_LEVELS, parse_levels
from dledger.client import (
    AsyncLitePullConsumer,
    AsyncProducer,
    AsyncPullConsumer,
    ClientClosed,
    ClientError,
    Delivery,
    FromWhere,
    LitePullConsumer,
    Message,
    MessageQueue,
    ReceivedMessage,
)
from dledger.client.consuming.send_back import DELAYS_S, level_of
from tests.client.consumer_kit import committed, fill
from tests.client.consuming.test_consumers import QUICK, produce
from tests.client.fake_cluster import GROUP, STORED_AT_MS, FakeCluster, eventually
from tests.client.test_sync import running

BY_HAND = replace(QUICK, auto_commit=False)


def consumer(fake: FakeCluster, topic: str | None = "orders", **more: Any) -> AsyncLitePullConsumer:
    settings = {"from_where": FromWhere.FIRST, "options": QUICK, **more}
    return AsyncLitePullConsumer("group", fake.namesrv, topic=topic, **settings)


def play(test: Callable[[FakeCluster], Any], queues: int = 2) -> None:
    async def main() -> None:
        async with FakeCluster(topics={"orders": queues}) as fake, asyncio.timeout(60):
            await test(fake)

    asyncio.run(main())


async def polled(one: AsyncLitePullConsumer, count: int) -> list[ReceivedMessage]:
    found: list[ReceivedMessage] = []
    while len(found) < count:
        found += await one.poll(20.0, count - len(found))
    return found


def test_what_the_next_poll_leaves_behind_is_consumed() -> None:
    async def test(fake: FakeCluster) -> None:
        await produce(fake, 20)
        async with consumer(fake) as one:
            first = await polled(one, 7)
            await asyncio.sleep(0.08)
            assert committed(fake) < 7, "not what is handed out only"
            rest = await polled(one, 13)
            assert sorted(int(message.body) for message in first + rest) == list(range(20))
            assert await one.poll(0.01) == []
            await eventually(lambda: committed(fake) == 20)

    play(test)


def test_without_auto_commit_only_commit_says_so() -> None:
    async def test(fake: FakeCluster) -> None:
        await produce(fake, 10)
        async with consumer(fake, options=BY_HAND) as one:
            await polled(one, 6)
            await polled(one, 1)
            await asyncio.sleep(0.06)
            assert committed(fake) == 0
            await one.commit()
            assert committed(fake) == 7
            assert (
                sum([await one.committed(queue) or 0 for queue in one.assignment if queue.topic == "orders"])
                == 7
            )
            await polled(one, 3)
        assert committed(fake) == 7, "what was handed out last comes again"
        async with consumer(fake, options=BY_HAND) as one:
            assert len(await polled(one, 3)) == 3

    play(test)


def test_two_share_the_queues_and_take_over() -> None:
    async def test(fake: FakeCluster) -> None:
        async with consumer(fake) as one:
            async with consumer(fake) as two:
                await eventually(lambda: len(mine(one)) == len(mine(two)) == 2)
                assert sorted(mine(one) + mine(two)) == [MessageQueue("orders", GROUP, n) for n in range(4)]
            await eventually(lambda: len(mine(one)) == 4)

    play(test, queues=4)


def mine(one: AsyncLitePullConsumer) -> list[MessageQueue]:
    return [queue for queue in one.assignment if queue.topic == "orders"]


def test_each_message_is_acknowledged_and_the_position_waits_for_the_first_that_is_not() -> None:
    async def test(fake: FakeCluster) -> None:
        await produce(fake, 6)
        got: list[Delivery] = []
        async with consumer(fake) as one:
            async for message in one:
                got.append(message)
                if message.queue_offset != 2:
                    assert await message.ack()
                if len(got) == 6:
                    break
            await eventually(lambda: committed(fake) == 2)
            await asyncio.sleep(0.05)
            assert committed(fake) == 2
            assert await got[2].nack(3)
            (back,) = fake.sent_back
            assert (back.delayLevel, back.offset) == (3, got[2].physical_offset)
            await eventually(lambda: committed(fake) == 6)
        assert [message.queue_offset for message in got] == list(range(6))
        assert got[0].topic == "orders" and "_inbox" not in repr(got[0])

    play(test, queues=1)


@pytest.mark.parametrize(
    ("delay", "level"), [(0, 1), (1, 1), (1.5, 2), (10, 3), (59, 5), (61, 6), (7200, 18), (1e6, 18)]
)
def test_a_delay_in_seconds_is_the_first_level_that_lasts_so_long(delay: float, level: int) -> None:
    assert level_of(delay) == level


def test_a_message_is_given_back_for_some_seconds() -> None:
    async def test(fake: FakeCluster) -> None:
        await produce(fake, 1)
        async with consumer(fake) as one:
            message = await anext(one)
            for wrong in ({"delay": -1.0}, {"delay": float("nan")}, {"delay": 5.0, "delay_level": 3}):
                with pytest.raises(ClientError, match="give"):
                    await message.nack(**wrong)  # type: ignore[arg-type]
            assert await message.nack(delay=25.0)
            assert [back.delayLevel for back in fake.sent_back] == [4]

    play(test, queues=1)


def test_the_levels_are_those_of_our_brokers() -> None:
    assert [level * 1000 for level in DELAYS_S] == list(parse_levels(DEFAULT_LEVELS))


def test_what_the_broker_does_not_take_back_comes_again_here() -> None:
    async def test(fake: FakeCluster) -> None:
        fake.takes_back = False
        await produce(fake, 2)
        async with consumer(fake) as one:
            first = await anext(one)
            assert await first.nack()
            second, again = await anext(one), await anext(one)
            assert (first.body, second.body, again.body) == (b"0", b"1", b"0")
            assert await second.ack() and await again.ack()
            await eventually(lambda: committed(fake) == 2)

    play(test, queues=1)


def test_iteration_ends_with_the_consumer() -> None:
    async def test(fake: FakeCluster) -> None:
        async with consumer(fake) as one:
            asyncio.get_running_loop().call_later(0.05, one._stop_soon)
            assert [message async for message in one] == []

    play(test)


def test_a_queue_of_somebody_else_acknowledges_nothing() -> None:
    async def test(fake: FakeCluster) -> None:
        await produce(fake, 2)
        async with consumer(fake) as one:
            message = await anext(one)
            await one.seek(message.queue, 0)
            assert not await message.ack() and not await message.nack() and not fake.sent_back
            again = await anext(one)
            assert again.queue_offset == 0 and await again.ack()

    play(test, queues=1)


def test_pausing_seeking_and_positions() -> None:
    async def test(fake: FakeCluster) -> None:
        await produce(fake, 20)
        async with consumer(fake) as one:
            await polled(one, 20)
            zero, other = MessageQueue("orders", GROUP, 0), MessageQueue("orders", GROUP, 1)
            assert (one.position(zero), one.position(other)) == (10, 10)
            one.pause([zero])
            await one.seek_to_begin(zero)
            await one.seek(other, 8)
            assert {message.queue for message in await polled(one, 2)} == {other}
            assert await one.poll(0.03) == []
            assert one.position(zero) == 0
            one.resume([zero])
            assert [message.queue_offset for message in await polled(one, 10)] == list(range(10))
            await one.seek_to_end(zero)
            assert one.position(zero) == 10
            assert await one.offset_for_timestamp(zero, STORED_AT_MS + 4) == 4
            with pytest.raises(ClientError, match="is not assigned to this consumer"):
                await one.seek(MessageQueue("orders", GROUP, 9), 0)
            with pytest.raises(ClientError, match="0 or more"):
                await one.seek(zero, -1)

    play(test)


@pytest.mark.parametrize("by", ["commit", "close", "hand over"])
def test_a_group_is_set_back_only_after_a_seek(by: str) -> None:
    async def test(fake: FakeCluster) -> None:
        key = ("group", "orders", 0)
        await produce(fake, 10)
        options = BY_HAND if by == "commit" else replace(QUICK, commit_s=60.0)
        async with consumer(fake, topic=None, options=options) as one:
            (zero,) = await one.fetch_queues("orders")
            await one.assign([zero])
            await polled(one, 10)
            await one.commit()
            assert fake.offsets[key] == 10
            await one.seek(zero, 2)
            assert [message.queue_offset for message in await polled(one, 3)] == [2, 3, 4]
            if by == "commit":
                await one.commit()
                assert fake.offsets[key] == 5
                fake.offsets[key] = 9  # another one of the group went on
                await polled(one, 1)
                await one.commit()
                assert fake.offsets[key] == 9
                return
            await polled(one, 1)  # those of before are consumed
            if by == "hand over":
                await one.assign([])
        assert fake.offsets[key] == (6 if by == "hand over" else 5)

    play(test, queues=1)


def test_a_commit_that_is_under_way_takes_a_group_back_once() -> None:
    """Two at once, as of the user and of the timer, and the second arrived when another one had gone on."""

    async def test(fake: FakeCluster) -> None:
        key = ("group", "orders", 0)
        await produce(fake, 10)
        async with consumer(fake, topic=None, options=replace(BY_HAND, commit_s=60.0)) as one:
            (zero,) = await one.fetch_queues("orders")
            await one.assign([zero])
            await polled(one, 10)
            await one.commit()
            await one.seek(zero, 2)
            await polled(one, 3)
            before = len(fake.commits)
            await asyncio.gather(one.commit(), one.commit())
            assert [(sent.commitOffset, sent.setsBack) for sent in fake.commits[before:]] == [(5, True)]
            assert fake.offsets[key] == 5

    play(test, queues=1)


def test_queues_of_ones_own_choice_are_nobody_elses_affair() -> None:
    async def test(fake: FakeCluster) -> None:
        await produce(fake, 10)
        async with consumer(fake, topic=None) as one:
            zero, other = await one.fetch_queues("orders")
            await one.assign([zero])
            assert len(await polled(one, 5)) == 5 and one.assignment == [zero]
            await one.assign([other])
            await polled(one, 5)
            await one.commit()
            assert "group" not in fake.brokers[0].clients, "no share is kept for it"
            with pytest.raises(ClientError, match=r"either assign\(\) or subscribe\(\)"):
                one.subscribe("orders")
        assert committed(fake) == 10
        async with consumer(fake) as one:
            with pytest.raises(ClientError, match=r"either assign\(\) or subscribe\(\)"):
                await one.assign([zero])

    play(test)


def test_the_same_without_an_event_loop() -> None:
    with running(FakeCluster(topics={"orders": 2})) as fake:
        fill(fake, 20)
        with LitePullConsumer(
            "group", fake.namesrv, topic="orders", from_where=FromWhere.FIRST, options=BY_HAND
        ) as one:
            found: list[ReceivedMessage] = []
            while len(found) < 20:
                found += one.poll(20.0)
            one.commit()
            assert committed(fake) == 20
            zero = MessageQueue("orders", GROUP, 0)
            assert zero in one.assignment and one.position(zero) == one.committed(zero) == 10
            one.pause([zero])
            one.seek_to_begin(zero)
            assert one.poll(0.02) == []
            one.resume([zero])
            assert len(one.poll(20.0)) == 10
            one.seek_to_end(zero)
            one.seek(zero, 9)
            assert [message.queue_offset for message in one.poll(20.0)] == [9]
            one.commit()
            assert one.offset_for_timestamp(zero, STORED_AT_MS + 4) == 4
        with LitePullConsumer("group", fake.namesrv, options=BY_HAND) as one:
            one.assign(one.fetch_queues("orders"))
            assert one.poll(0.05) == []


def test_a_close_ends_who_waits() -> None:
    async def test(fake: FakeCluster) -> None:
        async def iterate(one: AsyncLitePullConsumer) -> list[ReceivedMessage]:
            return [message async for message in one]

        async with consumer(fake) as one:
            polling = asyncio.ensure_future(one.poll(60.0))
            iterating = asyncio.ensure_future(iterate(one))
            await asyncio.sleep(0.02)
        with pytest.raises(ClientClosed):
            await polling
        assert await iterating == []
        assert await iterate(one) == []
        async with AsyncPullConsumer("pulls", fake.namesrv) as pulls:
            await pulls.assign(await pulls.queues("orders"))
            polling = asyncio.ensure_future(pulls.poll(60.0))
            await asyncio.sleep(0.02)
        with pytest.raises(ClientClosed):
            await polling

    play(test)


def test_an_offset_that_cannot_be_is_refused_and_the_queue_is_read_on() -> None:
    async def test(fake: FakeCluster) -> None:
        await produce(fake, 4)
        async with AsyncPullConsumer("pulls", fake.namesrv) as one:
            await one.assign(await one.queues("orders"), start=FromWhere.FIRST)
            for queue in one.assignment:
                for wrong in (-1, None):
                    with pytest.raises(ClientError, match="give a queue offset"):
                        await one.seek(queue, wrong)  # type: ignore[arg-type]
            found: list[bytes] = []
            while len(found) < 4:
                found += [message.body for message in await one.poll(20.0)]

    play(test)


def test_queues_that_are_assigned_twice_at_once_are_read_once() -> None:
    async def test(fake: FakeCluster) -> None:
        await produce(fake, 10)
        async with consumer(fake, topic=None) as lite, AsyncPullConsumer("pulls", fake.namesrv) as pulls:
            queues = await lite.fetch_queues("orders")
            await asyncio.gather(*(lite.assign(queues) for _ in range(3)))
            await asyncio.gather(*(pulls.assign(queues, start=FromWhere.FIRST) for _ in range(3)))
            for one in (lite, pulls):
                found: list[bytes] = []
                while len(found) < 10:
                    found += [message.body for message in await one.poll(20.0)]
                found += [message.body for message in await one.poll(0.3)]
                assert sorted(found, key=int) == [b"%d" % number for number in range(10)]

    play(test)


def test_another_expression_counts_at_once_also_for_pulls_that_wait() -> None:
    async def test(fake: FakeCluster) -> None:
        async with consumer(fake, expression="A") as one:
            await eventually(lambda: len(fake.brokers[0].held) >= 2)
            one.subscribe("orders", "B")
            await eventually(lambda: {held[2].subscription for held in fake.brokers[0].held} >= {"B"})
            async with AsyncProducer("producers", fake.namesrv) as producer:
                for tag in "AB":
                    await producer.send(Message("orders", tag.encode(), tags=tag))
            assert [message.body for message in await polled(one, 1)] == [b"B"]

    play(test)
