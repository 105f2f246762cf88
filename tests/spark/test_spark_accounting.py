"""Produced = stored = consumed: every way in which it can fail is told, and nothing else is."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from dledger.formats.state import offsets_op
from tests.audit.store_builder import Log, segment_path, write_store
from tests.audit.test_audit_reports import read_page

pytestmark = pytest.mark.spark
CONSUMER = "billing"


class World:
    """A log, what its producer was told, where a consumer stands and what it worked on."""

    def __init__(self) -> None:
        self.log = Log()
        self.log.open_term(1)
        self.ends: dict[tuple[str, int], int] = {}
        self.acks: list[dict[str, Any]] = []
        for number in range(600):
            self.send(f"ID{number:04d}", number % 3)
        self.stands = {("g0", "orders", queue): 200 for queue in range(3)}
        self.worked = [ack["id"] for ack in self.acks]

    def send(self, unique_id: str, queue: int, *, told: bool = True, topic: str = "orders") -> None:
        """Store a message, and by default tell the producer."""
        properties = f"UNIQ_KEY\x01{unique_id}\x02" if unique_id else ""
        self.log.message(topic, b"x" * 40, queue_id=queue, properties=properties)
        offset = self.ends.get((topic, queue), 0)
        self.ends[topic, queue] = offset + 1
        if told:
            self.acks.append({"id": unique_id, "topic": topic, "queueId": queue, "queueOffset": offset})

    def run(self, spark: Any, where: Path, **settings: Any) -> Any:
        from dledger.spark.jobs.accounting import account
        from dledger.spark.jobs.log_source import LogSource

        store = where / "n0"
        if not store.exists():
            write_store(self.log, store)
        acks, worked = where / "acks.jsonl", where / "worked.jsonl"
        acks.write_text("".join(json.dumps(ack) + "\n" for ack in self.acks))
        worked.write_text("".join(json.dumps({"id": one}) + "\n" for one in self.worked))
        settings = {"offsets": {CONSUMER: self.stands}, "consumed": str(worked), **settings}
        source = settings.pop("source", None) or LogSource(stores=(str(store),))
        return account(spark, source, str(acks), **settings)


@pytest.mark.smoke
def test_what_adds_up_is_clean(spark: Any, tmp_path: Path) -> None:
    result = World().run(spark, tmp_path)
    assert (result.produced, result.stored, result.copies, result.told) == (600, 600, 0, 600)
    assert result.counts == {} and result.findings == [] and result.exit_code == 0
    (one,) = result.consumers
    assert (one.passed, one.waiting, one.worked, one.skipped, one.again) == (600, 0, 600, 0, 0)
    assert "account: clean produced=600 stored=600" in list(result.lines())
    assert "adds up" in " ".join(read_page(result.page("now")).shown)


def lost(world: World) -> None:
    """An acknowledged message whose place another one has."""
    world.acks[300]["id"] = "GONE"
    world.worked.remove("ID0300")


def duplicate(world: World) -> None:
    world.send("ID0100", 1, told=False)
    world.send("ID9000", 1)
    world.worked.append("ID9000")
    world.stands["g0", "orders", 1] += 2


def unexpected(world: World) -> None:
    world.send("NOBODY", 2, told=False)
    world.send("", 2, told=False)
    world.send("ID9001", 2)
    world.worked += ["NOBODY", "ID9001"]
    world.stands["g0", "orders", 2] += 3


def misplaced(world: World) -> None:
    world.acks[50]["queueOffset"] += 1


def unconsumed(world: World) -> None:
    world.stands["g0", "orders", 0] = 150
    del world.stands["g0", "orders", 1]


def skipped(world: World) -> None:
    world.worked.remove("ID0123")


def consumed_from_nowhere(world: World) -> None:
    world.worked.append("ELSEWHERE")


def beyond_the_end(world: World) -> None:
    world.acks.append({"id": "AHEAD", "topic": "orders", "queueId": 0, "queueOffset": 200})


def of_a_topic_without_messages(world: World) -> None:
    world.acks.append({"id": "AHEAD", "topic": "never", "queueId": 0, "queueOffset": 0})


CASES: list[tuple[Callable[[World], None], dict[str, int], int]] = [
    (lost, {"LOST": 1, "UNEXPECTED": 1}, 3),
    (duplicate, {"DUPLICATE": 1}, 1),
    (unexpected, {"UNEXPECTED": 2}, 1),
    (misplaced, {"MISPLACED": 1}, 2),
    (unconsumed, {"UNCONSUMED": 50 + 200}, 1),
    (skipped, {"SKIPPED": 1}, 3),
    (consumed_from_nowhere, {"UNKNOWN_CONSUMED": 1}, 2),
    (beyond_the_end, {"NOT_YET_KNOWN": 1}, 4),
    (of_a_topic_without_messages, {"NOT_YET_KNOWN": 1}, 4),
]


@pytest.mark.smoke
def test_faults_are_told_together(spark: Any, tmp_path: Path) -> None:
    world = World()
    together = [case for case in CASES if case[0] not in (of_a_topic_without_messages, beyond_the_end)]
    for fault, _, _ in together:
        fault(world)
    result = world.run(spark, tmp_path)
    assert set(result.counts) == {code for _, counts, _ in together for code in counts}
    assert result.exit_code == max(code for _, _, code in together)


@pytest.mark.slow
@pytest.mark.parametrize(("fault", "counts", "code"), CASES, ids=[case[0].__name__ for case in CASES])
def test_each_fault_is_told_and_nothing_else(
    fault: Callable[[World], None], counts: dict[str, int], code: int, spark: Any, tmp_path: Path
) -> None:
    world = World()
    fault(world)
    result = world.run(spark, tmp_path)
    assert result.counts == counts
    assert result.exit_code == code
    assert {found.code for found in result.findings} == set(counts)
    text, page = "\n".join(result.lines()), " ".join(read_page(result.page("now")).shown)
    columns, rows = result.records()
    assert all(len(row) == len(columns) for row in rows)
    for name in counts:
        assert name in text and name in page


def test_findings_say_where(spark: Any, tmp_path: Path) -> None:
    world = World()
    lost(world)
    duplicate(world)
    result = world.run(spark, tmp_path)
    by_code = {found.code: found for found in result.findings}
    assert by_code["LOST"][1:6] == ("orders", "g0", 0, 100, "GONE")
    assert by_code["DUPLICATE"].detail == "stored 2 times: g0 1/33, g0 1/200"
    assert result.copies == 1


def test_what_retention_deleted_is_not_lost(spark: Any, tmp_path: Path) -> None:
    """Also where another replica still has it, which is behind and therefore not read."""
    from dledger.spark.jobs.log_source import LogSource

    world = World()
    store = write_store(world.log, tmp_path / "n0")
    behind = write_store(world.log, tmp_path / "n1", "n1", committed=500)
    segment_path(store, 0).unlink()
    both = LogSource(stores=(str(store), str(behind)))
    result = world.run(spark, tmp_path, offsets=None, consumed="", source=both)
    begin = next(entry.index for entry in world.log.entries if entry.pos == world.log.segment_size)
    assert result.counts == {"RETIRED": begin - 1} and result.exit_code == 0
    assert result.stored == 600 - result.counts["RETIRED"]


def as_if_live(store: Path) -> Any:
    """A source that is taken for live brokers; its rows come from a directory."""
    from dledger.spark.jobs.log_source import LogSource

    @dataclass(frozen=True)
    class AsIfLive(LogSource):
        def read(self, spark: Any, **options: str) -> Any:
            return LogSource(stores=(str(store),), options=self.options).read(spark, **options)

    return AsIfLive(servers="127.0.0.1:1")


def test_what_brokers_cannot_prove_is_not_lost(spark: Any, tmp_path: Path) -> None:
    """Retention took the first messages of `orders`, nothing of `late`; the group `g9` is silent."""
    world = World()
    world.send("LATE", 0, topic="late")
    store = write_store(world.log, tmp_path / "n0")
    segment_path(store, 0).unlink()
    begin = next(entry.index for entry in world.log.entries if entry.pos == world.log.segment_size)
    for number, ack in enumerate(world.acks):
        ack["brokerName"] = "g0"
        if number < 20 or number >= 590:
            del ack["queueOffset"]
        if 10 <= number < 30 or number >= 580:
            del ack["queueId"]
    world.acks.append({"id": "GONE", "topic": "late", "brokerName": "g0"})
    world.acks.append({"id": "WHERE", "topic": "orders", "queueId": 0, "queueOffset": 7, "brokerName": "g9"})
    result = world.run(spark, tmp_path, offsets=None, consumed="", source=as_if_live(store))
    expected = {"MAYBE_RETIRED": 30, "RETIRED": begin - 1 - 30, "LOST": 1, "NOT_YET_KNOWN": 1}
    assert result.counts == expected
    ids = {found.code: found.id for found in result.findings}
    assert (ids["LOST"], ids["NOT_YET_KNOWN"]) == ("GONE", "WHERE")


def test_topics_that_were_not_chosen_are_not_lost(spark: Any, tmp_path: Path) -> None:
    from dledger.spark.jobs.errors import JobError
    from dledger.spark.jobs.log_source import LogSource

    source = LogSource(servers="127.0.0.1:1", options={"topics": "clicks"})
    with pytest.raises(JobError, match="acknowledgements of orders: add them to --topics"):
        World().run(spark, tmp_path, source=source)


def test_consumers_stand_where_the_replica_says_that_knows_most(spark: Any, tmp_path: Path) -> None:
    from dledger.spark.jobs.consumer_offsets import offsets_of_stores
    from dledger.spark.jobs.log_source import LogSource

    log = Log()
    log.open_term(1)
    for offset in (1, 2):
        log.message("orders", b"x")
        log.system(offsets_op(CONSUMER, [("orders", 0, offset)]))
    stores = [write_store(log, tmp_path / "n0"), write_store(log, tmp_path / "n1", "n1", committed=3)]
    source = LogSource(stores=tuple(map(str, stores)))
    assert offsets_of_stores(spark, source, (CONSUMER,)) == {CONSUMER: {("g0", "orders", 0): 2}}


def test_messages_before_and_after_are_somebody_elses_unless_strict(spark: Any, tmp_path: Path) -> None:
    world = World()
    world.acks = world.acks[100:-100]
    world.worked = [ack["id"] for ack in world.acks]
    assert world.run(spark, tmp_path).counts == {}
    assert world.run(spark, tmp_path, strict=True).counts == {"UNEXPECTED": 200}


def test_a_message_acknowledged_twice_counts_once(spark: Any, tmp_path: Path) -> None:
    world = World()
    world.acks += world.acks[:10]
    result = world.run(spark, tmp_path)
    assert (result.produced, result.told, result.counts) == (600, 610, {})


def test_files_are_read_in_the_spellings_of_other_clients(spark: Any, tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    from dledger.spark.jobs.accounting import account
    from dledger.spark.jobs.log_source import LogSource

    world = World()
    source = LogSource(stores=(str(write_store(world.log, tmp_path / "n0")),))
    java = [
        {"msgId": ack["id"], "topic": ack["topic"], "queueId": ack["queueId"],
         "queueOffset": ack["queueOffset"], "brokerName": "g0", "sendStatus": "SEND_OK"}
        for ack in world.acks
    ]  # fmt: skip
    (tmp_path / "java.json").write_text("".join(json.dumps(row) + "\n" for row in java))
    assert account(spark, source, str(tmp_path / "java.json")).counts == {}
    kafka = {
        "MessageId": [ack["id"] for ack in world.acks],
        "topic": [ack["topic"] for ack in world.acks],
        "partition": [ack["queueId"] for ack in world.acks],
        "offset": [ack["queueOffset"] for ack in world.acks],
    }
    pq.write_table(pa.table(kafka), tmp_path / "acks.parquet")
    assert account(spark, source, str(tmp_path / "acks.parquet")).counts == {}
    ids = [{"id": ack["id"], "topic": "orders"} for ack in world.acks]
    (tmp_path / "ids.json").write_text("".join(json.dumps(row) + "\n" for row in ids))
    assert account(spark, source, str(tmp_path / "ids.json")).counts == {}


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ('{"id": "a", "topic": "t"}\n{"id": "b", "to', 'not JSON: \'{"id": "b", "to\''),
        ('{"name": "a", "topic": "t"}\n', "no column id or uniqueid"),
        ('{"id": "a"}\n', "no column topic"),
        ('{"id": "a", "topic": "t"}\n{"id": "", "topic": "t"}\n', "a line without id"),
        ("", "no column id"),
    ],
)
def test_a_file_that_cannot_be_believed_is_refused(
    content: str, text: str, spark: Any, tmp_path: Path
) -> None:
    from dledger.spark.jobs.accounting import account
    from dledger.spark.jobs.errors import JobError
    from dledger.spark.jobs.log_source import LogSource

    source = LogSource(stores=(str(write_store(World().log, tmp_path / "n0")),))
    (tmp_path / "acks.jsonl").write_text(content)
    with pytest.raises(JobError, match=text):
        account(spark, source, str(tmp_path / "acks.jsonl"))
    with pytest.raises(JobError, match=r"nothing\.jsonl"):
        account(spark, source, str(tmp_path / "nothing.jsonl"))
