"""Sending: acknowledgements, batches, checks, errors, retries. Failover is in test_failover.py."""

from __future__ import annotations

import asyncio
import sys
import zlib
from collections.abc import Awaitable, Callable

import pytest

from dledger.client import (
    AsyncProducer,
    ClientClosed,
    ClientError,
    CompressionType,
    InvalidMessage,
    LibraryMissing,
    Message,
    MessageQueue,
    NoNameServer,
    OutcomeUnknown,
    Overflow,
    ProducerOptions,
    SendFailed,
    SendResult,
    SendStatus,
    TopicNotFound,
)
from dledger.client.encoding import received
from dledger.formats.record import COMPRESSED, decode_record, encode_record
from dledger.remoting.codes import RequestCode, ResponseCode
from dledger.remoting.commands import Request
from dledger.remoting.server import Connection
from tests.client.fake_cluster import GROUP, FakeBroker, FakeCluster, eventually

Scenario = Callable[[FakeCluster, AsyncProducer], Awaitable[None]]


def run(
    scenario: Scenario, cluster: FakeCluster | None = None, options: ProducerOptions | None = None
) -> None:
    async def main() -> None:
        async with (
            cluster or FakeCluster(topics={"orders": 4}) as fake,
            AsyncProducer("producers", fake.namesrv, options) as producer,
            asyncio.timeout(60),
        ):
            await scenario(fake, producer)

    asyncio.run(main())


def test_a_message_is_stored_and_acknowledged() -> None:
    async def scenario(fake: FakeCluster, producer: AsyncProducer) -> None:
        message = Message(
            "orders", b"body", tags="paid", keys=["k1", "k2"], properties={"colour": "red"}, flag=7
        )
        result = await producer.send(message)
        (stored,) = fake.stored("orders")
        assert stored.body == b"body"
        assert stored.header.flag == 7
        assert stored.properties == {
            "UNIQ_KEY": result.message_id, "WAIT": "true", "TAGS": "paid", "KEYS": "k1 k2", "colour": "red"
        }  # fmt: skip
        assert result.status is SendStatus.OK
        assert result.queue == MessageQueue("orders", GROUP, stored.queue_id)
        assert result.queue_offset == 0
        assert len(result.offset_message_id) == 32

    run(scenario)


def test_queues_take_turns() -> None:
    async def scenario(fake: FakeCluster, producer: AsyncProducer) -> None:
        for number in range(8):
            await producer.send(Message("orders", b"%d" % number))
        assert [len(fake.queue("orders", queue_id)) for queue_id in range(4)] == [2, 2, 2, 2]

    run(scenario)


def test_a_chosen_queue_gets_the_message() -> None:
    async def scenario(fake: FakeCluster, producer: AsyncProducer) -> None:
        queues = await producer.queues("orders")
        assert [queue.queue_id for queue in queues] == [0, 1, 2, 3]
        for _ in range(3):
            assert (await producer.send(Message("orders", b"x"), queue=queues[2])).queue == queues[2]
        with pytest.raises(InvalidMessage, match="not among"):
            await producer.send(Message("orders", b"x"), queue=MessageQueue("orders", GROUP, 9))

    run(scenario)


def test_messages_with_one_ordering_key_keep_their_order() -> None:
    async def scenario(fake: FakeCluster, producer: AsyncProducer) -> None:
        sends = [
            producer.send(Message("orders", b"%d" % number), ordering_key="customer-7")
            for number in range(50)
        ]
        results = await asyncio.gather(*sends)
        assert len({result.queue for result in results}) == 1
        assert fake.bodies("orders") == [b"%d" % number for number in range(50)]

    run(scenario)


def test_a_batch_is_stored_in_one_queue() -> None:
    async def scenario(fake: FakeCluster, producer: AsyncProducer) -> None:
        result = await producer.send_batch(
            [Message("orders", b"%d" % number, tags="t") for number in range(5)]
        )
        stored = fake.stored("orders")
        assert [item.body for item in stored] == [b"0", b"1", b"2", b"3", b"4"]
        assert stored[0].properties["UNIQ_KEY"] == result.message_id
        assert len({item.properties["UNIQ_KEY"] for item in stored}) == 5
        assert result.offset_message_id.count(",") == 4
        with pytest.raises(InvalidMessage, match="must have the same topic"):
            await producer.send_batch([Message("orders", b"x"), Message("other", b"x")])
        with pytest.raises(InvalidMessage, match="empty"):
            await producer.send_batch([])

    run(scenario)


