"""Message trace: its records, their way, and that nothing waits for it."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dledger.client import (
    AsyncProducer,
    ClientOptions,
    Message,
    MessageQueue,
    ProducerOptions,
    PushConsumer,
    SendResult,
    SendStatus,
)
from dledger.client.core import ClientCore
from dledger.client.producing.producer import trace_producer
from dledger.client.trace import BATCH_CHARACTERS, MAX_WAITING, TraceDispatcher
from dledger.client.trace_records import TRACE_TOPIC, Pub, SubAfter, SubBefore, TraceRecord, decode, encode
from tests.client.consumer_kit import QUICK, until
from tests.client.fake_cluster import FakeCluster

TRACED = ClientOptions(trace=True)


@pytest.fixture(autouse=True)
def patient_traces(monkeypatch: pytest.MonkeyPatch) -> None:
    """A trace gets five seconds, then it is dropped: here a minute."""

    def patient(core: ClientCore) -> AsyncProducer:
        made = trace_producer(core)
        made.options = replace(made.options, timeout_s=60.0)
        return made

    monkeypatch.setattr("dledger.client.producing.producer.trace_producer", patient)
    monkeypatch.setattr("dledger.client.trace.CLOSE_S", 60.0)


PUB = Pub(1, "r", "g", "t", "id", "tag", "k1 k2", "h:1", 5, 7, 0, "off", True)


@pytest.mark.parametrize(
    ("record", "text"),
    [
        (PUB, "Pub|1|r|g|t|id|tag|k1 k2|h:1|5|7|0|off|true"),
        (replace(PUB, tags="", keys="", success=False), "Pub|1|r|g|t|id|null|null|h:1|5|7|0|off|false"),
        (SubBefore(1, "r", "g", "t", "rq", "id", 2, ""), "SubBefore|1|r|g|rq|id|2|null"),
        (SubAfter(9, "g", "t", "rq", "id", 3, True, "k", 0), "SubAfter|rq|id|3|true|k|0|9|g"),
    ],
)
def test_records_are_written_as_java_does(record: TraceRecord, text: str) -> None:
    assert encode(record) == text.replace("|", "\x01") + "\x02"


@settings(max_examples=30)
@given(st.lists(st.builds(Pub, *[st.integers(0, 9)], *[st.text(max_size=9)] * 7, st.integers(0, 9),
       st.integers(0, 9), st.integers(0, 4), st.text(max_size=9), st.booleans())))  # fmt: skip
def test_any_texts_leave_as_many_records_and_fields(records: list[Pub]) -> None:
    found = list(decode("".join(map(encode, records))))
    assert [len(fields) for fields in found] == [14] * len(records)


def test_sends_and_calls_of_listeners_are_told() -> None:
    async def main() -> None:
        async with FakeCluster(topics={"orders": 1, TRACE_TOPIC: 1}) as fake:
            fake.ext = {"MSG_REGION": "there", "TRACE_ON": "true"}
            async with AsyncProducer("producers", fake.namesrv, client=TRACED) as producer:
                sent = await producer.send(Message("orders", b"body", tags="t", keys=["k1", "k2"]))
                await producer.send(Message("orders", b"later", delay_level=3))
                batch = await producer.send_batch([Message("orders", b"1"), Message("orders", b"22")])
            await asyncio.to_thread(scenario, fake)
            pubs, subs = told(fake)
            address = fake.brokers[fake.leader].address
            assert pubs[sent.message_id][2:] == [
                "there", "producers", "orders", sent.message_id, "t", "k1 k2", address, "4",
                pubs[sent.message_id][10], "0", sent.offset_message_id, "true",
            ]  # fmt: skip
            assert sorted(fields[11] for fields in pubs.values()) == ["0", "0", "3"]
            assert pubs[batch.message_id][9] == "3", "a batch is one record, with the length of all bodies"
            before = [fields for fields in subs if fields[0] == "SubBefore" and fields[5] == sent.message_id]
            after = [fields for fields in subs if fields[0] == "SubAfter" and fields[2] == sent.message_id]
            assert [fields[6] for fields in before] == ["0", "1"] and before[0][3] == "group"
            assert [(fields[4], fields[6]) for fields in after] == [("false", "2"), ("true", "0")]
            assert [fields[4] for fields in before] == [fields[1] for fields in after]

    def scenario(fake: FakeCluster) -> None:
        fake.takes_back = False
        failed: list[bytes] = []
        calls: list[bytes] = []

        def listener(message: object) -> None:
            body = message.body  # type: ignore[attr-defined]
            calls.append(body)
            if body == b"body" and not failed:
                failed.append(body)
                raise ValueError("once")

        with PushConsumer(
            "group", fake.namesrv, listener, topic="orders", from_where="first", options=QUICK, client=TRACED
        ):
            until(lambda: len(calls) >= 5)

    def told(fake: FakeCluster) -> tuple[dict[str, list[str]], list[list[str]]]:
        found = [(item, fields) for item in fake.stored(TRACE_TOPIC) for fields in decode(item.body.decode())]
        for item, fields in found:
            place = {"Pub": 5, "SubBefore": 5, "SubAfter": 2}[fields[0]]
            assert fields[place] in item.properties["KEYS"].split()
            assert item.header.producerGroup == "_INNER_TRACE_PRODUCER"
        return (
            {fields[5]: fields for _, fields in found if fields[0] == "Pub"},
            [fields for _, fields in found if fields[0] != "Pub"],
        )

    asyncio.run(main())


@pytest.mark.parametrize("ext", [{}, {"MSG_REGION": "r", "TRACE_ON": "false"}])
def test_brokers_that_want_no_traces_get_none(ext: dict[str, str]) -> None:
    async def main() -> None:
        async with FakeCluster(topics={"orders": 1, TRACE_TOPIC: 1}) as fake:
            fake.ext = ext
            async with AsyncProducer("producers", fake.namesrv, client=TRACED) as producer:
                await producer.send(Message("orders", b"body"))
            assert not fake.stored(TRACE_TOPIC)

    asyncio.run(main())


def test_sending_does_not_wait_for_a_trace_topic_that_is_not_there() -> None:
    async def main() -> None:
        async with FakeCluster(topics={"orders": 1}) as fake:
            fake.default_queues = 0
            fake.ext = {"MSG_REGION": "r"}
            async with (
                AsyncProducer("producers", fake.namesrv, client=TRACED) as producer,
                asyncio.timeout(60),
            ):
                await asyncio.gather(*(producer.send(Message("orders", b"body")) for _ in range(50)))
            assert len(fake.stored("orders")) == 50

    asyncio.run(main())


def test_the_queue_is_bounded_and_messages_are_split() -> None:
    sent: list[Message] = []

    async def main() -> None:
        core = ClientCore(None, "127.0.0.1:1", ClientOptions())

        def send(message: Message, done: object) -> None:
            sent.append(message)
            queue = MessageQueue("t", "b", 0)
            done(SendResult(SendStatus.OK, "", "", queue, 0))  # type: ignore[operator]

        dispatcher = TraceDispatcher(core, TRACE_TOPIC, send)
        took = [dispatcher.append(replace(PUB, message_id=f"{n:032}")) for n in range(MAX_WAITING + 5)]
        assert took.count(False) == dispatcher.dropped == 5
        dispatcher.append(PUB)
        await dispatcher.flush()
        records = [fields for message in sent for fields in decode(message.body.decode())]
        assert [fields[5] for fields in records] == [f"{n:032}" for n in range(MAX_WAITING)]
        sent.clear()
        for number in range(40):
            dispatcher.append(replace(PUB, keys=f"{number}" + "x" * 3000, topic="t" * 2000))
        dispatcher.append(replace(PUB, keys=" ".join("y" * 100 for _ in range(3000)), message_id="large"))
        await dispatcher.flush()
        core.env.workers.close()

    asyncio.run(main())
    assert len(sent) > 5
    assert all(len(message.keys or "") <= 16_000 for message in sent)
    assert all(len(message.body) <= BATCH_CHARACTERS for message in sent[:-1])
    assert "large" in (sent[-1].keys or "").split()


def test_wrong_names_are_refused() -> None:
    for wrong in ({"trace_topic": "a b"}, {"namespace": "a%b"}, {"namespace": "a b"}):
        with pytest.raises(Exception, match="name"):
            ClientOptions(**wrong)  # type: ignore[arg-type]
    assert ProducerOptions().hooks == ()
