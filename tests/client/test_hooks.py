"""Hooks around sending and consuming, and filters of what was pulled."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from dataclasses import replace

import pytest

from dledger.client import (
    AsyncProducer,
    AsyncPushConsumer,
    ConsumeContext,
    ConsumeHook,
    ConsumeReturnType,
    ConsumerOptions,
    ConsumeStatus,
    FromWhere,
    InvalidMessage,
    Message,
    Producer,
    ProducerOptions,
    PullConsumer,
    PullOptions,
    PushConsumer,
    ReceivedMessage,
    SendContext,
    SendHook,
)
from tests.client.consumer_kit import FACES, QUICK, consume, fill
from tests.client.fake_cluster import FakeCluster, eventually


class Noting(SendHook):
    """Notes what it sees, and adds a property."""

    def __init__(self, name: str, seen: list[str]) -> None:
        self.name, self.seen = name, seen

    def before(self, context: SendContext) -> None:
        context.state[self.name] = len(self.seen)
        self.seen.append(f"{self.name} before {len(context.messages)}")
        for message in context.messages:
            message.properties = {**(message.properties or {}), self.name: "x"}

    def after(self, context: SendContext) -> None:
        ended = type(context.error).__name__ if context.error else bool(context.result)
        self.seen.append(f"{self.name} after {ended} {self.name in context.state}")


class Failing(SendHook):
    def before(self, context: SendContext) -> None:
        raise RuntimeError("before")

    def after(self, context: SendContext) -> None:
        raise RuntimeError("after")


@pytest.mark.parametrize("auto_batch", [False, True])
def test_hooks_are_called_around_each_send_and_may_change_the_message(auto_batch: bool) -> None:
    seen: list[str] = []
    hooks = (Noting("a", seen), Failing(), Noting("b", seen))
    options = ProducerOptions(hooks=hooks, auto_batch=auto_batch)

    async def main() -> None:
        async with (
            FakeCluster(topics={"orders": 4}) as fake,
            AsyncProducer("producers", fake.namesrv, options) as producer,
        ):
            await producer.send(Message("orders", b"1"))
            assert seen == ["a before 1", "b before 1", "b after True True", "a after True True"]
            seen.clear()
            await producer.send_batch([Message("orders", b"2"), Message("orders", b"3")])
            assert seen[0] == "a before 2" and len(seen) == 4
            seen.clear()
            await producer.send_oneway(Message("orders", b"4"))
            assert seen[-1] == "a after False True"
            seen.clear()
            with pytest.raises(InvalidMessage):
                await producer.send(Message("orders", b"5", properties={"TAGS": "x"}))
            assert seen[-2:] == ["b after InvalidMessage True", "a after InvalidMessage True"]
            await eventually(lambda: len(fake.stored("orders")) == 4)
            assert all(item.properties["a"] == item.properties["b"] == "x" for item in fake.stored("orders"))
            await asyncio.to_thread(from_a_thread, fake)

    def from_a_thread(fake: FakeCluster) -> None:
        seen.clear()
        with Producer("producers", fake.namesrv, options) as producer:
            producer.send("orders", b"6")
        assert seen[-1] == "a after True True"

    asyncio.run(main())


class Watching(ConsumeHook):
    """Notes contexts, and where it was called."""

    def __init__(self) -> None:
        self.ended: list[ConsumeContext] = []
        self.threads: list[int] = []

    def before(self, context: ConsumeContext) -> None:
        context.state["thread"] = threading.get_ident()

    def after(self, context: ConsumeContext) -> None:
        self.ended.append(context)
        self.threads.append(context.state["thread"])
        raise RuntimeError("of no consequence")


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("awaited", [False, True])
def test_hooks_see_how_each_call_of_a_listener_ended(face: type[PushConsumer], awaited: bool) -> None:
    watching = Watching()
    called_in: list[int] = []

    def listener(message: ReceivedMessage) -> object:
        called_in.append(threading.get_ident())
        if message.body == b"1" and not message.reconsume_times:
            raise ValueError("the first time")
        result = ConsumeStatus.RECONSUME_LATER if message.body == b"2" else None
        if message.reconsume_times:
            result = ConsumeStatus.SUCCESS
        return asyncio.sleep(0, result) if awaited else result

    async def main() -> None:
        async with FakeCluster(topics={"orders": 1}) as fake:
            await asyncio.to_thread(scenario, fake)

    def scenario(fake: FakeCluster) -> None:
        fake.takes_back = False
        fill(fake, 3)
        options = replace(QUICK, hooks=(watching,))
        consume(face, fake, listener, lambda: len(watching.ended) >= 5, options=options)

    asyncio.run(main())
    ended = {(one.messages[0].body, one.return_type) for one in watching.ended}
    assert {
        (b"0", ConsumeReturnType.SUCCESS),
        (b"1", ConsumeReturnType.EXCEPTION),
        (b"2", ConsumeReturnType.FAILED),
        (b"1", ConsumeReturnType.SUCCESS),
        (b"2", ConsumeReturnType.SUCCESS),
    } == ended
    assert len(watching.ended) == 5 and {one.consumer_group for one in watching.ended} == {"group"}
    assert sorted(called_in) == sorted(watching.threads), "hooks run where the listener does"


def test_a_call_beyond_the_limit_is_a_timeout() -> None:
    watching = Watching()

    async def main() -> None:
        options = ConsumerOptions(consume_timeout_s=0.01, hooks=(watching,))

        async def listener(message: ReceivedMessage) -> None:
            await asyncio.sleep(0.05)

        async with FakeCluster(topics={"orders": 1}) as fake:
            await asyncio.to_thread(fill, fake, 1)
            async with AsyncPushConsumer(
                "group", fake.namesrv, listener, topic="orders", from_where=FromWhere.FIRST, options=options
            ):
                await eventually(lambda: bool(watching.ended))

    asyncio.run(main())
    assert watching.ended[0].return_type is ConsumeReturnType.TIME_OUT


def test_filters_leave_out_what_they_do_not_return() -> None:
    def even(messages: Sequence[ReceivedMessage]) -> list[ReceivedMessage]:
        return [message for message in messages if int(message.body) % 2 == 0]

    def failing(messages: Sequence[ReceivedMessage]) -> list[ReceivedMessage]:
        raise RuntimeError("no filter")

    async def main() -> None:
        async with FakeCluster(topics={"orders": 1}) as fake:
            await asyncio.to_thread(scenario, fake)

    def scenario(fake: FakeCluster) -> None:
        fill(fake, 10)
        with PullConsumer("group", fake.namesrv, PullOptions(filters=(failing, even))) as consumer:
            (queue,) = consumer.queues("orders")
            consumer.assign([queue], FromWhere.FIRST)
            assert [message.body for message in consumer.poll(60.0)] == [b"0", b"2", b"4", b"6", b"8"]
        got: list[bytes] = []
        options = replace(QUICK, pull=PullOptions(filters=(even,)))
        consume(
            PushConsumer,
            fake,
            lambda message: got.append(message.body),
            lambda: len(got) >= 5,
            options=options,
        )
        assert sorted(got) == [b"0", b"2", b"4", b"6", b"8"]
        assert fake.offsets["group", "orders", 0] == 10

    asyncio.run(main())