@pytest.mark.parametrize("size", [5000, 200_000])
def test_large_bodies_travel_compressed(size: int) -> None:
    async def scenario(fake: FakeCluster, producer: AsyncProducer) -> None:
        await producer.send(Message("orders", b"a" * size))
        (stored,) = fake.stored("orders")
        assert stored.header.sysFlag == COMPRESSED
        assert zlib.decompress(stored.body) == b"a" * size

    run(scenario)


@pytest.mark.parametrize("kind", CompressionType)
def test_each_compression_is_told_by_its_flag_and_read_again(kind: CompressionType) -> None:
    if kind is CompressionType.ZSTD:
        pytest.importorskip("zstandard")

    async def scenario(fake: FakeCluster, producer: AsyncProducer) -> None:
        await producer.send(Message("orders", b"a" * 5000))
        (stored,) = fake.stored("orders")
        assert stored.header.sysFlag == kind.value and len(stored.body) < 100
        got = received(decode_record(stored.record()), GROUP)
        assert (got.body, got.sys_flag) == (b"a" * 5000, 0)

    run(scenario, options=ProducerOptions(compress_type=kind))


def test_zstd_without_its_library_is_refused_when_the_options_are_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "zstandard", None)
    with pytest.raises(ClientError, match=r"dledger\[zstd\]"):
        ProducerOptions(compress_type=CompressionType.ZSTD)
    assert ProducerOptions(compress_type="lz4").compress_type is CompressionType.LZ4  # type: ignore[arg-type]
    record = decode_record(encode_record(topic="orders", body=b"x", sys_flag=CompressionType.ZSTD.value))
    with pytest.raises(LibraryMissing, match=r"dledger\[zstd\]"):
        received(record, GROUP)


def test_oneway_messages_arrive() -> None:
    async def scenario(fake: FakeCluster, producer: AsyncProducer) -> None:
        await producer.send_oneway(Message("orders", b"oneway"))
        await producer.send(Message("orders", b"after"))
        assert sorted(fake.bodies("orders")) == [b"after", b"oneway"]

    run(scenario)


def test_a_topic_is_created_by_sending_to_it() -> None:
    async def scenario(fake: FakeCluster, producer: AsyncProducer) -> None:
        assert len(await producer.queues("fresh")) == 4
        await producer.send(Message("fresh", b"x"))
        assert fake.topics["fresh"] == 4

    run(scenario)


def test_an_unknown_topic_is_an_error_when_topics_are_not_created_automatically() -> None:
    cluster = FakeCluster(topics={})
    cluster.default_queues = 0

    async def scenario(fake: FakeCluster, producer: AsyncProducer) -> None:
        with pytest.raises(TopicNotFound, match="create_topic"):
            await producer.send(Message("fresh", b"x"))

    run(scenario, cluster)


def test_a_topic_is_created_with_the_wanted_queues() -> None:
    async def scenario(fake: FakeCluster, producer: AsyncProducer) -> None:
        await producer.create_topic("fresh", queues=6)
        assert len(await producer.queues("fresh")) == 6
        with pytest.raises(InvalidMessage):
            await producer.create_topic("not a name")

    run(scenario)


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (Message("", b"x"), "topic name is empty"),
        (Message("a b", b"x"), "holds ' '"),
        (Message("t" * 128, b"x"), "the limit of the brokers is 127"),
        (Message("orders", b""), "body is empty"),
        (Message("orders", "text"), "give bytes"),  # type: ignore[arg-type]
        (Message("orders", bytes(4 * 1024 * 1024 + 1)), "the limit is 4194304"),
        (Message("orders", b"x", properties={"TAGS": "x"}), "reserved by RocketMQ"),
        (Message("orders", b"x", properties={"a": "b\x01"}), "x01"),
        (Message("orders", b"x", properties={"a": "b" * 40000}), "the limit is"),
    ],
)
def test_bad_messages_are_refused_before_they_are_sent(message: Message, text: str) -> None:
    async def scenario(fake: FakeCluster, producer: AsyncProducer) -> None:
        with pytest.raises(InvalidMessage, match=text):
            await producer.send(message)
        assert producer._pending_count == 0
        await producer.send(Message("orders", b"good"))

    run(scenario)


