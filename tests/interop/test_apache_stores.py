"""Stores that Apache RocketMQ's brokers wrote in DLedger mode (D8): read whole and right, damage is found.

Three brokers of 4.9.5 take messages of our producer, with a kill -9 of the master in between. Of 5.4.0
only a small recorded group is read (tests/audit/test_audit_recorded.py): at this size it answered SYSTEM_BUSY
after the kill.
"""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from dledger.audit.findings import Severity
from dledger.audit.store_directory import open_stores
from dledger.client import Message, Producer, SendResult
from dledger.client.errors import ClientError
from dledger.formats.entry import HEADER_SIZE, INDEX_UNIT, INDEX_UNIT_SIZE
from dledger.formats.record import FIXED_SIZE
from dledger.formats.store_files import segment_name
from dledger.local.cluster import find_base_port, wait_for
from dledger.runtime.files import OsFiles
from tests.audit.engine import audit
from tests.interop.apache import QUEUES, SEGMENT_SIZE, START_LIMIT_S, ApacheGroup
from tests.interop.conftest import rocketmq_libraries

pytestmark = pytest.mark.interop

TOPICS = ("orders", "payments")
DELAYED = "SCHEDULE_TOPIC_XXXX"
ROUNDS = 3
"""The master is killed in the second."""
BATCH = 16


class Plan(NamedTuple):
    """What is sent: single messages and batches a round, delayed ones in the end; bytes of a large one."""

    singles: int = 700
    batches: int = 12
    delayed: int = 10
    large: int = 50_000


@dataclass
class Produced:
    """What three brokers hold after they ended. `acked`: by topic, queue and queue offset."""

    stores: list[Path]
    acked: dict[tuple[str, int, int], Message] = field(default_factory=dict)
    unknown: list[Message] = field(default_factory=list)
    """Sends that failed: stored or not."""
    delayed: int = 0
    killed: str = ""

    def known(self) -> set[tuple[str, str]]:
        """Findings that are true of what Apache's broker does: started after a kill it removes its newest
        IndexFile and goes on behind its ConsumeQueues, so the keys of that file's messages are lost there."""
        return {("KEY_MISSING", self.killed)}


@pytest.fixture(scope="module", params=[4], ids=["4.9"])
def produced(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Produced]:
    libraries = rocketmq_libraries(request.param)
    directory = tmp_path_factory.mktemp(f"apache{request.param}")
    group = ApacheGroup(directory, libraries, find_base_port(start=24000))
    began = time.monotonic()
    try:
        group.start()
        result = Produced(group.stores)
        produce(group, result, Plan())
        group.wait_caught_up(len(result.acked) + 2 * result.delayed)
    finally:
        group.stop()
    acked, unknown = len(result.acked), len(result.unknown)
    print(
        f"\nRocketMQ {request.param}: {acked} acknowledged, {unknown} not, {time.monotonic() - began:.0f} s"
    )
    yield result
    shutil.rmtree(directory)


def produce(group: ApacheGroup, result: Produced, plan: Plan) -> None:
    """Fill a group that runs; all nodes run again in the end."""
    chance = random.Random(1)
    number = 0
    with Producer("interop", group.namesrv_addr) as producer:
        for topic in TOPICS:
            wait_for(
                partial(try_to_create, producer, topic), START_LIMIT_S, lambda: "no topic could be created"
            )
        for turn in range(ROUNDS):
            sent: list[tuple[Message, Future[SendResult | ClientError]]] = []
            for _ in range(plan.singles):
                sent.append(send(producer, message(number, chance.randbytes(plan.large))))
                number += 1
                if turn == 1 and number % plan.singles == plan.singles // 2:
                    killed = result.killed = group.kill_leader()
            note(sent, result)
            if turn == 1:
                group.wait_master(but=killed)
            for batch in range(plan.batches):
                messages = [
                    Message(
                        "payments", b"%d %d %d" % (turn, batch, at), tags="batch", keys=f"b{turn}-{batch}"
                    )
                    for at in range(BATCH)
                ]
                try:
                    first = producer.send_batch(messages)
                except ClientError:
                    result.unknown += messages
                    continue
                for at, item in enumerate(messages):
                    result.acked["payments", first.queue.queue_id, first.queue_offset + at] = item
        group.start_node(killed)
        for at in range(plan.delayed):
            producer.send(Message("orders", b"later %d" % at, tags="late", delay_level=1))
        result.delayed = plan.delayed


