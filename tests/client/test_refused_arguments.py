"""Arguments that cannot do what their caller means are refused where they are given, with the way out."""

from __future__ import annotations

import asyncio
import copy
import dataclasses
import pickle
import threading
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest

from dledger.client import (
    AsyncProducer,
    ClientError,
    ClientOptions,
    ConsumerOptions,
    Credentials,
    FromWhere,
    InvalidMessage,
    LitePullConsumer,
    Message,
    MessageModel,
    MessageQueue,
    PopConsumer,
    Producer,
    PullConsumer,
    PushConsumer,
)
from dledger.client.producing.preset_ids import with_unique_id
from tests.client.fake_cluster import FakeCluster
from tests.client.test_sync import running


@pytest.mark.parametrize("key", ["order 1", "order\t1", " order", "order ", "", " ", "a\u00a0b"])
def test_a_key_of_a_list_that_no_query_finds_is_refused(key: str) -> None:
    with pytest.raises(InvalidMessage, match="no query would find it"):
        Message("orders", b"x", keys=["first", key])


@pytest.mark.parametrize(
    ("keys", "found"), [(["a", "b"], "a b"), ("order 1", "order 1"), ((), ""), (None, None)]
)
def test_other_keys_are_taken(keys: Any, found: str | None) -> None:
    assert Message("orders", b"x", keys=keys).keys == found


def test_a_key_that_is_set_later_is_refused_when_it_is_sent() -> None:
    message = Message("orders", b"x")
    message.keys = ["order 1"]  # type: ignore[assignment]
    with running(FakeCluster(topics={"orders": 1})) as fake, Producer("p", fake.namesrv) as producer:
        with pytest.raises(InvalidMessage, match="no query would find it"):
            producer.send(message)
        assert not fake.queues.get(("orders", 0))


UNNAMEABLE = ["", "*", "a||b", "a || b", "||", " a", "a ", "a\n", "a\x00b", "a\x1bb", "\u2028"]


@pytest.mark.parametrize("tag", UNNAMEABLE)
def test_a_tag_that_no_subscription_names_is_refused_but_in_a_copy(tag: str) -> None:
    with pytest.raises(InvalidMessage, match="no subscription can select this tag"):
        Message("orders", b"x", tags=tag)
    copied = Message("orders", b"x")
    copied.tags = tag

    async def main() -> None:
        async with (
            FakeCluster(topics={"orders": 1}) as fake,
            AsyncProducer("group", fake.namesrv) as producer,
        ):
            with pytest.raises(InvalidMessage, match="no subscription can select this tag"):
                await producer.send("orders", b"x", tags=tag or " ")
            if tag.isprintable():  # what brokers cannot store is refused by them
                await producer.send(with_unique_id(copied, "0123456789ABCDEF"))
                assert fake.stored("orders")[0].properties.get("TAGS", "") == tag

    asyncio.run(main())


@pytest.mark.parametrize("tag", ["a", "a-b", "a|b", "in transit", "bezahlt", "已付", "a*", "order:17"])
def test_other_tags_are_taken(tag: str) -> None:
    assert Message("orders", b"x", tags=tag).tags == tag


@pytest.mark.parametrize(
    "namesrv", [("127.0.0.1", 9876), 9876, b"127.0.0.1:9876", ["127.0.0.1:9876", None], 1.5]
)
def test_an_address_that_is_no_text_is_refused(namesrv: Any) -> None:
    with pytest.raises(ClientError, match=r"give text, as 'host:port'"):
        Producer("p", namesrv)


def test_a_batch_may_be_any_iterable_of_messages() -> None:
    with running(FakeCluster(topics={"orders": 1})) as fake, Producer("p", fake.namesrv) as producer:
        producer.send_batch(Message("orders", bytes([number])) for number in range(3))
        assert [stored.body for stored in fake.queues["orders", 0]] == [b"\0", b"\1", b"\2"]