def answer_once(
    code: int, remark: str = "", times: int = 1
) -> Callable[[FakeBroker, Connection, Request], bool]:
    left = [times]

    def script(broker: FakeBroker, connection: Connection, request: Request) -> bool:
        if request.code not in (RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE) or left[0] == 0:
            return False
        left[0] -= 1
        connection.respond(request, code, remark=remark)
        return True

    return script


def test_an_unknown_outcome_is_sent_again_with_the_same_id_and_a_mark() -> None:
    async def scenario(fake: FakeCluster, producer: AsyncProducer) -> None:
        fake.script = answer_once(ResponseCode.SYSTEM_ERROR, "outcome unknown: leadership was lost")
        result = await producer.send(Message("orders", b"x"))
        (stored,) = fake.stored("orders")
        assert stored.properties["UNIQ_KEY"] == result.message_id
        assert stored.properties["__RESEND"] == "1"
        fake.script = answer_once(ResponseCode.SYSTEM_ERROR, "outcome unknown: leadership was lost")
        await producer.send_batch([Message("orders", b"y"), Message("orders", b"z")])
        assert [item.properties.get("__RESEND") for item in fake.stored("orders")] == ["1"] * 3
        assert producer._resent_count == 2

    run(scenario)


def test_a_busy_broker_is_asked_again_without_a_mark() -> None:
    async def scenario(fake: FakeCluster, producer: AsyncProducer) -> None:
        fake.script = answer_once(ResponseCode.SYSTEM_BUSY, times=2)
        await producer.send(Message("orders", b"x"))
        (stored,) = fake.stored("orders")
        assert "__RESEND" not in stored.properties

    run(scenario, options=ProducerOptions(busy_pause_s=0.001))


def test_attempts_are_limited() -> None:
    async def scenario(fake: FakeCluster, producer: AsyncProducer) -> None:
        fake.script = answer_once(ResponseCode.SYSTEM_BUSY, "no room", times=3)
        with pytest.raises(SendFailed, match="no room"):
            await producer.send(Message("orders", b"x"))
        fake.script = answer_once(ResponseCode.SYSTEM_ERROR, "outcome unknown", times=3)
        with pytest.raises(OutcomeUnknown, match="may be stored"):
            await producer.send(Message("orders", b"x"))
        assert fake.stored("orders") == []

    run(scenario, options=ProducerOptions(busy_pause_s=0.001))


def test_what_the_broker_refuses_for_good_is_not_repeated() -> None:
    async def scenario(fake: FakeCluster, producer: AsyncProducer) -> None:
        fake.script = answer_once(ResponseCode.MESSAGE_ILLEGAL, "too large for this broker")
        with pytest.raises(SendFailed, match="too large for this broker") as failure:
            await producer.send(Message("orders", b"x"))
        assert failure.value.code == ResponseCode.MESSAGE_ILLEGAL
        assert fake.stored("orders") == []

    run(scenario)


def test_send_nowait_reports_by_callback_and_has_a_limit() -> None:
    async def scenario(fake: FakeCluster, producer: AsyncProducer) -> None:
        results: list[SendResult | ClientError] = []
        with pytest.raises(TopicNotFound, match="prepare"):
            producer.send_nowait(Message("orders", b"x"), results.append)
        await producer.prepare("orders")
        for _ in range(3):
            producer.send_nowait(Message("orders", b"x"), results.append)
        with pytest.raises(Overflow, match="max_pending"):
            producer.send_nowait(Message("orders", b"x"), results.append)
        await producer._room()
        await producer.send(Message("orders", b"x"))  # waits for room by itself
        assert len(results) == 3
        assert all(isinstance(result, SendResult) for result in results)

    run(scenario, options=ProducerOptions(max_pending=3))


