"""What a listener may be, return and raise: each message counts as consumed only when it was."""

from __future__ import annotations

import asyncio
import functools
import signal
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from dledger.client import (
    AsyncPushConsumer,
    ClientError,
    ConsumerOptions,
    ConsumeStatus,
    FromWhere,
    PushConsumer,
    ReceivedMessage,
)
from dledger.client.consuming.concurrent_service import ConcurrentService
from dledger.client.consuming.consume_service import ConsumeService
from dledger.client.consuming.listener_calls import place
from dledger.remoting.codes import RequestCode
from tests.client.consumer_kit import CHILD_PATIENCE, FACES, QUICK, committed, consume, fill
from tests.client.fake_cluster import FakeCluster, eventually, skip_now
from tests.client.test_sync import running

Face = type[PushConsumer] | type[AsyncPushConsumer]
Real = Callable[[Any], Awaitable[ConsumeStatus | None]]
faces = pytest.mark.parametrize("face", FACES, ids=lambda face: face.__name__)


def traced(real: Real) -> Callable[..., Any]:
    @functools.wraps(real)
    def inner(*given: Any) -> Any:
        return real(*given)

    return inner


def bare(real: Real) -> Callable[..., Any]:
    return lambda message: real(message)


def partial(real: Real) -> Callable[..., Any]:
    return functools.partial(real)


def partial_of_traced(real: Real) -> Callable[..., Any]:
    return functools.partial(traced(real))


def coroutine_function(real: Real) -> Callable[..., Any]:
    return real


def forgot_an_await(real: Real) -> Callable[..., Any]:
    async def inner(message: Any) -> Any:
        return real(message)

    return inner


class _Async:
    def __init__(self, real: Real) -> None:
        self.real = real

    async def __call__(self, message: Any) -> Any:
        return await self.real(message)

    async def method(self, message: Any) -> Any:
        return await self.real(message)


class _Inherits(_Async):
    pass


class _Plain(_Async):
    def __call__(self, message: Any) -> Any:  # type: ignore[override]
        return self.real(message)


class _Awaitable:
    """What can be awaited, and is no coroutine."""

    def __init__(self, real: Awaitable[Any]) -> None:
        self.real = real

    def __await__(self) -> Any:
        return self.real.__await__()


def async_object(real: Real) -> Callable[..., Any]:
    return _Async(real)


def inheriting_object(real: Real) -> Callable[..., Any]:
    return _Inherits(real)


def plain_object(real: Real) -> Callable[..., Any]:
    return _Plain(real)


def method(real: Real) -> Callable[..., Any]:
    return _Async(real).method


def partial_of_object(real: Real) -> Callable[..., Any]:
    return functools.partial(_Async(real))


def awaitable(real: Real) -> Callable[..., Any]:
    return lambda message: _Awaitable(real(message))


SHAPES = [
    coroutine_function, traced, bare, partial, partial_of_traced, forgot_an_await,
    async_object, inheriting_object, plain_object, method, partial_of_object, awaitable,
]  # fmt: skip


@faces
@pytest.mark.parametrize("batch", [False, True])
@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.__name__)
def test_what_can_be_awaited_has_run_before_its_message_counts(
    shape: Callable[[Real], Any], batch: bool, face: Face
) -> None:
    ran: list[bytes] = []

    async def real(given: ReceivedMessage | Sequence[ReceivedMessage]) -> None:
        await asyncio.sleep(0)
        ran.extend(message.body for message in ([given] if isinstance(given, ReceivedMessage) else given))

    with running(FakeCluster(topics={"orders": 2})) as fake:
        fill(fake, 10)
        consume(face, fake, shape(real), lambda: committed(fake) == 10, batch=batch)
        assert sorted(map(int, ran)) == list(range(10))
        assert not fake.sent_back


@faces
def test_a_failure_of_what_is_awaited_is_one_of_its_message(face: Face) -> None:
    async def real(message: ReceivedMessage) -> None:
        if message.body == b"1":
            raise ValueError("cannot")

    with running(FakeCluster(topics={"orders": 1})) as fake:
        fill(fake, 3)
        consume(face, fake, traced(real), lambda: committed(fake) == 3)
        assert {header.offset for header in fake.sent_back} == {1000}


def says_so(message: ReceivedMessage) -> Any:
    return "RECONSUME_LATER"


async def says_so_later(message: ReceivedMessage) -> Any:
    return True


def yields(message: ReceivedMessage) -> Any:
    yield message


async def yields_later(message: ReceivedMessage) -> Any:
    yield message


