"""Ids of the sink's rows, without Spark: where they come from, and which repeats brokers recognise."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("pyarrow")

from pyspark.sql.types import StringType, StructField, StructType

from dledger.client import Message, MessageQueue, OutcomeUnknown, Producer, SendFailed, SendResult, SendStatus
from dledger.client.bulk.range_puller import RangePuller
from dledger.client.bulk.ranges import RangeOptions
from dledger.client.encoding import received_all
from dledger.client.errors import AlreadyStored
from dledger.client.producing.preset_ids import MessageWithId, unique_id_of
from dledger.local.cluster import LocalCluster
from dledger.spark import sink, sink_rows, source
from dledger.spark.option_values import BadOption
from dledger.spark.sink import QueueWriter
from dledger.spark.sink_brokers import check_brokers
from dledger.spark.sink_options import SinkOptions, check_columns
from dledger.spark.sink_rows import DEDUP_ID, MAX_ID_BYTES, IdColumn, Outgoing, SinkError, outgoing
from tests.client.fake_cluster import FakeCluster
from tests.spark.groups_kit import running_group

SERVERS = "127.0.0.1:9876"
OURS = IdColumn("id", ours=True)
THEIRS = IdColumn("number", ours=False)
LIFE = "0a1b2c.17"
QUEUES = 4


def ours(number: int) -> str:
    return f"Orders:{number % 3}:{LIFE}:{number}"


# --- columns and options ------------------------------------------------------------------------------


def schema(*names: str) -> StructType:
    return StructType([StructField(name, StringType()) for name in names])


def made(options: dict[str, str], *names: str) -> SinkOptions:
    return source._sink({"servers": SERVERS, "topic": "T", **options}, schema(*names))[0]


def test_the_column_id_of_our_source_names_the_rows() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert made({}, "value", "id", "life").ids == OURS
        assert made({"dedupId": "true"}, "value", "ID").ids == OURS
        assert made({"idColumn": "Number"}, "value", "number").ids == THEIRS
        assert made({"idColumn": "key"}, "value", "key").ids == IdColumn("key", ours=False)
        assert made({"idColumn": "id"}, "value", "id").ids == IdColumn("id", ours=False)
        assert made({"dedupId": "false"}, "value", "id").ids is None


def test_without_ids_the_sink_says_that_delivery_is_at_least_once() -> None:
    with pytest.warns(UserWarning, match=r"no ids, so .* at least once.*includeId=true.*idColumn") as said:
        assert made({}, "value", "life").ids is None
    assert len(said) == 1


@pytest.mark.parametrize(
    ("options", "columns", "text"),
    [
        ({"dedupId": "true"}, ("value",), "option dedupId: the rows have no ids.*includeId=true.*idColumn"),
        ({"exactlyOnce": "true"}, ("value",), "option exactlyOnce: the rows have no ids.*includeId=true"),
        ({"idColumn": "nubmer"}, ("value", "key"), "option idColumn: there is no column 'nubmer'"),
        ({"idColumn": " "}, ("value",), "option idColumn is empty"),
        ({"idColumn": "id", "dedupId": "false"}, ("value", "id"), "idColumn and dedupId=false contradict"),
        ({"exactlyOnce": "true", "dedupId": "false"}, ("value", "id"), "exactlyOnce and dedupId=false"),
        ({"idcolum": "id"}, ("value", "id"), "did you mean 'idColumn'"),
        ({}, ("value", "number"), "unknown column 'number'"),
    ],
)
def test_ids_that_are_not_there_are_refused(
    options: dict[str, str], columns: Sequence[str], text: str
) -> None:
    with pytest.raises(BadOption, match=text):
        made(options, *columns)


def test_a_column_with_ids_is_text() -> None:
    with pytest.raises(BadOption, match="column Number is bigint: cast it to string"):
        check_columns([("value", "string"), ("Number", "bigint")], "T", "number")


# --- rows ---------------------------------------------------------------------------------------------


def rows(names: Sequence[str | None], ids: IdColumn | None = THEIRS, body: str = "v") -> list[Outgoing]:
    column = ids.name if ids else "life"
    return list(outgoing(((body, name) for name in names), ("value", column), "T", ids))


def test_a_row_has_the_same_id_wherever_it_is_in_its_task() -> None:
    names = [ours(number) for number in range(50)]
    shuffled = random.Random(7).sample(names, len(names))
    first, second = rows(names, OURS), rows(shuffled, OURS)
    assert [row.ident for row in second] == shuffled
    assert all((row.message.properties or {})[DEDUP_ID] == row.ident for row in [*first, *second])
    assert rows(["x"], None)[0].ident is None


@pytest.mark.parametrize(
    ("name", "ids", "text"),
    [
        (None, THEIRS, "row 1 of the task: column number is null.*dedupId to false"),
        ("", THEIRS, "row 1 of the task: column number is empty"),
        (None, OURS, "row 1 of the task: column id is null"),
        ("ü" * (MAX_ID_BYTES // 2 + 1), THEIRS, r"row 1 .* has 1026 bytes; the limit is 1024 \(MAX_ID_BYTES"),
        ("a\x01b", THEIRS, r"row 1 .* contains \\x01 or \\x02"),
        ("order-7", OURS, "row 1 .*'order-7' does not have the form.*set the option idColumn to id"),
        ("T:0:life:5", OURS, "does not have the form"),
    ],
)
def test_an_id_that_cannot_be_one_is_refused_with_its_row(name: str | None, ids: IdColumn, text: str) -> None:
    with pytest.raises(SinkError, match=text):
        rows([ours(0), name], ids)
    assert len(rows(["ü" * (MAX_ID_BYTES // 2)])) == 1


def test_two_rows_of_a_task_with_one_id_are_both_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SinkError, match="rows 1 and 2 of the task have the same id 'b' and the same body"):
        rows(["a", "b", "b"])
    values = [("1", "a", "T"), ("2", "a", "U"), ("3", "a", "T")]
    with pytest.raises(SinkError, match="rows 0 and 2 of the task have the same id 'a' and different bodies"):
        list(outgoing(values, ("value", "number", "topic"), "", THEIRS))
    monkeypatch.setattr(sink_rows, "REMEMBERED_IDS", 2)
    assert len(rows(["a", "b", "c", "a"])) == 4, "the oldest is forgotten"


# --- messages -----------------------------------------------------------------------------------------


class Recorder:
    """Two queues. Takes messages, and fails as often as `fails` says."""

    def __init__(self, fails: int = 0) -> None:
        self.sent: list[tuple[int, list[MessageWithId]]] = []
        self.to: list[tuple[MessageQueue, list[MessageWithId]]] = []
        self.alone = 0
        self._fails = fails

    def queues(self, topic: str, *, refresh: bool = False) -> list[MessageQueue]:
        return [MessageQueue(topic, "g", number) for number in (0, 1)]

    def has_route(self, topic: str) -> bool:
        return True

    def begin(self, message: Message, queue: MessageQueue) -> Callable[[], SendResult]:
        self.alone += 1
        return self.begin_batch([message], queue)

    def begin_batch(self, messages: list[Message], queue: MessageQueue) -> Callable[[], SendResult]:
        named = [message for message in messages if isinstance(message, MessageWithId)]
        assert len(named) == len(messages)
        self.sent.append((queue.queue_id, named))
        self.to.append((queue, named))
        self._fails -= 1
        failing = self._fails >= 0

        def answer() -> SendResult:
            if failing:
                raise OutcomeUnknown("?")
            keys = sum("__IDEMPOTENT" in (message.properties or {}) for message in messages)
            return SendResult(SendStatus.OK, "", "", queue, 0, keys_looked_up=keys)

        return answer


def write(producer: Any, sent: Iterable[Outgoing], attempt: str = "", **options: Any) -> int:
    return QueueWriter(producer, SinkOptions("", "T", **options), 0, attempt).write(sent)


def test_every_attempt_of_a_row_with_an_id_has_one_unique_id_and_is_marked() -> None:
    names = [ours(number) for number in range(9)]
    seen = []
    for attempt in ("one", "two"):
        names.reverse()
        producer = Recorder()
        write(producer, rows(names, OURS), attempt)
        messages = [message for _, batch in producer.sent for message in batch]
        assert all(message.again for message in messages)
        seen.append({(message.properties or {})[DEDUP_ID]: message.unique_id for message in messages})
    assert seen[0] == seen[1] == {name: unique_id_of(name) for name in names}


def test_a_row_without_an_id_is_marked_only_when_its_own_task_sends_it_again() -> None:
    producer = Recorder(fails=1)
    write(producer, rows(["x", "y"], None), "one")
    first, again = (batch for _, batch in producer.sent)
    assert [message.unique_id for message in first] == [message.unique_id for message in again]
    assert {message.again for message in first} == {False} and {message.again for message in again} == {True}
    other = Recorder()
    write(other, rows(["x", "y"], None), "two")
    assert not {m.unique_id for m in other.sent[0][1]} & {m.unique_id for m in first}


def test_exactly_once_sends_keys_to_the_queue_that_the_id_says() -> None:
    names = [ours(number) for number in range(40)]
    found = []
    for _ in range(2):
        names = random.Random(3).sample(names, len(names))
        producer = Recorder()
        write(producer, rows(names, OURS), exactly_once=True)
        assert len(producer.sent) == 2
        sent = [(queue, message.properties or {}) for queue, batch in producer.sent for message in batch]
        assert {properties["__IDEMPOTENT"] for _, properties in sent} == {"1"}
        found.append({properties[DEDUP_ID]: queue for queue, properties in sent})
    assert found[0] == found[1] and set(found[0].values()) == {0, 1}
    plain = Recorder()
    write(plain, rows(names, OURS))
    assert not any("__IDEMPOTENT" in (one.properties or {}) for _, batch in plain.sent for one in batch)
    for topic in ("%RETRY%G", "%DLQ%G"):
        kept = [Outgoing(0, Message(topic, b"x"), None, "a")]
        with pytest.raises(SinkError, match=f"row 0 .* messages of {topic} again.*remove the option exactly"):
            write(Recorder(), kept, exactly_once=True)


def test_a_row_that_is_alone_is_a_batch_too() -> None:
    """A message that is sent alone may be compressed: then its body is another one than in a batch."""
    producer = Recorder()
    write(producer, rows([ours(1)], OURS, "x" * 9000), exactly_once=True)
    assert producer.alone == 0 and len(producer.sent) == 1
    write(producer, rows([ours(1)], OURS, "x" * 9000))
    assert producer.alone == 1


class Knowing(Recorder):
    """A broker that has some rows already, by their ids; it stores the others."""

    def __init__(self, *known: str, fails: int = 0, refuses: str = "") -> None:
        """`refuses`: the id of a row that it has with another body."""
        super().__init__(fails)
        self.known = list(known)
        self._refuses = refuses

    def begin_batch(self, messages: list[Message], queue: MessageQueue) -> Callable[[], SendResult]:
        ids = [(message.properties or {})[DEDUP_ID] for message in messages]
        stored = frozenset(number for number, one in enumerate(ids) if one in self.known)
        if not stored and self._refuses not in ids:
            self.known += ids  # also if the answer is lost
        answer = super().begin_batch(messages, queue)

        def answers() -> SendResult:
            result = answer()
            if self._refuses in ids:
                name = unique_id_of(self._refuses)
                raise SendFailed(f"the message with the id {name} is stored with another body: queue 1", 604)
            if stored:
                raise AlreadyStored("some", stored)
            return result

        return answers


def test_rows_that_are_stored_already_are_not_sent_again() -> None:
    names = [ours(number) for number in range(40)]
    producer = Knowing(*names[::3])
    assert write(producer, rows(names, OURS), exactly_once=True) == 40, "each of them is written"
    assert sorted(producer.known) == sorted(names)
    sent = [(message.properties or {})[DEDUP_ID] for _, batch in producer.sent[2:] for message in batch]
    assert sorted(sent) == sorted(set(names) - set(names[::3])), "the rest, once for each queue"
    assert write(Knowing(*names), rows(names, OURS), exactly_once=True) == 40
    assert write(producer, rows(names[:1], OURS), exactly_once=True) == 1


def test_a_batch_whose_answer_is_lost_is_written_when_the_broker_says_that_it_is_stored() -> None:
    names = [ours(number) for number in range(40)]
    producer = Knowing(fails=2)
    assert write(producer, rows(names, OURS), exactly_once=True) == 40
    assert sorted(producer.known) == sorted(names) and len(producer.sent) == 4


def test_an_answer_that_names_no_row_ends_the_task() -> None:
    class Vague(Recorder):
        def begin_batch(self, messages: list[Message], queue: MessageQueue) -> Callable[[], SendResult]:
            def answer() -> SendResult:
                raise AlreadyStored("?", frozenset({40}))

            return answer

    with pytest.raises(SinkError, match="the broker does not say which rows are stored"):
        write(Vague(), rows([ours(1)], OURS), exactly_once=True)


@pytest.mark.parametrize("looked_up", [0, 1])
def test_an_older_leader_that_stores_keyed_rows_ends_the_task(looked_up: int) -> None:
    """It looks at the first id of a batch, and says nothing about the others."""

    class Older(Recorder):
        def begin_batch(self, messages: list[Message], queue: MessageQueue) -> Callable[[], SendResult]:
            answer = super().begin_batch(messages, queue)
            return lambda: answer()._replace(keys_looked_up=looked_up)

    sent = [one._replace(partition=0) for one in rows([ours(0), ours(1)], OURS)]
    with pytest.raises(SinkError, match=r"rows 0 to 1 .*did not look up the ids of all rows.* older version"):
        write(Older(), sent, exactly_once=True)
    assert write(Older(), sent) == 2, "without exactlyOnce nothing is looked up"


class Joining(Recorder):
    """A second broker group is registered only after some looks."""

    def __init__(self, looks: int) -> None:
        super().__init__()
        self.looks = looks

    def queues(self, topic: str, *, refresh: bool = False) -> list[MessageQueue]:
        self.looks -= refresh
        other = [MessageQueue(topic, "h", number) for number in (0, 1)] if self.looks <= 0 else []
        return super().queues(topic) + other


def test_the_queues_are_those_that_the_driver_saw(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sink, "LOOK_AGAIN_S", 0.01)
    names = [ours(number) for number in range(40)]

    def places(producer: Recorder) -> dict[str, MessageQueue]:
        found: dict[str, MessageQueue] = {}
        for queue, messages in producer.to:
            found |= {(message.properties or {})[DEDUP_ID]: queue for message in messages}
        return found

    whole = Joining(0)
    fixed = tuple(whole.queues("T"))
    write(whole, rows(names, OURS), exactly_once=True, queues=fixed)
    late = Joining(3)
    with pytest.warns(UserWarning, match=r"rows 1 to 37 .* broker group h is not registered: waiting"):
        assert write(late, rows(names, OURS), exactly_once=True, queues=fixed) == 40
    assert places(late) == places(whole) and {queue.broker_name for queue, _ in late.to} == {"g", "h"}
    monkeypatch.setattr(sink, "GROUP_WAIT_S", 0.05)
    with (
        pytest.warns(UserWarning, match="broker group h"),
        pytest.raises(SinkError, match=r"group h has not been registered for 0\.05 s, .* start its brokers"),
    ):
        write(Joining(10**9), rows(names, OURS), exactly_once=True, queues=fixed)


def test_the_same_id_with_another_body_is_an_error_that_names_both() -> None:
    name = ours(1)
    with pytest.raises(SinkError, match=f"row 1 with the id '{name}'.*stored with another body: queue 1"):
        write(Knowing(refuses=name), rows([ours(0), name], OURS), exactly_once=True)


def test_a_unique_id_has_the_form_of_a_clients_own() -> None:
    first, second = unique_id_of("a"), unique_id_of("b")
    assert first == unique_id_of("a") != second
    assert len(first) == 32 and first == first.upper() and bytes.fromhex(first)
    assert first[20:28] == "00000000", "the time, from which tools begin to search"


# --- brokers ------------------------------------------------------------------------------------------


def checked(change: Callable[[FakeCluster], Any], topic: str = "T") -> list[str]:
    """Ask the brokers of a fake cluster, and return the warnings."""

    async def test() -> list[str]:
        async with FakeCluster(topics={"T": 4}) as cluster:
            await change(cluster)
            options = SinkOptions(cluster.namesrv, topic, exactly_once=True)
            with warnings.catch_warnings(record=True) as said:
                warnings.simplefilter("always")
                await asyncio.to_thread(check_brokers, options)
            return [str(one.message) for one in said]

    return asyncio.run(test())


@pytest.mark.parametrize("topic", ["T", "", "Created"], ids=["topic", "by a column", "not there yet"])
def test_brokers_that_keep_an_index_are_enough(topic: str) -> None:
    async def nothing(_: FakeCluster) -> None: ...

    assert checked(nothing, topic) == []


@pytest.mark.parametrize("leader", [True, False])
def test_exactly_once_is_refused_if_one_broker_keeps_no_index(leader: bool) -> None:
    address = ""

    async def without(cluster: FakeCluster) -> None:
        nonlocal address
        broker = cluster.brokers[cluster.leader if leader else cluster.leader - 1]
        broker.index, address = False, broker.address

    with pytest.raises(BadOption, match=r"option exactlyOnce: .*messageIndexEnable=false") as refused:
        checked(without)
    assert address in str(refused.value) and str(refused.value).count("127.0.0.1") == 1


def test_exactly_once_is_refused_by_brokers_of_others() -> None:
    async def theirs(cluster: FakeCluster) -> None:
        cluster.ours = False

    with pytest.raises(BadOption, match="does not belong to this project"):
        checked(theirs)


def test_a_broker_that_does_not_say_it_is_named_once() -> None:
    addresses: list[str] = []

    async def silent(cluster: FakeCluster) -> None:
        for broker in cluster.brokers[:2]:
            broker.shows_settings = False
            addresses.append(broker.address)

    (said,) = checked(silent)
    assert "did not say whether messageIndexEnable is on" in said
    assert all(address in said for address in addresses)


# --- a real group -------------------------------------------------------------------------------------

KILLED = """
import sys
from dledger.client import Producer
from tests.spark.test_sink_ids import OURS, ours, rows, write

