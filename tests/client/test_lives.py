"""Beginning and end of consumers: from inside, again, twice under one name; all clients are alike."""

from __future__ import annotations

import asyncio
import inspect
import threading
import time
from dataclasses import replace
from threading import Thread
from typing import Any

import pytest

from dledger.client import (
    AsyncProducer,
    AsyncPullConsumer,
    AsyncPushConsumer,
    ClientClosed,
    ClientError,
    ClientOptions,
    FromWhere,
    MessageModel,
    Producer,
    PullConsumer,
    PushConsumer,
    ReceivedMessage,
)
from tests.client.consumer_kit import QUICK, committed, fill, until
from tests.client.fake_cluster import FakeCluster, eventually
from tests.client.test_sync import running

FIRST = FromWhere.FIRST
PAIRS = [(Producer, AsyncProducer), (PushConsumer, AsyncPushConsumer), (PullConsumer, AsyncPullConsumer)]


@pytest.mark.parametrize("later", [False, True])
def test_close_in_a_listener_returns_at_once_and_nothing_more_is_handed_out(later: bool) -> None:
    """The fifth call closes. Calls that begin beside it end when it has said so."""
    handled: list[bytes] = []
    was_over: list[bool] = []
    one_by_one = threading.Lock()
    closed = threading.Event()
    consumer: PushConsumer

    def is_fifth(message: ReceivedMessage) -> bool:
        with one_by_one:
            handled.append(message.body)
            if len(handled) != 5:
                return False
        consumer.close()
        was_over.append(consumer._ended.wait(0))
        closed.set()
        return True

    def plain(message: ReceivedMessage) -> None:
        if not is_fifth(message) and len(handled) > 4:
            closed.wait(60)

    async def coroutine(message: ReceivedMessage) -> None:
        if not is_fifth(message) and len(handled) > 4:
            while not closed.is_set():  # noqa: ASYNC110  # set in another task
                await asyncio.sleep(0.002)

    with running(FakeCluster(topics={"orders": 1})) as fake:
        fill(fake, 100)
        consumer = PushConsumer(
            "group",
            fake.namesrv,
            coroutine if later else plain,
            topic="orders",
            from_where=FIRST,
            options=QUICK,
        )
        consumer.start()  # only now: a listener may be called before this returns
        assert consumer.wait(60)
        assert was_over == [False], "it returned before the end"
        assert 5 <= len(handled) <= 5 + QUICK.concurrency
        assert committed(fake) >= 5 - QUICK.concurrency
        assert not fake.brokers[0].clients.get("group")  # it said farewell
        consumer.close()


@pytest.mark.parametrize("by_block", [False, True])
def test_close_in_a_listener_of_an_async_consumer_returns_at_once(by_block: bool) -> None:
    async def main() -> None:
        handled: list[bytes] = []
        was_over: list[bool] = []

        async def listener(message: ReceivedMessage) -> None:
            handled.append(message.body)
            if len(handled) >= 5:
                await consumer.close()
                was_over.append(consumer._over.is_set())

        consumer = AsyncPushConsumer(
            "group", fake.namesrv, listener, topic="orders", from_where=FIRST, options=QUICK
        )
        if by_block:
            async with consumer:
                assert await consumer.wait(60)
        else:
            await consumer.start()
            assert await consumer.wait(60)
            await consumer.close()
        assert was_over and not any(was_over), "it returned before the end"
        assert 5 <= len(handled) <= 5 + QUICK.concurrency
        assert committed(fake) >= 1

    with running(FakeCluster(topics={"orders": 1})) as fake:
        fill(fake, 100)
        asyncio.run(main())


def test_a_second_life_of_a_consumer_is_as_good_as_the_first() -> None:
    handled: list[bytes] = []
    with running(FakeCluster(topics={"orders": 1})) as fake:
        consumer = PushConsumer(
            "group",
            fake.namesrv,
            lambda message: handled.append(message.body),
            topic="orders",
            from_where=FIRST,
            options=QUICK,
        )
        with pytest.raises(ClientClosed):
            consumer.wait(0)
        for life in range(1, 4):
            fill(fake, 5)
            consumer.start()
            until(lambda life=life: len(handled) == 5 * life)  # type: ignore[misc]
            assert not consumer.wait(0.01)
            with pytest.raises(ClientError, match="already started"):
                consumer.start()
            consumer.close()
            assert consumer.wait(0)
            assert committed(fake) == 5 * life


def test_an_async_consumer_that_was_closed_is_not_started_again() -> None:
    async def main() -> None:
        consumer = AsyncPushConsumer("group", fake.namesrv, print, topic="orders", options=QUICK)
        async with consumer:
            assert not await consumer.wait(0.01)
        with pytest.raises(ClientClosed, match="make another"):
            await consumer.start()
        with pytest.raises(ClientClosed, match="make another"):
            async with consumer:
                pass

    with running(FakeCluster(topics={"orders": 1})) as fake:
        asyncio.run(main())