@faces
@pytest.mark.parametrize("listener", [says_so, says_so_later, yields, yields_later])
def test_what_is_no_status_is_an_error_by_name_and_another_delivery(
    listener: Any, face: Face, caplog: pytest.LogCaptureFixture
) -> None:
    with running(FakeCluster(topics={"orders": 1})) as fake:
        fill(fake, 2)
        consume(face, fake, listener, lambda: len(fake.sent_back) >= 2)
    said = [
        line
        for line in caplog.messages
        if line.startswith("listener returned a value that is not a ConsumeStatus")
    ]
    assert len(said) >= 2
    assert f"listener={listener.__qualname__}" in said[0] and "attempt=1" in said[0]
    assert "ConsumeStatus.SUCCESS" in said[0]


@faces
def test_the_two_statuses_are_taken_at_their_word(face: Face) -> None:
    def listener(message: ReceivedMessage) -> ConsumeStatus:
        return ConsumeStatus.RECONSUME_LATER if message.body == b"1" else ConsumeStatus.SUCCESS

    with running(FakeCluster(topics={"orders": 1})) as fake:
        fill(fake, 3)
        consume(face, fake, listener, lambda: committed(fake) == 3)
        assert {header.offset for header in fake.sent_back} == {1000}


class _Unshowable(Exception):
    def __repr__(self) -> str:
        raise RuntimeError("not even that")

    __str__ = __repr__


RAISED: list[BaseException] = [
    StopIteration("end"),
    StopAsyncIteration("end"),
    GeneratorExit("end"),
    asyncio.CancelledError("end"),
    RuntimeError("end"),
    BaseException("end"),
    _Unshowable("end"),
]


def raising(error: BaseException, later: bool) -> Callable[[list[bytes]], Callable[[ReceivedMessage], Any]]:
    def make(seen: list[bytes]) -> Callable[[ReceivedMessage], Any]:
        def plain(message: ReceivedMessage) -> None:
            seen.append(message.body)
            if message.body == b"3":
                raise error

        async def coroutine(message: ReceivedMessage) -> None:
            plain(message)

        return coroutine if later else plain

    return make


@faces
@pytest.mark.parametrize("later", [False, True])
@pytest.mark.parametrize("error", RAISED, ids=lambda error: type(error).__name__)
def test_whatever_a_listener_raises_is_a_failure_of_that_message_alone(
    error: BaseException, later: bool, face: Face
) -> None:
    seen: list[bytes] = []
    one_worker = ConsumerOptions(concurrency=1, rebalance_retry_s=0.01, commit_s=0.02)
    with running(FakeCluster(topics={"orders": 1})) as fake:
        fill(fake, 8)
        consume(face, fake, raising(error, later)(seen), lambda: committed(fake) == 8, options=one_worker)
        assert sorted(seen) == [b"%d" % number for number in range(8)]
        assert {header.offset for header in fake.sent_back} == {3000}


@faces
def test_a_listener_that_cancels_its_own_task_takes_no_worker_along(face: Face) -> None:
    async def listener(message: ReceivedMessage) -> None:
        task = asyncio.current_task()
        if message.body == b"3" and task is not None:
            task.cancel()
            await asyncio.sleep(1)

    one_worker = ConsumerOptions(concurrency=1, rebalance_retry_s=0.01, commit_s=0.02)
    with running(FakeCluster(topics={"orders": 1})) as fake:
        fill(fake, 8)
        consume(face, fake, listener, lambda: committed(fake) == 8, options=one_worker)
        assert {header.offset for header in fake.sent_back} == {3000}


@pytest.mark.parametrize("later", [False, True])
@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt()], ids=["exit", "interrupt"])
def test_a_listener_that_ends_the_program_ends_the_consumer_which_says_so(
    error: BaseException, later: bool
) -> None:
    with running(FakeCluster(topics={"orders": 1})) as fake:
        fill(fake, 8)
        seen: list[bytes] = []
        options = ConsumerOptions(concurrency=1, rebalance_retry_s=0.01, commit_s=0.02)
        with (
            PushConsumer(
                "group",
                fake.namesrv,
                raising(error, later)(seen),
                topic="orders",
                from_where=FromWhere.FIRST,
                options=options,
            ) as consumer,
            pytest.raises(ClientError, match=type(error).__name__),
        ):
            consumer.wait(60)
        assert type(consumer.failure) is type(error)
        assert seen == [b"0", b"1", b"2", b"3"]
        assert committed(fake) == 3  # the message comes again

        async def main() -> None:
            async with AsyncPushConsumer(
                "others",
                fake.namesrv,
                raising(error, later)(seen),
                topic="orders",
                from_where=FromWhere.FIRST,
                options=options,
            ) as consumer:
                with pytest.raises(ClientError, match=type(error).__name__):
                    await consumer.wait(60)

        asyncio.run(main())
        assert committed(fake, "others") == 3