servers, count, alone = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "True"

def endless():
    for row in rows([ours(number) for number in range(count)], OURS):
        yield row
        if row.row == count // 2:
            print("half", flush=True)

with Producer("PG_killed", servers) as producer:
    write(producer, endless(), exactly_once=alone, max_batch_bytes=20_000)
    sys.stdin.read()
"""
"""A task that is killed when it has handed over half of its rows."""


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with running_group(tmp_path_factory.mktemp("ids") / "group") as found:
        yield found


def stored(group: LocalCluster, topic: str) -> list[str]:
    """The ids of the rows that are stored."""
    found = []
    with RangePuller(group.namesrv_addr, RangeOptions("CG_ids")) as puller:
        bounds = puller.bounds(puller.queues(topic))
        for queue, records in puller.pull([(queue, *ends) for queue, ends in bounds.items()]):
            for message in received_all(records, queue.broker_name):
                found.append(message.properties[DEDUP_ID])
    return found


def to(topic: str, sent: list[Outgoing]) -> list[Outgoing]:
    for row in sent:
        row.message.topic = topic
    return sent


@pytest.mark.slow
def test_repeats_in_the_same_order_are_stored_once_and_in_another_order_only_by_their_keys(
    group: LocalCluster,
) -> None:
    names = [ours(number) for number in range(500)]
    shuffled = random.Random(1).sample(names, len(names))
    group.create_topic("Batches", QUEUES)
    group.create_topic("Keys", QUEUES)
    check_brokers(SinkOptions(group.namesrv_addr, "Batches", exactly_once=True))
    with Producer("PG_ids", group.namesrv_addr) as producer:
        for _ in range(2):
            write(producer, to("Batches", rows(names, OURS)), max_batch_bytes=20_000)
        assert sorted(stored(group, "Batches")) == sorted(names)
        for order in (names[100:300], names, shuffled):
            write(producer, to("Keys", rows(order, OURS)), exactly_once=True, max_batch_bytes=20_000)
            assert sorted(stored(group, "Keys")) == sorted(order), "once, in whatever batches"
        other = rows([ours(0), ours(501), ours(400)], OURS, "another body")
        with pytest.raises(SinkError, match=f"with the id '{ours(0)}'.*another body: topic Keys, queue"):
            write(producer, to("Keys", other[:1]), exactly_once=True)
        with pytest.raises(SinkError, match=r"with the id .*another body: topic Keys, queue"):
            write(producer, to("Keys", other), exactly_once=True)
        assert set(stored(group, "Keys")) - set(names) <= {ours(501)}
        write(producer, to("Batches", rows(shuffled, OURS)), exactly_once=True)
        assert sorted(stored(group, "Batches")) == sorted(names), "also what came in batches"
        write(producer, to("Batches", rows(shuffled, OURS)), max_batch_bytes=20_000)
        assert len(stored(group, "Batches")) > len(names), "which the pages say"


@pytest.mark.slow
@pytest.mark.parametrize("alone", [True, False])
def test_rows_of_a_killed_process_are_stored_once(group: LocalCluster, alone: bool) -> None:
    topic, count = f"Killed{alone}", 2000
    group.create_topic(topic, QUEUES)
    program = KILLED.replace("rows([", f'to("{topic}", rows([').replace("], OURS):", "], OURS)):")
    program = program.replace("rows, write", "rows, to, write")
    words = [sys.executable, "-c", program, group.namesrv_addr, str(count), str(alone)]
    root = Path(__file__).parents[2]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=root) as task:
        assert task.stdout is not None and task.stdout.readline() == b"half\n"
        task.kill()
    names = [ours(number) for number in range(count)]
    if alone:
        names = random.Random(2).sample(names, count)
    assert 0 < len(stored(group, topic)) < count
    with Producer("PG_ids", group.namesrv_addr) as producer:
        write(producer, to(topic, rows(names, OURS)), exactly_once=alone, max_batch_bytes=20_000)
    assert sorted(stored(group, topic)) == sorted(names)


@pytest.mark.slow
def test_a_group_without_an_index_is_refused(tmp_path: Path) -> None:
    with running_group(tmp_path / "group", messageIndexEnable="false") as group:
        group.create_topic("T", QUEUES)
        with pytest.raises(BadOption, match="messageIndexEnable=false"):
            check_brokers(SinkOptions(group.namesrv_addr, "T", exactly_once=True))
