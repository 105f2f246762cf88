"""A number that is no time is refused, with its unit, wherever a time is given."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from dledger.admin.messages import Messages
from dledger.admin.offsets import Offsets
from dledger.client import (
    AsyncLitePullConsumer,
    AsyncPullConsumer,
    AsyncPushConsumer,
    ClientError,
    LitePullConsumer,
    MessageQueue,
    PullConsumer,
    PushConsumer,
)
from dledger.client.times import AHEAD_MS, FIRST_MS, check_time
from dledger.commands.admin.offset import when
from dledger.commands.mqadmin.call import millis
from dledger.commands.mqadmin.options import WrongOptions
from dledger.remoting.bodies import MessageQueue as WireQueue
from dledger.spark.option_values import BadOption, milliseconds
from tests.client.consuming.test_consumers import produce
from tests.client.fake_cluster import GROUP, STORED_AT_MS, FakeCluster

NOW_MS = 1_795_798_043_000
WRONG = [
    (1_795_798_043, "seconds; give milliseconds since 1970: 1795798043000 .2026"),
    (1_795_798_043_000_123, "microseconds; give milliseconds since 1970: 1795798043000 "),
    (1_795_798_043_000_123_456, "nanoseconds; give milliseconds since 1970: 1795798043000 "),
    (1, "not a time between 2000"),
    (-2, "not a time between 2000"),
    (4_102_444_800_000, "not a time between 2000"),
]
NEVER_MS = (1 << 63) - 1


@pytest.mark.parametrize(("given", "text"), WRONG)
def test_the_unit_is_named(given: int, text: str) -> None:
    with pytest.raises(ClientError, match=f"timestamp_ms={given}: .*{text}"):
        check_time(given, "timestamp_ms", NOW_MS)


@pytest.mark.parametrize("given", [0, -1, NEVER_MS, FIRST_MS, NOW_MS, NOW_MS + AHEAD_MS])
def test_times_and_marks_are_taken(given: int) -> None:
    assert check_time(given, "timestamp_ms", NOW_MS) == given


@pytest.mark.parametrize("given", [FIRST_MS - 1, NOW_MS + AHEAD_MS + 1])
def test_the_bounds(given: int) -> None:
    with pytest.raises(ClientError, match="not a time between"):
        check_time(given, "timestamp_ms", NOW_MS)


@pytest.mark.parametrize("given", [1.5, 1_795_798_043_000.0, "1795798043000", None, True, b"1"])
def test_what_is_no_whole_number(given: Any) -> None:
    with pytest.raises(ClientError, match="whole milliseconds since 1970"):
        check_time(given, "timestamp_ms", NOW_MS)


Call = Callable[[FakeCluster, int], Awaitable[Any]]
ZERO = MessageQueue("orders", GROUP, 0)


async def _pull(fake: FakeCluster, call: Callable[[AsyncPullConsumer], Awaitable[Any]]) -> Any:
    async with AsyncPullConsumer("group", fake.namesrv) as consumer:
        await consumer.assign([ZERO])
        return await call(consumer)


async def _lite(fake: FakeCluster, time_ms: int) -> Any:
    async with AsyncLitePullConsumer("group", fake.namesrv) as consumer:
        return await consumer.offset_for_timestamp(ZERO, time_ms)


def _threads(fake: FakeCluster, time_ms: int) -> Awaitable[Any]:
    def ask() -> int:
        with PullConsumer("group", fake.namesrv) as consumer:
            return consumer.offset_at(ZERO, time_ms)

    return asyncio.to_thread(ask)


def _threads_seek(fake: FakeCluster, time_ms: int) -> Awaitable[Any]:
    def ask() -> None:
        with PullConsumer("group", fake.namesrv) as consumer:
            consumer.assign([ZERO])
            consumer.seek_to_time(ZERO, time_ms)

    return asyncio.to_thread(ask)


def _threads_lite(fake: FakeCluster, time_ms: int) -> Awaitable[Any]:
    def ask() -> int:
        with LitePullConsumer("group", fake.namesrv) as consumer:
            return consumer.offset_for_timestamp(ZERO, time_ms)

    return asyncio.to_thread(ask)


ASKED: dict[str, Call] = {
    "at_time": lambda fake, at: _pull(fake, lambda one: one.offset_at(ZERO, at)),
    "seek_to_time": lambda fake, at: _pull(fake, lambda one: one.seek_to_time(ZERO, at)),
    "assign": lambda fake, at: _pull(fake, lambda one: one.assign([ZERO], "timestamp", at)),
    "reset": lambda fake, at: _pull(fake, lambda one: one._offsets.reset("orders", GROUP, "group", at)),
    "query begin": lambda fake, at: _pull(fake, lambda one: one.query_by_key("orders", "k", begin_ms=at)),
    "query end": lambda fake, at: _pull(fake, lambda one: one.query_by_key("orders", "k", end_ms=at)),
    "offset_for_timestamp": _lite,
    "offset_at with threads": _threads,
    "seek_to_time with threads": _threads_seek,
    "offset_for_timestamp with threads": _threads_lite,
}


@pytest.mark.parametrize("name", ASKED)
def test_a_running_client_asks_for_no_such_time(name: str) -> None:
    async def main() -> None:
        async with FakeCluster(topics={"orders": 1}) as fake, asyncio.timeout(60):
            for given, text in WRONG:
                with pytest.raises(ClientError, match=text):
                    await ASKED[name](fake, given)

    asyncio.run(main())


def test_zero_is_the_beginning_and_a_time_is_found() -> None:
    async def main() -> None:
        async with FakeCluster(topics={"orders": 1}) as fake, asyncio.timeout(60):
            await produce(fake, 5)
            assert await ASKED["at_time"](fake, 0) == 0
            assert await ASKED["at_time"](fake, STORED_AT_MS + 3) == 3
            assert await ASKED["offset_at with threads"](fake, STORED_AT_MS + 3) == 3

    asyncio.run(main())


@pytest.mark.parametrize("kind", [PushConsumer, AsyncPushConsumer])
@pytest.mark.parametrize(("given", "text"), WRONG)
def test_a_consumer_does_not_begin_at_such_a_time(kind: type[Any], given: int, text: str) -> None:
    at = {"topic": "t", "from_where": "timestamp", "from_timestamp_ms": given}
    with pytest.raises(ClientError, match=text):
        kind("g", "127.0.0.1:1", print, **at)


@pytest.mark.parametrize("kind", [LitePullConsumer, AsyncLitePullConsumer])
def test_a_lite_pull_consumer_neither(kind: type[Any]) -> None:
    for given, text in WRONG:
        with pytest.raises(ClientError, match=text):
            kind("g", "127.0.0.1:1", topic="t", from_where="timestamp", from_timestamp_ms=given)


@pytest.mark.parametrize(("given", "text"), WRONG)
def test_operators_reset_to_no_such_time(given: int, text: str) -> None:
    nothing: Any = None
    offsets, messages, queue = (
        Offsets(nothing),
        Messages(nothing, nothing, nothing),
        WireQueue("orders", GROUP, 0),
    )
    calls: list[Awaitable[Any]] = [
        offsets.at_time("a", queue, given),
        offsets.reset("a", "g", "orders", given),
        offsets.reset_offline("a", "g", "orders", given),
        offsets.changes("a", "g", "orders", given),
        messages.by_key("orders", "k", begin_ms=given),
        messages.by_key("orders", "k", end_ms=given),
    ]

    async def main() -> None:
        for call in calls:
            with pytest.raises(ClientError, match=text):
                await call

    asyncio.run(main())
    with pytest.raises(WrongOptions, match=text):
        millis(str(given))


@pytest.mark.parametrize("given", [0, -1, NEVER_MS, STORED_AT_MS])
def test_mqadmin_takes_the_marks(given: int) -> None:
    assert millis(str(given)) == given


@pytest.mark.parametrize("given", WRONG[:3])
def test_a_reset_in_another_unit(given: tuple[int, str]) -> None:
    with pytest.raises(ClientError, match=given[1]):
        when(str(given[0]), NOW_MS)


@pytest.mark.parametrize("text", [str(NOW_MS + 1), "2026-12-31T00:00:00+00:00"])
def test_a_reset_to_the_future_needs_latest(text: str) -> None:
    with pytest.raises(
        ClientError, match=f"--to {text}: this time lies in the future; give latest".replace("+", r"\+")
    ):
        when(text, NOW_MS)
    timestamp, _ = when(text, NOW_MS, "--until", ahead=True)
    assert timestamp is not None and timestamp > NOW_MS


@pytest.mark.parametrize("text", ["1969-01-01T00:00:00+00:00", "2099-01-01T00:00:00+00:00", "-99999d"])
def test_dates_that_nothing_can_have(text: str) -> None:
    with pytest.raises(ClientError, match="not a time between"):
        when(text, NOW_MS)


def test_options_of_reads() -> None:
    assert milliseconds("startingTimestamp", str(STORED_AT_MS)) == STORED_AT_MS
    assert milliseconds("startingTimestamp", "0") == 0
    for given, text in WRONG[:4]:
        with pytest.raises(BadOption, match=f"startingTimestamp={given}: .*{text}"):
            milliseconds("startingTimestamp", str(given))
