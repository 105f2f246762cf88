"""Ranges of queues: all of what is asked for, or what retention took is told or skipped, as was chosen."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from dledger.client import Message, MessageQueue, Producer
from dledger.client.bulk import patient_core
from dledger.client.bulk.range_puller import RangePuller
from dledger.client.bulk.ranges import OffsetsGone, RangeOptions
from dledger.client.errors import NoBroker
from dledger.formats.record import decode_record
from dledger.remoting.codes import RequestCode, ResponseCode
from dledger.remoting.commands import Request
from dledger.remoting.headers import PullMessageHeader
from dledger.remoting.server import Connection
from tests.client.fake_cluster import GROUP, FakeBroker, FakeCluster
from tests.client.test_sync import running

TOPIC = "orders"
MESSAGES = 10
FIRST, SECOND = (MessageQueue(TOPIC, GROUP, number) for number in range(2))


@pytest.fixture
def fake() -> Iterator[FakeCluster]:
    """Two queues of ten messages: `queue offset`, every second one with the tag A."""
    with running(FakeCluster(topics={TOPIC: 2})) as cluster:
        with Producer(group="producers", namesrv=cluster.namesrv) as producer:
            for queue in (FIRST, SECOND):
                for offset in range(MESSAGES):
                    message = Message(TOPIC, b"%d %d" % (queue.queue_id, offset), tags="AB"[offset % 2])
                    producer.send(message, queue)
        yield cluster


@contextmanager
def puller(fake: FakeCluster, *, skip: bool, batch_size: int = 3) -> Iterator[RangePuller]:
    """One that knows the topic's brokers."""
    options = RangeOptions("reports", batch_size=batch_size, timeout_s=60.0, skip_removed=skip)
    with RangePuller(fake.namesrv, options) as made:
        assert made.queues(TOPIC) == [FIRST, SECOND]
        yield made


def offsets(pulled: Iterator[tuple[MessageQueue, bytes]], into: list[tuple[int, int]]) -> None:
    """Queue ids and offsets of the messages, as they come."""
    for queue, data in pulled:
        while data:
            size = int.from_bytes(data[:4], "big")
            record = decode_record(data[:size])
            assert bytes(record.body) == b"%d %d" % (queue.queue_id, record.queue_offset)
            into.append((queue.queue_id, record.queue_offset))
            data = data[size:]


def take_after(fake: FakeCluster, pulls: int, lowest: int) -> None:
    """Retention takes the first queue's messages up to `lowest` when so many pulls of it were answered."""
    seen = [0]

    def script(broker: FakeBroker, connection: Connection, request: Request) -> bool:
        if request.code == RequestCode.PULL_MESSAGE and request.header(PullMessageHeader).queueId == 0:
            if seen[0] == pulls:
                fake.lowest[TOPIC, 0] = lowest
            seen[0] += 1
        return False

    fake.script = script


@pytest.mark.parametrize("skip", [False, True])
def test_exactly_what_is_asked_for_comes(fake: FakeCluster, skip: bool) -> None:
    with puller(fake, skip=skip) as reader:
        assert reader.bounds([FIRST, SECOND]) == {FIRST: (0, MESSAGES), SECOND: (0, MESSAGES)}
        found: list[tuple[int, int]] = []
        offsets(reader.pull([(FIRST, 2, 9), (SECOND, 0, 1)]), found)
        assert sorted(found) == [*((0, offset) for offset in range(2, 9)), (1, 0)]
        fake.lowest[TOPIC, 0] = 4
        assert reader.bounds([FIRST, SECOND]) == {FIRST: (4, MESSAGES), SECOND: (0, MESSAGES)}
        found.clear()
        offsets(reader.pull([(FIRST, 4, 6)]), found)
        assert found == [(0, 4), (0, 5)]


def test_messages_that_retention_took_are_told_with_topic_queue_and_offsets(fake: FakeCluster) -> None:
    fake.lowest[TOPIC, 0] = 4
    with puller(fake, skip=False) as reader:
        found: list[tuple[int, int]] = []
        with pytest.raises(OffsetsGone) as told:
            offsets(reader.pull([(FIRST, 1, MESSAGES)]), found)
    assert found == [], "nothing of what lies behind the gap"
    assert told.value.next_offset == 4
    assert str(told.value) == f"{FIRST}: offset 1 does not exist; the broker has 4 to 10"
    assert all(word in str(told.value) for word in ("'orders'", f"'{GROUP}'", "queue_id=0"))


def test_messages_that_retention_took_are_skipped_when_they_may_be(fake: FakeCluster) -> None:
    fake.lowest[TOPIC, 0] = 4
    with puller(fake, skip=True) as reader:
        found: list[tuple[int, int]] = []
        offsets(reader.pull([(FIRST, 1, 9), (SECOND, 0, 2)]), found)
        assert sorted(found) == [*((0, offset) for offset in range(4, 9)), (1, 0), (1, 1)]
        found.clear()
        offsets(reader.pull([(FIRST, 0, 4)]), found)
        assert found == [], "all of the range is gone, and nothing behind it was asked for"


