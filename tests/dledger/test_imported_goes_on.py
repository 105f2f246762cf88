"""What an import brings works at a broker that runs on the imported store: each kind by its effect."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from dledger.admin import AsyncAdminClient
from dledger.client import (
    ConsumeStatus,
    LocalTransactionState,
    Message,
    PullConsumer,
    PushConsumer,
    ReceivedMessage,
    TransactionProducer,
)
from dledger.client.errors import BrokerRefused, ClientError
from dledger.commands.moving.importing import Imported, Request, import_stores
from dledger.commands.moving.progress import Progress
from dledger.commands.moving.staging import Target
from dledger.formats.message_ids import decode_message_id, encode_message_id
from dledger.formats.timers import TIMER_TOPIC
from dledger.local.cluster import ClusterSpec, LocalCluster, find_base_port, wait_for
from dledger.runtime.files import OsFiles
from dledger.runtime.ids import Ids
from tests.audit.apache_store import ApacheLog, write_apache_store
from tests.dledger.apache_commit_log import CommitLog, topics_json

SEGMENT_SIZE = 16 << 20
LIMIT_S = 60.0
HALF, OP_HALF = "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC"


def imported(
    source: Path, to: Path, flush: str = "SYNC_FLUSH", nodes: int = 1
) -> tuple[Imported, LocalCluster]:
    """A group of processes, not started, on the stores that an import made."""
    spec = ClusterSpec(
        base_port=find_base_port(start=21_000), nodes=nodes, flush=flush, segment_size=SEGMENT_SIZE
    )
    cluster = LocalCluster.create(to, spec)
    targets = tuple(Target(node, str(cluster.store(node))) for node in spec.node_ids)
    asked = Request(str(source), targets, spec.group, SEGMENT_SIZE)
    done = import_stores(OsFiles(), Ids(random.Random(1)), asked, Progress("test", quiet=True))
    return done, cluster


@contextmanager
def running(cluster: LocalCluster) -> Iterator[LocalCluster]:
    """Its processes run."""
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


def bodies(consumer: PullConsumer, topic: str, wanted: set[bytes]) -> list[bytes]:
    """Messages of a topic from its beginning, once all that are wanted are there."""
    found: list[bytes] = []

    def all_there() -> bool:
        found.extend(message.body for message in consumer.poll(0.5))
        return wanted <= set(found)

    queues = wait_for(lambda: queues_of(consumer, topic), LIMIT_S, lambda: "no route")
    consumer.assign(queues)
    for queue in queues:
        consumer.seek_to_begin(queue)
    wait_for(all_there, LIMIT_S, lambda: f"{found} of {wanted}")
    return found


def queues_of(consumer: PullConsumer, topic: str) -> list[object] | None:
    try:
        return list(consumer.queues(topic))
    except ClientError:
        return None


@pytest.mark.parametrize("started", [2, 3])
def test_an_imported_store_is_flushed(tmp_path: Path, started: int) -> None:
    """Under ASYNC_FLUSH, which is RocketMQ's default: with all members, and with a majority of them."""
    log = CommitLog()
    log.put("orders", b"plain")
    log.config = {"topics.json": topics_json("orders")}
    _, cluster = imported(log.write(tmp_path / "old"), tmp_path / "ours", "ASYNC_FLUSH", nodes=3)
    nodes = cluster.spec.node_ids[:started]
    try:
        cluster.start_namesrv()
        for node in nodes:
            cluster.start_node(node)
        with PullConsumer("reader", cluster.namesrv_addr) as reader:
            assert bodies(reader, "orders", {b"plain"}) == [b"plain"]
        for node in nodes:
            # The others may have a leader before this one answers.
            health = wait_for(partial(cluster.health, node), LIMIT_S, f"{node} does not answer")
            assert "power" not in json.dumps(health)
            said = "".join(path.read_text() for path in (cluster.directory / "logs").glob(f"broker-{node}/*"))
            assert "power was lost" not in said
            assert "acknowledged entries may be lost" not in said
            assert said.count("flushDiskType=ASYNC_FLUSH: acknowledged does not mean fsynced") == 1
    finally:
        cluster.stop()


def timer(due_ms: int, key: str, **more: str) -> dict[str, str]:
    return {
        "TIMER_OUT_MS": str(due_ms),
        "UNIQ_KEY": key,
        "REAL_TOPIC": "orders",
        "REAL_QID": "0",
    } | more