def try_to_create(producer: Producer, topic: str) -> bool | None:
    """True when it is done; a master that has just been elected may refuse."""
    try:
        producer.create_topic(topic, queues=QUEUES)
    except ClientError:
        return None
    return True


def message(number: int, noise: bytes) -> Message:
    """Large ones, compressed ones, small ones; with and without tag, keys, properties."""
    body = b"message %d " % number + b"x" * (number * 37 % 400)
    if number % 100 == 7:
        body = noise
    elif number % 50 == 3:
        body = b"compressible %d " % number * 2000
    return Message(
        TOPICS[number % 3 == 0],
        body,
        tags=f"tag{number % 5}" if number % 4 else None,
        keys=[f"key-{number}", f"shared-{number % 7}"] if number % 3 != 1 else None,
        properties={"own": f"grün {number}"},
    )


def send(producer: Producer, item: Message) -> tuple[Message, Future[SendResult | ClientError]]:
    done: Future[SendResult | ClientError] = Future()
    producer.send_async(item, done.set_result)
    return item, done


def note(sent: list[tuple[Message, Future[SendResult | ClientError]]], result: Produced) -> None:
    for item, done in sent:
        answer = done.result(60)
        if isinstance(answer, SendResult):
            result.acked[item.topic, answer.queue.queue_id, answer.queue_offset] = item
        else:
            result.unknown.append(item)


# --- reading ----------------------------------------------------------------------------------------


