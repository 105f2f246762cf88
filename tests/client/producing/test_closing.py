"""The end of a producer: what was begun is acknowledged, or ends with what is known of it."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable
from functools import partial

import pytest

from dledger.client import (
    AsyncProducer,
    ClientClosed,
    ClientError,
    Message,
    OutcomeUnknown,
    Producer,
    ProducerOptions,
    SendResult,
)
from dledger.remoting.codes import RequestCode
from dledger.remoting.commands import Request
from dledger.remoting.server import Connection
from dledger.runtime.loops import Waiter
from tests.broker.harness import skip_s
from tests.client.consumer_kit import until
from tests.client.fake_cluster import FakeBroker, FakeCluster, eventually, waits_for_a_leader
from tests.client.test_sync import running

Outcomes = list[SendResult | ClientError]
MANY = 3000


def kinds(outcomes: Outcomes) -> dict[type, int]:
    return dict(Counter(type(outcome) for outcome in outcomes))


def refuses_sends(times: int) -> Callable[[FakeBroker, Connection, Request], bool]:
    """SYSTEM_BUSY so many times."""
    left = [times]

    def script(broker: FakeBroker, connection: Connection, request: Request) -> bool:
        if request.code != RequestCode.SEND_MESSAGE_V2 or not left[0]:
            return False
        left[0] -= 1
        connection.respond(request, 2, remark="busy")
        return True

    return script


@pytest.mark.parametrize("known", [False, True], ids=["first sends", "topic known"])
@pytest.mark.parametrize("by_error", [False, True], ids=["end of block", "exception"])
def test_what_was_begun_by_callbacks_is_acknowledged_at_close(known: bool, by_error: bool) -> None:
    outcomes: Outcomes = []
    with running(FakeCluster(topics={"orders": 4})) as fake:
        try:
            with Producer("producers", fake.namesrv) as producer:
                if known:
                    producer.send("orders", b"first")
                for number in range(MANY):
                    producer.send_async(Message("orders", b"%d" % number), outcomes.append)
                if by_error:
                    raise KeyError("mine")
        except KeyError:
            assert by_error
        assert kinds(outcomes) == {SendResult: MANY}
        assert len(fake.bodies("orders")) == MANY + known


@pytest.mark.parametrize("by_error", [False, True], ids=["end of block", "exception"])
def test_begun_tasks_and_futures_are_acknowledged_at_close(by_error: bool) -> None:
    async def main() -> None:
        async with FakeCluster(topics={"orders": 4}) as fake:
            try:
                async with AsyncProducer("producers", fake.namesrv) as producer:
                    sends = [
                        asyncio.ensure_future(producer.send(Message("orders", b"%d" % number)))
                        for number in range(MANY)
                    ]
                    if by_error:
                        raise KeyError("mine")
            except KeyError:
                assert by_error
            assert kinds(await asyncio.gather(*sends, return_exceptions=True)) == {SendResult: MANY}
            assert len(fake.bodies("orders")) == MANY

    asyncio.run(main())


def test_begun_sends_of_the_sync_face_are_acknowledged_at_close() -> None:
    with running(FakeCluster(topics={"orders": 4})) as fake:
        with Producer("producers", fake.namesrv) as producer:
            begun = [producer.begin(Message("orders", b"%d" % number)) for number in range(200)]
            batch = producer.begin_batch([Message("orders", b"a"), Message("orders", b"b")])
            producer.send_oneway(Message("orders", b"oneway"))
        assert {type(result()) for result in begun} == {SendResult}
        assert type(batch()) is SendResult
        assert len(fake.bodies("orders")) == 203


def test_a_cancelled_block_drains_too() -> None:
    """Ctrl-C in `asyncio.run` cancels the main task."""

    async def main() -> None:
        outcomes: Outcomes = []
        begun = asyncio.Event()
        async with FakeCluster(topics={"orders": 4}) as fake:

            async def work() -> None:
                async with AsyncProducer("producers", fake.namesrv) as producer:
                    await producer.prepare("orders")
                    for number in range(500):
                        producer.send_nowait(Message("orders", b"%d" % number), outcomes.append)
                    begun.set()
                    await asyncio.Event().wait()

            task = asyncio.ensure_future(work())
            await begun.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        assert kinds(outcomes) == {SendResult: 500}

    asyncio.run(main())


def test_ordered_retried_and_parked_messages_are_waited_for_at_close() -> None:
    async def main() -> None:
        outcomes: Outcomes = []
        cluster = FakeCluster(topics={"orders": 2})
        async with cluster as fake:
            async with AsyncProducer(
                "producers", fake.namesrv, ProducerOptions(busy_pause_s=0.02)
            ) as producer:
                await producer.prepare("orders")
                fake.script = refuses_sends(3)
                fake.lead(-1)
                for number in range(40):
                    message = Message("orders", b"%d" % number)
                    producer.send_nowait(message, outcomes.append, ordering_key="k" if number % 2 else None)

                async def lead_during_the_close() -> None:
                    await eventually(lambda: producer._stop.is_set() and waits_for_a_leader(producer))
                    assert not outcomes
                    fake.lead(1)

                leading = asyncio.ensure_future(lead_during_the_close())
            await leading
            assert kinds(outcomes) == {SendResult: 40}

    asyncio.run(main())


def test_a_close_without_draining_says_of_each_message_what_is_known() -> None:
    """Some are stored, some were handed to the system, most have not left: those are certainly not stored."""

    async def main() -> None:
        outcomes: Outcomes = []
        async with (
            FakeCluster(topics={"orders": 1}) as fake,
            AsyncProducer("producers", fake.namesrv) as producer,
        ):
            await producer.prepare("orders")
            fake.brokers[0].silent = True
            producer.send_nowait(Message("orders", b"left"), outcomes.append)
            await eventually(lambda: RequestCode.SEND_MESSAGE_V2 in fake.brokers[0].requests)
            for number in range(100):
                producer.send_nowait(Message("orders", b"%d" % number), outcomes.append)
            await producer.close(drain=False)
            assert kinds(outcomes) == {OutcomeUnknown: 1, ClientClosed: 100}
            assert all("not stored" in str(error) for error in outcomes if isinstance(error, ClientClosed))
            assert fake.brokers[0].requests.count(RequestCode.SEND_MESSAGE_V2) == 1

    asyncio.run(main())


@pytest.mark.parametrize("where", ["no broker listens", "nobody leads"])
def test_what_never_found_a_broker_is_not_stored_at_close(where: str) -> None:
    async def main() -> None:
        outcomes: Outcomes = []
        async with FakeCluster(nodes=1, topics={"orders": 1}) as fake:
            producer = await AsyncProducer("producers", fake.namesrv).start()
            await producer.prepare("orders")
            if where == "nobody leads":
                fake.lead(-1, registered=False)
            else:
                await fake.kill(0)
            for number in range(10):
                producer.send_nowait(Message("orders", b"%d" % number), outcomes.append, ordering_key="k")
                producer.send_nowait(Message("orders", b"%d" % number), outcomes.append)
            await eventually(lambda: waits_for_a_leader(producer))  # no broker is being asked with one
            await producer.close(drain=False)
            assert kinds(outcomes) == {ClientClosed: 20}
            with pytest.raises(ClientClosed):
                producer.send_nowait(Message("orders", b"x"), outcomes.append)

    asyncio.run(main())


def test_draining_has_a_limit() -> None:
    async def main() -> None:
        outcomes: Outcomes = []
        options = ProducerOptions(close_timeout_s=100.0, timeout_s=1000.0, attempt_timeout_s=1000.0)
        async with FakeCluster(topics={"orders": 1}) as fake:
            producer = await AsyncProducer("producers", fake.namesrv, options).start()
            await producer.prepare("orders")
            fake.brokers[0].silent = True
            producer.send_nowait(Message("orders", b"x"), outcomes.append)
            closing = asyncio.ensure_future(producer.close())
            await skip_s(60.0)
            await asyncio.sleep(0.05)
            assert not closing.done() and not outcomes
            await skip_s(60.0)
            async with asyncio.timeout(60):
                await closing
            assert kinds(outcomes) == {OutcomeUnknown: 1}

    asyncio.run(main())


def test_flush_waits_for_what_was_begun_before_it() -> None:
    outcomes: Outcomes = []
    with running(FakeCluster(topics={"orders": 4})) as fake, Producer("producers", fake.namesrv) as producer:
        assert producer.flush() == 0
        for number in range(300):
            producer.send_async(Message("orders", b"%d" % number), outcomes.append)
        assert producer.flush(60) == 0
        assert kinds(outcomes) == {SendResult: 300}
        for broker in fake.brokers:
            broker.silent = True
        for _ in range(3):
            producer.send_async(Message("orders", b"x"), outcomes.append)
        assert producer.flush(0.05) == 3  # not 0: it did not wait until these have ended, too
        for broker in fake.brokers:
            broker.silent = False
        producer.close(drain=False)


def test_flush_is_not_held_up_by_what_is_sent_meanwhile() -> None:
    async def main() -> None:
        async with (
            FakeCluster(topics={"orders": 4}) as fake,
            AsyncProducer("producers", fake.namesrv) as producer,
        ):
            await producer.prepare("orders")
            sent = 0

            def again(result: SendResult | ClientError) -> None:
                nonlocal sent
                sent += 1
                if sent < 100_000:
                    producer.send_nowait(Message("orders", b"x"), again)

            for _ in range(10):
                again(SendResult)  # type: ignore[arg-type]
            async with asyncio.timeout(60):
                assert await producer.flush() == 0
            assert sent < 1000
            sent = 100_000

    asyncio.run(main())


def test_a_callback_that_fails_holds_up_no_message_behind_it(caplog: pytest.LogCaptureFixture) -> None:
    """Not even the next one of its order, which leaves when the one before has ended."""
    outcomes: Outcomes = []

    def fails(result: SendResult | ClientError) -> None:
        outcomes.append(result)
        raise KeyError("mine")

    def leaves(result: SendResult | ClientError) -> None:
        outcomes.append(result)
        raise SystemExit(3)

    with running(FakeCluster(topics={"orders": 1})) as fake:
        with Producer("producers", fake.namesrv) as producer:
            for callback in (fails, leaves, fails, outcomes.append):
                producer.send_async(Message("orders", b"x"), callback, ordering_key="k")
            assert producer.flush(60) == 0
            assert producer.send("orders", b"last").queue_offset == 4
        assert kinds(outcomes) == {SendResult: 4}
    assert caplog.text.count("callback failed") == 2
    assert "in fails" in caplog.text and "Traceback" in caplog.text


def test_close_in_a_callback_returns_and_the_client_ends() -> None:
    with running(FakeCluster(topics={"orders": 1})) as fake:
        producer = Producer("producers", fake.namesrv).start()
        returned, begun = Waiter(), Waiter()
        outcomes: Outcomes = []

        def close(result: SendResult | ClientError) -> None:
            assert begun.wait(60)
            outcomes.append(result)
            producer.close()
            returned.set()

        producer.send_async(Message("orders", b"x"), close)
        for _ in range(20):
            producer.send_async(Message("orders", b"y"), outcomes.append)
        begun.set()
        assert returned.wait(60)
        with pytest.raises(ClientClosed):
            producer.send(Message("orders", b"z"))
        until(lambda: len(outcomes) == 21)  # by itself, drained
        producer.close()
        assert kinds(outcomes) == {SendResult: 21}
        with producer:
            producer.send(Message("orders", b"again"))


def test_a_second_life_of_a_producer_is_as_good_as_the_first() -> None:
    with running(FakeCluster(topics={"orders": 1})) as fake:
        producer = Producer("producers", fake.namesrv)
        for life in range(3):
            outcomes: Outcomes = []
            with producer:
                for _ in range(100):
                    producer.send_async(Message("orders", b"%d" % life), outcomes.append)
            assert kinds(outcomes) == {SendResult: 100}
        assert len(fake.bodies("orders")) == 300


def test_an_async_producer_lives_between_start_and_close_and_once() -> None:
    async def main() -> None:
        async with FakeCluster(topics={"orders": 1}) as fake:
            producer = AsyncProducer("producers", fake.namesrv)
            await producer.close()
            assert await producer.start() is producer
            with pytest.raises(ClientError, match="already started"):
                await producer.start()
            sends = [asyncio.ensure_future(producer.send("orders", b"x", tags="a")) for _ in range(50)]
            await asyncio.gather(producer.close(), producer.close())
            assert {type(send.result()) for send in sends} == {SendResult}
            with pytest.raises(ClientClosed, match="make another"):
                await producer.start()
            with pytest.raises(ClientClosed):
                await producer.send(Message("orders", b"x"))
            with pytest.raises(ClientClosed):
                await producer.flush()

    asyncio.run(main())


def test_a_start_and_its_close_may_lie_in_different_tasks() -> None:
    async def main() -> None:
        async with FakeCluster(topics={"orders": 1}) as fake:
            producer = AsyncProducer("producers", fake.namesrv)
            await asyncio.ensure_future(producer.start())
            assert isinstance(await producer.send(Message("orders", b"x")), SendResult)
            await asyncio.ensure_future(producer.close())

    asyncio.run(main())


@pytest.mark.parametrize("known", [False, True], ids=["first sends", "topic known"])
def test_more_than_may_be_under_way_wait_for_room(known: bool) -> None:
    """They were told Overflow, since the loop had not counted yet what was handed to it.

    No message is acknowledged before the sender waits. One more than allowed may be begun: while the loop
    takes a message over, neither side counts it."""
    outcomes: Outcomes = []
    begun: list[int] = []
    waiting: list[Callable[[], object]] = []

    def no_answer_yet(broker: FakeBroker, connection: Connection, request: Request) -> bool:
        if request.code != RequestCode.SEND_MESSAGE_V2:
            return False
        answer = partial(broker._send, connection, request)
        waiting.append(partial(asyncio.get_running_loop().call_soon_threadsafe, answer))
        return True

    def send_all() -> None:
        for number in range(500):
            producer.send_async(Message("orders", b"%d" % number), outcomes.append)
            begun.append(number)

    with running(FakeCluster(topics={"orders": 4})) as fake:
        with Producer("producers", fake.namesrv, ProducerOptions(max_pending=20)) as producer:
            if known:
                producer.send("orders", b"first")
            fake.script = no_answer_yet
            sender = threading.Thread(target=send_all)
            sender.start()
            until(lambda: len(waiting) >= 20 and len(begun) >= 20)
            time.sleep(0.1)
            assert len(begun) <= 21 and not outcomes
            fake.script = None

            def all_have_an_answer() -> bool:
                while waiting:
                    waiting.pop()()
                return len(outcomes) == 500

            until(all_have_an_answer)
            sender.join(60)
        assert kinds(outcomes) == {SendResult: 500}


@pytest.mark.parametrize("tries", [1, 2])
def test_a_close_that_is_cut_short_leaves_no_message_without_an_answer(tries: int) -> None:
    """A time-out around it, or a second Ctrl-C."""

    async def main() -> None:
        outcomes: Outcomes = []
        async with (
            FakeCluster(topics={"orders": 1}) as fake,
            AsyncProducer("producers", fake.namesrv) as producer,
        ):
            await producer.prepare("orders")
            fake.brokers[0].silent = True
            for _ in range(5):
                producer.send_nowait(Message("orders", b"x"), outcomes.append, ordering_key="k")
                producer.send_nowait(Message("orders", b"x"), outcomes.append)
            sends = fake.brokers[0].requests
            await eventually(lambda: sends.count(RequestCode.SEND_MESSAGE_V2) == 6)
            closing = asyncio.ensure_future(producer.close())
            for _ in range(tries):
                await asyncio.sleep(0.02)
                closing.cancel()
            await asyncio.wait([closing])
            assert len(outcomes) == 10
            assert kinds(outcomes) == {OutcomeUnknown: 6, ClientClosed: 4}

    asyncio.run(main())