def test_a_failure_is_logged_in_full_once_and_then_counted(caplog: pytest.LogCaptureFixture) -> None:
    def listener(message: ReceivedMessage) -> None:
        {}["missing"]

    with running(FakeCluster(topics={"orders": 1})) as fake:
        fill(fake, 3)
        consume(PushConsumer, fake, listener, lambda: len(fake.sent_back) >= 3)
    told = [line for line in caplog.messages if line.startswith("listener failed")]
    first, second, third = told[:3]
    line = listener.__code__.co_firstlineno + 1
    for said in (first, second, third):
        assert f"error=KeyError('missing') at={__file__}:{line} in listener " in said
        assert "message_id=" in said and "queue=" in said and "attempt=1" in said
    assert "Traceback (most recent call last):" in first and '{}["missing"]' in first
    assert "Traceback" not in second + third
    assert "times=2" in second and "times=3" in third


@faces
@pytest.mark.parametrize("later", [False, True])
def test_a_stop_comes_between_two_messages(later: bool, face: Face, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not behind a chunk of 32, and what was handled is committed.

    A call ends only with a token. There are eight, and many more from the moment of the stop.
    """
    begun: list[bytes] = []
    handled: list[bytes] = []
    tokens = threading.Semaphore(8)
    stop_soon = ConsumeService.stop_soon

    def stop_and_hand_out_tokens(self: ConsumeService) -> None:
        stop_soon(self)
        tokens.release(300)

    monkeypatch.setattr(ConsumeService, "stop_soon", stop_and_hand_out_tokens)

    def plain(message: ReceivedMessage) -> None:
        begun.append(message.body)
        assert tokens.acquire(timeout=60)
        handled.append(message.body)

    async def coroutine(message: ReceivedMessage) -> None:
        begun.append(message.body)
        while not tokens.acquire(blocking=False):  # noqa: ASYNC110  # handed out in another thread
            await asyncio.sleep(0.002)
        handled.append(message.body)

    with running(FakeCluster(topics={"orders": 1})) as fake:
        fill(fake, 300)
        all_workers_call = 8 + QUICK.concurrency
        consume(face, fake, coroutine if later else plain, lambda: len(begun) == all_workers_call)
        assert len(begun) == len(handled) == all_workers_call, "calls that ran ended, and none began"
        done = sorted(map(int, handled))
        assert committed(fake) <= len(handled)
        first_missing = next(number for number in range(301) if number not in done)
        assert committed(fake) == first_missing


CHILD = """
import signal, sys, time
from dledger.client import ConsumerOptions, FromWhere, PushConsumer
def handle(message):
    if int(message.body) == 4:
        while not callable(signal.getsignal(signal.SIGTERM)):  # set by wait()
            time.sleep(0.002)
        print("waits", flush=True)
        while not consumer._inner._dispatcher._calls.stopped:
            time.sleep(0.002)
    print("handled", flush=True)
consumer = PushConsumer("group", sys.argv[1], handle, topic="orders", from_where=FromWhere.FIRST,
                        options=ConsumerOptions(concurrency=1, rebalance_retry_s=0.01), client=PATIENT)
with consumer:
    consumer.wait()
"""


CHILD_WITHOUT_A_BLOCK = CHILD.replace(
    "with consumer:\n    consumer.wait()",
    """
consumer.start()
try:
    consumer.wait()
except KeyboardInterrupt:
    sys.exit(130)
""",
)


CHILD_ON_A_LOOP = """
import asyncio, signal, sys
from dledger.client import AsyncPushConsumer, ConsumerOptions
async def handle(message):
    if int(message.body) == 4:
        while not callable(signal.getsignal(signal.SIGTERM)):  # set by wait()
            await asyncio.sleep(0.002)
        print("waits", flush=True)
        while not consumer._dispatcher._calls.stopped:
            await asyncio.sleep(0.002)
    print("handled", flush=True)
async def main():
    global consumer
    consumer = AsyncPushConsumer("group", sys.argv[1], handle, topic="orders", from_where="first",
                                 options=ConsumerOptions(concurrency=1, rebalance_retry_s=0.01),
                                 client=PATIENT)
    if sys.argv[2] == "block":
        async with consumer:
            await consumer.wait()
    else:
        await consumer.start()
        try:
            await consumer.wait()
        finally:
            await consumer.close()
asyncio.run(main())
"""


@pytest.mark.parametrize("child_s", ["threads", "threads without a block", "block", "start and close"])
@pytest.mark.parametrize(("name", "code"), [("SIGTERM", 143), ("SIGINT", 130)])
def test_a_signal_ends_a_waiting_program_between_two_messages(name: str, code: int, child_s: str) -> None:
    """The fifth call lasts until the program was asked to end: it ends by itself, and no other begins."""
    number = getattr(signal, name)
    with running(FakeCluster(topics={"orders": 1})) as fake:
        fill(fake, 300)
        program = CHILD_PATIENCE + {"threads": CHILD, "threads without a block": CHILD_WITHOUT_A_BLOCK}.get(
            child_s, CHILD_ON_A_LOOP
        )
        child = subprocess.Popen(
            [sys.executable, "-c", program, fake.namesrv, child_s],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert child.stdout is not None
        assert [child.stdout.readline() for _ in range(5)] == ["handled\n"] * 4 + ["waits\n"]
        hangs = threading.Timer(60, child.kill)
        hangs.start()
        child.send_signal(number)
        out, errors = child.communicate(timeout=60)
        handled = 4 + out.count("handled")
        assert child.returncode == code
        assert "Traceback" not in errors
        hangs.cancel()
        assert committed(fake) == handled == 5
        assert not fake.brokers[0].clients.get("group")  # it said farewell


async def takes_too_long(consumer: AsyncPushConsumer, calls: list[int], number: int) -> None:
    """Wait until the call with a message is the only one, and move the clock behind its time-out.

    The consumer looks at calls now and then: first it has to see this one.
    """
    dispatcher = consumer._dispatcher
    assert isinstance(dispatcher, ConcurrentService)
    limit_s = consumer.options.consume_timeout_s
    await eventually(lambda: number in calls and len(dispatcher._runs) == 1 and not dispatcher._backlog)
    (run,) = dispatcher._runs
    skip_now(limit_s / 8)
    await eventually(lambda: run.at == place(run.results))
    skip_now(limit_s)


@faces
def test_a_call_that_takes_too_long_holds_up_nothing_but_itself(face: Face) -> None:
    """Its message is given back, those before it are done with (or given back), those behind it go to other
    workers, and its late result does not count."""
    calls: list[int] = []
    end = threading.Event()

    def handle(message: ReceivedMessage) -> ConsumeStatus:
        calls.append(int(message.body))
        if message.body == b"3":
            end.wait(100)  # longer than `consume` waits
            return ConsumeStatus.RECONSUME_LATER
        return ConsumeStatus.RECONSUME_LATER if message.body == b"1" else ConsumeStatus.SUCCESS

    async def meanwhile(consumer: AsyncPushConsumer) -> None:
        await takes_too_long(consumer, calls, 3)

    options = replace(QUICK, concurrency=2, consume_timeout_s=60.0)
    with running(FakeCluster(topics={"orders": 1})) as fake:
        fill(fake, 20)

        def all_but_that() -> bool:
            if committed(fake) == 20:
                end.set()
            return end.is_set()

        # While the call still lasts.
        consume(face, fake, handle, all_but_that, options=options, meanwhile=meanwhile)
        assert sorted(calls) == list(range(20))
        backs = {back.offset // 1000: back.delayLevel for back in fake.sent_back}
        assert backs == {1: 0, 3: 3} and len(fake.sent_back) == 2


@faces
def test_a_call_that_ends_in_time_is_no_such(face: Face) -> None:
    async def handle(message: ReceivedMessage) -> None:
        await asyncio.sleep(0.02)

    options = replace(QUICK, concurrency=1, consume_timeout_s=60.0)
    with running(FakeCluster(topics={"orders": 1})) as fake:
        fill(fake, 12)
        consume(face, fake, handle, lambda: committed(fake) == 12, options=options)
        assert not fake.sent_back


@pytest.mark.parametrize("late", [None, ConsumeStatus.RECONSUME_LATER])
def test_what_took_too_long_and_is_not_taken_back_is_not_lost(late: ConsumeStatus | None) -> None:
    """The broker does not take it: the result counts after all, or the message comes again here."""
    calls: list[int] = []
    refused = asyncio.Event()

    async def handle(message: ReceivedMessage) -> ConsumeStatus | None:
        calls.append(int(message.body))
        if message.body == b"1" and calls.count(1) == 1:
            await refused.wait()
            return late
        return None

    async def meanwhile(consumer: AsyncPushConsumer) -> None:
        await takes_too_long(consumer, calls, 1)
        await eventually(lambda: RequestCode.CONSUMER_SEND_MSG_BACK in fake.brokers[0].requests)
        (run,) = consumer._dispatcher._runs  # type: ignore[attr-defined]
        await eventually(lambda: not run.sent_back)  # the consumer has heard of it
        refused.set()

    options = replace(QUICK, concurrency=2, consume_timeout_s=60.0)
    with running(FakeCluster(topics={"orders": 1})) as fake:
        fake.takes_back = False
        fill(fake, 4)
        done = lambda: committed(fake) == 4  # noqa: E731
        consume(AsyncPushConsumer, fake, handle, done, options=options, meanwhile=meanwhile)
        assert sorted(calls) == ([0, 1, 2, 3] if late is None else [0, 1, 1, 2, 3])
