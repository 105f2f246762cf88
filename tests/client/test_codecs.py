"""Typed bodies: what goes in comes out, and what is something else is said."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dledger.client import (
    AsyncProducer,
    AsyncPushConsumer,
    ClientError,
    Codec,
    FromWhere,
    InvalidMessage,
    Producer,
    PushConsumer,
    ReceivedMessage,
    UnreadableBody,
)
from tests.client.consumer_kit import QUICK, until
from tests.client.fake_cluster import FakeCluster, eventually
from tests.client.test_sync import running


@dataclass
class Order:
    number: int
    items: list[str]
    note: str | None = None


class Price(msgspec.Struct):
    cents: int


formats = pytest.mark.parametrize("name", ["json", "msgpack"])


@given(
    st.sampled_from(["json", "msgpack"]),
    st.integers(-(2**63), 2**63 - 1),
    st.lists(st.text()),
    st.none() | st.text(),
)
def test_what_goes_in_comes_out(name: str, number: int, items: list[str], note: str | None) -> None:
    codec = Codec(Order, name)
    order = Order(number, items, note)
    assert codec.decode(codec.encode(order)) == order


@given(st.sampled_from(["json", "msgpack"]), st.binary(max_size=60))
def test_any_bytes_are_a_value_or_unreadable(name: str, body: bytes) -> None:
    try:
        assert isinstance(Codec(Order, name).decode(body), Order)
    except UnreadableBody as error:
        assert "Order" in str(error)


@formats
def test_a_reader_may_be_older_than_the_writer_and_not_otherwise(name: str) -> None:
    newer = Codec(dict[str, Any], name).encode({"number": 1, "items": [], "colour": "red"})
    assert Codec(Order, name).decode(newer) == Order(1, [])
    with pytest.raises(UnreadableBody, match="missing required field `items`"):
        Codec(Order, name).decode(Codec(dict[str, int], name).encode({"number": 1}))


@pytest.mark.parametrize("wrong", [Order("x", []), Order(1, [2]), object(), None])  # type: ignore[arg-type,list-item]
def test_what_a_reader_could_not_read_is_not_sent(wrong: Any) -> None:
    with pytest.raises(InvalidMessage, match="Order"):
        Codec(Order).message("orders", wrong)


def test_a_format_of_ones_own() -> None:
    class Plain:
        def encode(self, value: Any) -> bytes:
            return str(value).encode()

        def decode(self, body: bytes, kind: Any) -> Any:
            return kind(body)

    codec = Codec(int, Plain())
    assert codec.encode(7) == b"7" and codec.decode(b"8") == 8
    with pytest.raises(UnreadableBody):
        codec.decode(b"x")
    with pytest.raises(ClientError, match="json, msgpack"):
        Codec(int, "yaml")


def test_values_through_a_broker_and_what_is_none_is_a_failure_of_its_message() -> None:
    codec = Codec(Price)
    got: list[tuple[int, str | None]] = []

    async def handle(price: Price, message: ReceivedMessage) -> None:
        got.append((price.cents, message.tags))

    async def main() -> None:
        async with FakeCluster(topics={"prices": 1}) as fake, asyncio.timeout(60):
            async with AsyncProducer("producers", fake.namesrv) as producer:
                await producer.send(codec.message("prices", Price(5), tags="a"))
                await producer.send("prices", b"no price")
                await producer.send(codec.message("prices", Price(6)))
            listener = codec.listener(handle)
            async with AsyncPushConsumer(
                "group", fake.namesrv, listener, topic="prices", from_where=FromWhere.FIRST, options=QUICK
            ):
                await eventually(lambda: len(got) == 2 and len(fake.sent_back) == 1)
        assert sorted(got, key=str) == [(5, "a"), (6, None)]

    asyncio.run(main())


def test_a_plain_function_is_called_in_a_thread() -> None:
    codec = Codec(Price, "msgpack")
    got: list[int] = []

    def handle(price: Price, message: ReceivedMessage) -> None:
        asyncio.run(asyncio.sleep(0))  # not on a loop
        got.append(price.cents)

    with running(FakeCluster(topics={"prices": 1})) as fake:
        with Producer("producers", fake.namesrv) as producer:
            producer.send(codec.message("prices", Price(7)))
        with PushConsumer(
            "group",
            fake.namesrv,
            codec.listener(handle),
            topic="prices",
            from_where=FromWhere.FIRST,
            options=QUICK,
        ):
            until(lambda: got == [7])