def test_retention_in_the_middle_of_a_range_is_told_after_what_came(fake: FakeCluster) -> None:
    take_after(fake, pulls=2, lowest=8)
    with puller(fake, skip=False) as reader:
        found: list[tuple[int, int]] = []
        with pytest.raises(OffsetsGone, match=r"offset 6 does not exist; the broker has 8 to 10"):
            offsets(reader.pull([(FIRST, 0, MESSAGES)]), found)
    assert found == [(0, offset) for offset in range(6)]


def test_retention_in_the_middle_of_a_range_is_skipped(fake: FakeCluster) -> None:
    take_after(fake, pulls=2, lowest=8)
    with puller(fake, skip=True) as reader:
        found: list[tuple[int, int]] = []
        offsets(reader.pull([(FIRST, 0, MESSAGES)]), found)
    assert found == [(0, offset) for offset in (*range(6), 8, 9)]


@pytest.mark.parametrize("skip", [False, True])
@pytest.mark.parametrize("expression", ["*", "A"])
def test_messages_that_go_while_the_broker_reads_them(fake: FakeCluster, skip: bool, expression: str) -> None:
    """The answer is that of a filter that nothing passed, but for its remark."""
    removing = [True]

    def script(broker: FakeBroker, connection: Connection, request: Request) -> bool:
        if request.code != RequestCode.PULL_MESSAGE or not removing:
            return False
        removing.clear()
        fake.lowest[TOPIC, 0] = 6
        ext = {"suggestWhichBrokerId": "0", "nextBeginOffset": "3", "minOffset": "6", "maxOffset": "10"}
        code = ResponseCode.PULL_RETRY_IMMEDIATELY
        connection.respond(request, code, ext=ext, remark="MESSAGE_WAS_REMOVING")
        return True

    fake.script = script
    found: list[tuple[int, int]] = []
    with puller(fake, skip=skip) as reader:
        pulled = reader.pull([(FIRST, 0, MESSAGES)], expression)
        if skip:
            offsets(pulled, found)
        else:
            with pytest.raises(OffsetsGone, match=r"offset 0 does not exist; the broker has 6 to 10"):
                offsets(pulled, found)
    behind = [6, 8] if expression == "A" else [6, 7, 8, 9]
    assert found == ([(0, offset) for offset in behind] if skip else [])


def test_messages_that_no_filter_passes_are_not_taken_for_lost(fake: FakeCluster) -> None:
    with puller(fake, skip=False, batch_size=1) as reader:
        found: list[tuple[int, int]] = []
        offsets(reader.pull([(FIRST, 0, MESSAGES)], "A"), found)
    assert found == [(0, offset) for offset in range(0, MESSAGES, 2)]


@pytest.mark.parametrize("skip", [False, True])
def test_offsets_behind_the_end_are_never_skipped(fake: FakeCluster, skip: bool) -> None:
    """There is nothing to go on with: the queue is another one, or its broker lost what it had."""
    with puller(fake, skip=skip) as reader:
        found: list[tuple[int, int]] = []
        with pytest.raises(OffsetsGone, match=r"offset 12 does not exist; the broker has 0 to 10"):
            offsets(reader.pull([(FIRST, 12, 15)]), found)
    assert found == []


def test_a_read_without_a_leader_says_what_it_waits_for(
    fake: FakeCluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """On standard error, unless the program has set up logging: once, then now and then."""
    monkeypatch.setattr(patient_core, "SAID_AFTER_S", 0.2)
    with RangePuller(fake.namesrv, RangeOptions("reports", timeout_s=1.5)) as puller:
        queues = puller.queues(TOPIC)
        assert puller.bounds(queues)
        assert not caplog.messages
        fake.lead(-1)
        with pytest.raises(NoBroker):
            puller.bounds(queues)
    (said,) = [text for text in caplog.messages if text.startswith("no leader answers")]
    assert f"group={GROUP}" in said
    assert "given_up_after_s=1.5" in said


def test_a_leader_that_comes_back_is_told(
    fake: FakeCluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def lead_again(text: str) -> None:
        fake.lead(0)

    monkeypatch.setattr(patient_core, "SAID_AFTER_S", 0.2)
    with RangePuller(fake.namesrv, RangeOptions("reports", timeout_s=60.0)) as puller:
        queues = puller.queues(TOPIC)
        fake.lead(-1)
        with on_warning(lead_again):
            assert puller.bounds(queues)
    assert [text.split(":")[0].split(" group=")[0] for text in caplog.messages] == [
        "no leader answers",
        "the leader answers again",
    ]


@contextmanager
def on_warning(act: Callable[[str], None]) -> Iterator[None]:
    """Call a function with each warning of the client."""
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: act(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("rocketmq")
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