def command(*arguments: object, codes: tuple[int, ...] = (0,)) -> str:
    """Output of one of our commands; it must end with one of these exit codes."""
    done = subprocess.run(
        [sys.executable, "-m", *map(str, arguments)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode in codes, done.stdout + done.stderr
    return done.stdout


def found_by(report: Any) -> set[tuple[str, str]]:
    return {(item["code"], item["replica"]) for item in report["findings"]}


def test_the_audit_reads_all_and_finds_nothing(produced: Produced) -> None:
    for store in produced.stores:
        codes = (0, 1) if store.name == produced.killed else (0,)
        alone = json.loads(command("dledger", "audit", "verify", "--json", store, codes=codes))
        assert found_by(alone) <= produced.known(), alone["findings"]
    report = json.loads(command("dledger", "audit", "compare", "--json", *produced.stores, codes=(0, 1)))
    assert found_by(report) <= produced.known(), report["findings"]
    replicas = open_stores(OsFiles(), [str(store) for store in produced.stores])
    assert {bool(found.key_root) and bool(found.queue_root) for found in replicas} == {True}
    assert all(len(found.segments) > 2 for found in replicas)
    last = replicas[0].committed
    assert last >= len(produced.acked) + 2 * produced.delayed - 1
    assert [replica["entries"] for replica in report["replicas"]] == [last + 1] * 3
    assert report["compared_up_to"] == last


def test_dump_lists_every_entry(produced: Produced) -> None:
    store = produced.stores[0]
    lines = [json.loads(line) for line in command("dledger", "dump", "--json", store).splitlines()]
    last = open_stores(OsFiles(), [str(store)])[0].committed
    assert [line["index"] for line in lines] == list(range(last + 1))
    assert len({line["term"] for line in lines}) > 1
    queues = {(line["topic"], *map(int, line["queue"].split("/"))) for line in lines if line["topic"]}
    assert queues.issuperset(produced.acked)


def test_spark_reads_what_was_acknowledged(produced: Produced, spark: Any) -> None:
    from dledger.spark.audit_job import audit_stores

    paths = [str(store) for store in produced.stores]
    distributed = audit_stores(spark, OsFiles(), paths)
    assert distributed.as_json() == audit(produced.stores).as_json()
    rows = spark.read.format("dledger").options(path=",".join(paths), includeHeaders="true").load().collect()
    found = {(row.topic, row.partition, row.offset): row for row in rows}
    assert len(found) == len(rows)
    for place, sent in produced.acked.items():
        row = found.pop(place)
        assert bytes(row.value) == sent.body
        assert (row.tags, row.key) == (sent.tags, sent.keys)
        assert (row.headers or {}).get("own") == (sent.properties or {}).get("own")
    rest = sorted(bytes(row.value) for row in found.values() if bytes(row.value).startswith(b"later "))
    assert rest == sorted(b"later %d" % at for at in range(produced.delayed))
    # Nothing else, but sends of which nobody knows how they ended, and what was sent again meanwhile.
    known = {sent.body for sent in [*produced.acked.values(), *produced.unknown]}
    assert {bytes(row.value) for row in found.values() if row.tags != "late"} <= known


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    pytest.importorskip("pyspark")
    from dledger.spark.session import session

    made = session("interop", "local[2,4]", short=True)
    yield made
    made.stop()


# --- damage -----------------------------------------------------------------------------------------


def worse(stores: list[Path]) -> set[tuple[str, str]]:
    return {(found.code, found.replica) for found in audit(stores).findings if found.severity > Severity.INFO}


def unit_of(store: Path, index: int) -> tuple[Path, int, int]:
    """Where an entry lies: file, offset in it, size."""
    path = next(store.glob("dledger-*/index")) / segment_name(0)
    with path.open("rb") as file:
        file.seek(index * INDEX_UNIT_SIZE)
        _, pos, size, _, _ = INDEX_UNIT.unpack(file.read(INDEX_UNIT_SIZE))
    data = next(store.glob("dledger-*/data"))
    return data / segment_name(pos // SEGMENT_SIZE * SEGMENT_SIZE), pos % SEGMENT_SIZE, size


def change(path: Path, at: int, bits: int = 0x10) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        (value,) = file.read(1)
        file.seek(at)
        file.write(bytes([value ^ bits]))


def flipped_body(stores: list[Path]) -> set[tuple[str, str]]:
    path, at, _ = unit_of(stores[1], 500)
    change(path, at + HEADER_SIZE + FIXED_SIZE)
    return {("BIT_ROT", "n1")}


def flipped_header(stores: list[Path]) -> set[tuple[str, str]]:
    path, at, _ = unit_of(stores[2], 900)
    change(path, at + 15)  # of the index
    return {("BIT_ROT", "n2")}


def rewritten_entry(stores: list[Path]) -> set[tuple[str, str]]:
    """A flag of the message, which no CRC of Apache's covers: only the other replicas can tell."""
    path, at, _ = unit_of(stores[0], 700)
    change(path, at + HEADER_SIZE + 19)
    return {("DIVERGENT_COMMITTED", "n0")}


def deleted_segment(stores: list[Path]) -> set[tuple[str, str]]:
    sorted(stores[2].glob("dledger-*/data/*"))[1].unlink()
    return {("MISSING_SEGMENT", "n2")}


def queue_unit(stores: list[Path]) -> set[tuple[str, str]]:
    change(stores[0] / "consumequeue" / "orders" / "1" / segment_name(0), 20 * 20 + 7)
    return {("QUEUE_MISMATCH", "n0")}


def key_unit(stores: list[Path]) -> set[tuple[str, str]]:
    path = min(path for path in (stores[1] / "index").iterdir())
    change(path, 40 + 4 * 500 + 20 * 300 + 2)  # of the hash of unit 300
    return {("KEY_MISSING", "n1"), ("KEY_DANGLING", "n1"), ("KEY_INDEX", "n1")}


def key_link(stores: list[Path]) -> set[tuple[str, str]]:
    path = min(path for path in (stores[1] / "index").iterdir())
    change(path, 40 + 4 * 500 + 20 * 300 + 19)  # of the link of unit 300
    return {("KEY_INDEX", "n1")}


def index_unit(stores: list[Path]) -> set[tuple[str, str]]:
    path = next(stores[1].glob("dledger-*/index")) / segment_name(0)
    change(path, 600 * INDEX_UNIT_SIZE + 11)
    return {("INDEX_FILE", "n1")}


FAULTS: tuple[Callable[[list[Path]], set[tuple[str, str]]], ...] = (
    flipped_body,
    flipped_header,
    rewritten_entry,
    deleted_segment,
    queue_unit,
    key_unit,
    key_link,
    index_unit,
)


def test_planted_faults_are_found(produced: Produced, tmp_path: Path) -> None:
    for fault in FAULTS:
        stores: list[Path] = []
        for store in produced.stores:
            (tmp_path / fault.__name__).mkdir(exist_ok=True)
            stores.append(tmp_path / fault.__name__ / store.name)
            subprocess.run(["cp", "-r", "--sparse=always", store, stores[-1]], check=True)
        expected = fault(stores)
        assert worse(stores) | produced.known() == expected | produced.known(), fault.__name__
        shutil.rmtree(tmp_path / fault.__name__)