@pytest.mark.parametrize("messages", [Message("orders", b"x"), "orders", b"orders", 7, None])
def test_a_batch_that_is_none_is_refused(messages: Any) -> None:
    with (
        running(FakeCluster(topics={"orders": 1})) as fake,
        Producer("p", fake.namesrv) as producer,
        pytest.raises(InvalidMessage, match="give a list of Messages"),
    ):
        producer.send_batch(messages)


WAITS: list[tuple[Any, ...]] = [("1",), (None,), (-1,), (float("nan"),), (True,)]
COUNTS: list[tuple[Any, ...]] = [(1, 2.5), (1, 0), (1, "2"), (1, None), (1, True)]


@pytest.mark.parametrize("arguments", [*WAITS, *COUNTS], ids=repr)
@pytest.mark.parametrize("kind", ["pull", "lite pull", "pop"])
def test_a_wait_or_a_count_that_is_none_is_refused(kind: str, arguments: tuple[Any, ...]) -> None:
    if kind == "pop" and len(arguments) > 1:
        return  # it has no count
    with running(FakeCluster(topics={"orders": 1})) as fake:
        make: dict[str, Callable[[], Any]] = {
            "pull": lambda: PullConsumer("c", fake.namesrv),
            "lite pull": lambda: LitePullConsumer("c", fake.namesrv, topic="orders"),
            "pop": lambda: PopConsumer("c", fake.namesrv, topic="orders"),
        }
        with make[kind]() as consumer:
            if kind == "pull":
                consumer.assign([MessageQueue("orders", "broker-a", 0)], FromWhere.FIRST)
            take = consumer.pop if kind == "pop" else consumer.poll
            with pytest.raises(ClientError, match=r"timeout_s=|max_messages="):
                take(*arguments)


@pytest.mark.parametrize("name", ["../../x", "a/b", "a\\b", "a\0b", "a\nb", "x" * 181, 7])
def test_an_instance_name_that_is_no_name_of_a_directory_is_refused(name: Any) -> None:
    with pytest.raises(ClientError, match="instance_name"):
        ClientOptions(instance_name=name)


def test_offsets_of_a_broadcasting_consumer_lie_below_their_directory(tmp_path: Path) -> None:
    options = ConsumerOptions(offsets_dir=str(tmp_path / "offsets"))
    with running(FakeCluster(topics={"orders": 1})) as fake:
        with Producer("p", fake.namesrv) as producer:
            producer.send("orders", b"x")
        got = threading.Event()
        with PushConsumer(
            "c",
            fake.namesrv,
            lambda message: got.set(),
            topic="orders",
            from_where=FromWhere.FIRST,
            model=MessageModel.BROADCASTING,
            options=options,
            client=ClientOptions(instance_name="..shop 1.. ü"),
        ):
            assert got.wait(20)
    (found,) = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert found.parent == tmp_path / "offsets" / "127.0.0.1@..shop 1.. ü" / "c"


CREDENTIALS = Credentials("ak", "secret", "token")


def sign(credentials: Credentials) -> dict[str, str]:
    return credentials.sign({"topic": "T"}, b"body")


def test_options_with_an_account_can_be_copied_and_sent_to_a_process() -> None:
    options = ClientOptions(credentials=CREDENTIALS)
    wanted = sign(CREDENTIALS)  # the key has been derived, and is not copied
    for made in (
        copy.copy(options),
        copy.deepcopy(options),
        pickle.loads(pickle.dumps(options)),
        dataclasses.replace(options),
    ):
        assert made == options
        assert made.credentials is not None and sign(made.credentials) == wanted
    told = dataclasses.asdict(options)["credentials"]
    assert told == {"access_key": "ak", "secret_key": "secret", "security_token": "token"}
    assert "secret" not in repr(options)
    with get_context("spawn").Pool(1) as pool:
        assert pool.apply(sign, (CREDENTIALS,)) == wanted