@pytest.mark.parametrize("model", list(MessageModel))
def test_two_consumers_of_a_group_in_a_process_need_different_names(
    model: MessageModel, tmp_path: Any
) -> None:
    named = ClientOptions(instance_name="worker")

    def consumer(group: str, face: Any = PushConsumer, client: ClientOptions = named) -> Any:
        return face(group, fake.namesrv, print, topic="orders", model=model, client=client, options=QUICK)

    async def second() -> None:
        with pytest.raises(ClientError, match="instance_name"):
            await consumer("group", AsyncPushConsumer).start()
        with pytest.raises(ClientError, match="instance_name"):
            async with consumer("group", AsyncPushConsumer):
                pass

    with running(FakeCluster(topics={"orders": 1})) as fake:
        first = consumer("group").start()
        with pytest.raises(ClientError, match="instance_name"):
            consumer("group").start()
        asyncio.run(second())
        with consumer("another"), consumer("group", client=ClientOptions()):
            pass
        first.close()
        with consumer("group"):  # the name is free again
            pass


@pytest.mark.parametrize(("sync", "on_loop"), PAIRS)
def test_both_faces_of_a_client_have_one_constructor_and_one_set_of_methods(sync: Any, on_loop: Any) -> None:
    def parameters(of: Any) -> dict[str, tuple[Any, Any, Any]]:
        found = inspect.signature(of).parameters.values()
        return {each.name: (each.kind, each.default, each.annotation) for each in found if each.name != "env"}

    assert parameters(sync) == parameters(on_loop)
    assert list(parameters(sync)) == list(parameters(on_loop))
    for name in ("start", "close"):
        assert inspect.iscoroutinefunction(getattr(on_loop, name))
        assert parameters(getattr(sync, name)).keys() == parameters(getattr(on_loop, name)).keys()
    public = {name for name in vars(sync) if not name.startswith("_")}
    own = {"asend", "begin", "begin_batch", "send_async", "offset_at", "lowest", "highest"}
    assert public - own <= set(dir(on_loop))


def test_a_call_that_waits_when_another_thread_closes_is_told_so() -> None:
    with running(FakeCluster(topics={"orders": 1})) as fake:
        reader = PullConsumer("reports", fake.namesrv).start()
        reader.assign(reader.queues("orders"))
        ended: list[Exception] = []

        def poll() -> None:
            try:
                reader.poll(300)
            except Exception as error:
                ended.append(error)

        polling = Thread(target=poll)
        polling.start()
        time.sleep(0.05)
        reader.close()
        polling.join(60)
        assert [type(error) for error in ended] == [ClientClosed]
        with pytest.raises(ClientClosed):
            reader.poll(30)


def test_several_threads_that_start_it_at_once_start_one() -> None:
    """As a web server does that opens its client with the first request."""
    with running(FakeCluster(topics={"orders": 1})) as fake:
        consumer = PushConsumer("group", fake.namesrv, lambda message: None, topic="orders", options=QUICK)
        told: list[str] = []

        def start() -> None:
            try:
                consumer.start()
                told.append("started")
            except ClientError as error:
                told.append(str(error))

        before = threading.active_count()
        threads = [Thread(target=start) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(told) == ["started"] + ["this client is already started"] * 3
        consumer.close()
        until(lambda: threading.active_count() <= before)


def test_a_start_from_inside_is_refused_also_while_another_one_waits() -> None:
    with running(FakeCluster(topics={"orders": 1})) as fake:
        fill(fake, 1)
        told: list[str] = []
        begun, may_end = threading.Event(), threading.Event()

        def listen(message: ReceivedMessage) -> None:
            begun.set()
            may_end.wait(60)
            try:
                consumer.start()
            except ClientError as error:
                told.append(str(error))

        consumer = PushConsumer(
            "group", fake.namesrv, listen, topic="orders", from_where=FIRST, options=QUICK
        )
        consumer.start()
        assert begun.wait(60)
        inner = consumer._inner
        closing = Thread(target=consumer.close)
        closing.start()
        until(lambda: consumer._closing)
        again = Thread(target=consumer.start)
        again.start()
        time.sleep(0.05)  # it waits, too
        may_end.set()
        closing.join(60)
        again.join(60)
        assert told and "is being closed" in told[0]
        assert consumer._inner is not None and consumer._inner is not inner
        consumer.close()


def test_the_application_s_loop_goes_on_while_a_client_closes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where a listener still runs, in a thread, after all patience: the loop lets it end."""
    monkeypatch.setattr("dledger.runtime.workers.CLOSE_LIMIT_S", 600.0)
    may_end = threading.Event()
    begun = threading.Event()
    joining = threading.Event()
    ended: list[bool] = []

    def listen(message: ReceivedMessage) -> None:
        begun.set()
        ended.append(may_end.wait(60))

    async def main() -> None:
        options = replace(QUICK, close_timeout_s=0.05)
        consumer = AsyncPushConsumer(
            "group", fake.namesrv, listen, topic="orders", from_where=FIRST, options=options
        )
        workers = consumer._env.workers
        close = workers.close
        monkeypatch.setattr(workers, "close", lambda: (joining.set(), close()))
        async with consumer:
            await eventually(begun.is_set)
            closing = asyncio.ensure_future(consumer.close())
            await eventually(joining.is_set)  # somebody waits for the threads
            may_end.set()
            await closing
            await eventually(lambda: ended == [True])

    with running(FakeCluster(topics={"orders": 1})) as fake:
        fill(fake, 1)
        asyncio.run(main())