def test_closing_reports_what_is_under_way() -> None:
    async def main() -> None:
        results: list[SendResult | ClientError] = []
        async with (
            FakeCluster(topics={"orders": 1}) as fake,
            AsyncProducer("producers", fake.namesrv) as producer,
        ):
            await producer.prepare("orders")
            fake.brokers[0].silent = True
            producer.send_nowait(Message("orders", b"x"), results.append)
            producer.send_nowait(Message("orders", b"y"), results.append, ordering_key="k")
            producer.send_nowait(Message("orders", b"z"), results.append, ordering_key="k")
            await eventually(lambda: fake.brokers[0].requests.count(RequestCode.SEND_MESSAGE_V2) == 2)
            await producer.close(drain=False)
        assert [type(result) for result in results] == [OutcomeUnknown, OutcomeUnknown, ClientClosed]
        with pytest.raises(ClientClosed):
            await producer.send(Message("other", b"x"))

    asyncio.run(main())


def test_an_error_of_the_application_leaves_the_block_as_it_is() -> None:
    async def scenario(fake: FakeCluster, producer: AsyncProducer) -> None:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        run(scenario)


def test_a_missing_nameserver_is_named() -> None:
    async def main() -> None:
        async with AsyncProducer("producers", "127.0.0.1:1") as producer:
            with pytest.raises(NoNameServer, match=r"127\.0\.0\.1:1"):
                await producer.send(Message("orders", b"x"))

    asyncio.run(main())


def test_the_next_nameserver_is_asked_when_one_is_down() -> None:
    async def main() -> None:
        async with (
            FakeCluster(topics={"orders": 1}) as fake,
            AsyncProducer("producers", f"127.0.0.1:1;{fake.namesrv}") as producer,
        ):
            await producer.send(Message("orders", b"x"))

    asyncio.run(main())


def test_calls_that_meet_a_dead_nameserver_together_all_reach_the_one_that_lives() -> None:
    async def main() -> None:
        async with FakeCluster(topics={"orders": 1, "bills": 1, "claims": 1}) as fake:
            for first in range(3):
                async with AsyncProducer("producers", f"127.0.0.1:1;{fake.namesrv};127.0.0.1:2") as producer:
                    producer._core.name_servers.current = first  # the one that it begins with
                    sends = [producer.send(Message(topic, b"x")) for topic in ("orders", "bills", "claims")]
                    await asyncio.gather(*sends)

    asyncio.run(main())


@pytest.mark.parametrize(
    "address", ["", "localhost", "localhost:", "localhost:x", ":9876", "localhost:70000"]
)
def test_bad_nameserver_addresses_are_refused(address: str) -> None:
    with pytest.raises(ClientError, match="address"):
        AsyncProducer("producers", address)


def test_sends_under_way_when_their_topic_is_deleted_hear_that_it_is_gone() -> None:
    async def scenario(fake: FakeCluster, producer: AsyncProducer) -> None:
        async def send_on() -> None:
            while True:
                await producer.send(Message("orders", b"x"))

        fake.default_queues = 0
        senders = [asyncio.ensure_future(send_on()) for _ in range(3)]
        await eventually(lambda: len(fake.bodies("orders")) > 10)
        assert producer.has_route("orders")
        await producer.delete_topic("orders")
        assert not producer.has_route("orders")
        ends = await asyncio.gather(*senders, return_exceptions=True)
        assert {type(end) for end in ends} <= {SendFailed, TopicNotFound}
        assert producer._pending_count == 0

    run(scenario, options=ProducerOptions(close_timeout_s=1.0))


def test_one_question_for_a_route_serves_all_that_wait_for_it() -> None:
    """A thousand first sends at once were a thousand questions, and timed out at a busy NameServer."""

    async def scenario(fake: FakeCluster, producer: AsyncProducer) -> None:
        first = asyncio.ensure_future(producer.send(Message("orders", b"given up")))
        sends = [asyncio.ensure_future(producer.send(Message("orders", b"x"))) for _ in range(50)]
        await asyncio.sleep(0)
        first.cancel()  # who asked first may go away
        results = await asyncio.gather(*sends)
        assert len(results) == 50
        assert fake.route_requests < 10
        fake.default_queues = 0
        before = fake.route_requests
        missing = [asyncio.ensure_future(producer.send(Message("missing", b"x"))) for _ in range(50)]
        errors = await asyncio.gather(*missing, return_exceptions=True)
        assert {type(error) for error in errors} == {TopicNotFound}
        assert fake.route_requests < before + 10

    run(scenario, options=ProducerOptions(suspicion_s=600.0))