def commit_log(root: Path, begun_ms: int) -> Path:
    log = CommitLog()
    log.put("orders", b"plain")
    log.put("SCHEDULE_TOPIC_XXXX", b"level", 2, {"REAL_TOPIC": "orders", "REAL_QID": "0", "DELAY": "3"})
    log.put("SCHEDULE_TOPIC_XXXX", b"no row", 0, {"REAL_TOPIC": "orders", "REAL_QID": "0", "DELAY": "1"})
    log.put(TIMER_TOPIC, b"was delivered", 0, timer(begun_ms - 90_000, "t0"))
    log.put(TIMER_TOPIC, b"timer", 0, timer(begun_ms - 30_000, "t1"))
    log.put(TIMER_TOPIC, b"recalled", 0, timer(begun_ms - 20_000, "t2"))
    log.put(TIMER_TOPIC, b"", 0, timer(begun_ms - 20_000, "t2", TIMER_DEL_UNIQKEY="t2"))
    log.put(TIMER_TOPIC, b"soon", 0, timer(begun_ms + 3_000, "t3"))
    log.put("%RETRY%cg", b"again", 0, {"RETRY_TOPIC": "orders"})
    half = {"PGROUP": "pg", "REAL_TOPIC": "orders", "REAL_QID": "0", "TRAN_MSG": "true"}
    log.put(HALF, b"was committed", 0, half | {"UNIQ_KEY": "h0"})
    log.put(OP_HALF, b"0,", 0, {"TAGS": "d"})
    log.put(HALF, b"open", 0, half | {"UNIQ_KEY": "h1"})
    log.config = {
        "topics.json": topics_json("orders", "%RETRY%cg"),
        "subscriptionGroup.json": {"subscriptionGroupTable": {"cg": {"groupName": "cg"}}},
        "consumerOffset.json": {"offsetTable": {"orders@cg": {"0": 1}, "%RETRY%cg@cg": {"0": 0}}},
        "delayOffset.json": {"offsetTable": {"3": 0}},
        "timercheck": (begun_ms - 60_000).to_bytes(8, "big") + bytes(48),
    }
    return log.write(root)


def test_what_was_under_way_in_a_commit_log_comes(tmp_path: Path) -> None:
    """Timers, delay levels, retries and half messages."""
    done, cluster = imported(commit_log(tmp_path / "old", int(time.time() * 1000)), tmp_path / "ours")
    assert (done.timers, done.transactions) == (4, 1), "a recall is one of them"
    again: list[bytes] = []

    def consume(message: ReceivedMessage) -> ConsumeStatus:
        again.append(message.body)
        return ConsumeStatus.SUCCESS

    with (
        running(cluster),
        TransactionProducer(
            "pg", cluster.namesrv_addr, check=lambda message: LocalTransactionState.COMMIT_MESSAGE
        ) as producer,
    ):
        producer.send(Message("orders", b"new"))  # from now on a broker can ask it
        with PullConsumer("reader", cluster.namesrv_addr) as reader:
            found = bodies(reader, "orders", {b"level", b"no row", b"timer", b"soon", b"open"})
        assert sorted(found) == sorted([b"plain", b"new", b"level", b"no row", b"timer", b"soon", b"open"])
        with PushConsumer("cg", cluster.namesrv_addr, consume, topic="orders"):
            wait_for(lambda: b"again" in again, LIMIT_S, lambda: f"{again}")


def test_timers_of_a_dledger_store_come(tmp_path: Path) -> None:
    now_ms = int(time.time() * 1000)
    log = ApacheLog(segment_size=64 * 1024)
    log.term = 1
    for number in range(3):
        properties = "".join(
            f"{name}\x01{value}\x02" for name, value in timer(now_ms - 5_000 + number, f"t{number}").items()
        )
        log.message(TIMER_TOPIC, b"timer %d" % number, properties=properties)
    root = write_apache_store(log, tmp_path / "old", keys=[])
    (root / "abort").rmdir()
    (root / "config" / "timercheck").write_bytes((now_ms - 60_000).to_bytes(8, "big") + bytes(48))
    (root / "config" / "topics.json").write_text(json.dumps(topics_json("orders")))
    done, cluster = imported(root, tmp_path / "ours")
    assert done.timers == 3
    wanted = {b"timer 0", b"timer 1", b"timer 2"}
    with running(cluster), PullConsumer("reader", cluster.namesrv_addr) as reader:
        assert sorted(bodies(reader, "orders", wanted)) == sorted(wanted)


def test_ids_that_are_printed_of_imported_messages_find_them(tmp_path: Path) -> None:
    """They name the address of the old broker, which nobody has any more."""
    log = CommitLog()
    for number in range(3):
        log.put("orders", b"message %d" % number)
    log.config = {"topics.json": topics_json("orders")}
    _, cluster = imported(log.write(tmp_path / "old"), tmp_path / "ours")

    async def find(message_id: str) -> bytes:
        async with AsyncAdminClient(cluster.namesrv_addr) as admin:
            return (await admin.messages.by_id("orders", message_id)).message.body

    with running(cluster), PullConsumer("reader", cluster.namesrv_addr) as reader:
        queues = wait_for(lambda: queues_of(reader, "orders"), LIMIT_S, lambda: "no route")
        reader.assign(queues)
        reader.seek_to_begin(queues[0])
        found = []
        wait_for(lambda: found.extend(reader.poll(0.5)) or len(found) == 3, LIMIT_S, lambda: f"{found}")
        for message in found:
            assert asyncio.run(find(message.offset_message_id)) == message.body
        place = decode_message_id(found[0].offset_message_id)
        for host, offset in (
            (place.host, place.physical_offset + 1),
            (b"\x7f\0\0\x09\0\0\0\x09", place.physical_offset),
        ):
            with pytest.raises(BrokerRefused, match="the topic orders has no message with the id"):
                asyncio.run(find(encode_message_id(host, offset)))
