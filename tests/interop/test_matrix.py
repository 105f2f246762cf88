"""What the other files have not tried of unmodified clients, all side by side on one group.

Tags, broadcasting and queries before and after a leader kill, with the headers of Java in RocketMQ's own
serialization; a minute without consumers; dead letters.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from dledger import (
    ClientOptions,
    CompressionType,
    FromWhere,
    Message,
    Producer,
    ProducerOptions,
    PullConsumer,
    PushConsumer,
    TopicNotFound,
)
from dledger.local.cluster import LocalCluster, wait_for
from tests.interop.conftest import ClientKind, Driver, java_client
from tests.interop.test_java_client import COMMITTED_S, acked, received
from tests.interop.test_mqadmin import mqadmin

pytestmark = pytest.mark.interop

BEFORE = 40
AFTER = 40
FAST_POLL_MS = 1000
READY_S = 60
DELIVERY_LIMIT_S = 90
OUTAGE_S = 60
QUERIED = set(range(10))
"""The driver's mode `query` asks for these."""
DYING = set(range(20))


def test_tags_broadcasting_and_queries_over_a_leader_kill(
    group: LocalCluster,
    drive: Callable[..., Driver],
    topics: Callable[[str], str],
    ali_ons: ClientKind,
    py_rocketmq: ClientKind,
) -> None:
    javas = {major: java_client(major, FAST_POLL_MS, binary=True) for major in (4, 5)}
    named = {major: topics(f"Matrix{major}") for major in javas}
    where = group.namesrv_addr
    packed = topics("Packed")
    others = (ali_ons, py_rocketmq)
    producers = {at: drive(kind, "mixed", where, named[at], f"PG_M{at}") for at, kind in javas.items()}
    queries = {at: drive(kind, "query", where, named[at], f"QG_M{at}") for at, kind in javas.items()}
    tags = [(at, drive(kind, "tags", where, named[at], f"TG_M{at}")) for at, kind in javas.items()]
    tags += [(5, drive(kind, "tags", where, named[5], f"TG_{at}")) for at, kind in enumerate(others)]
    # A new name each time: who broadcasts keeps its offsets below its home. The two of Java are in one group.
    broadcast = f"BG_{time.time_ns()}"
    everybody = [drive(kind, "broadcast", where, named[5], broadcast) for kind in javas.values()]
    everybody += [
        drive(kind, "broadcast", where, named[5], f"{broadcast}_{at}") for at, kind in enumerate(others)
    ]
    unpacking = drive(javas[5], "consume", where, packed, "CG_packed")

    def delivered(count: int) -> None:
        for producer in producers.values():
            goal = len(acked(producer.events)) + count
            producer.wait(lambda events, goal=goal: len(acked(events)) >= goal, READY_S)  # type: ignore[misc]
        sent = {major: acked(producer.events) for major, producer in producers.items()}
        for major, consumer in tags:
            odd = {seq for seq in sent[major] if seq % 2}
            consumer.wait(lambda events, odd=odd: received(events) >= odd, DELIVERY_LIMIT_S)  # type: ignore[misc]
        for consumer in everybody:
            consumer.wait(lambda events: received(events) >= sent[5], DELIVERY_LIMIT_S)

    def answered(query: Driver, event: str, after_ms: float) -> bool:
        named = [item for item in query.drained() if item["event"] == event and item["ms"] > after_ms]
        assert all(item["seq"] == item["asked"] for item in named)
        return {item["seq"] for item in named} >= QUERIED

    def all_answered(after_ms: float) -> None:
        for query in queries.values():
            for event in ("found", "viewed"):
                wait_for(lambda q=query, e=event: answered(q, e, after_ms) or None, READY_S, query.summary)  # type: ignore[misc]

    delivered(BEFORE)
    all_answered(0)
    node = group.kill_leader().node
    killed_at_ms = time.time() * 1000
    group.restart_node(node)
    for producer in producers.values():
        producer.next_ack_ms(killed_at_ms, READY_S)
    delivered(AFTER)
    all_answered(killed_at_ms + 1000)
    for _, consumer in tags:
        assert {item["tag"] for item in consumer.named("received")} == {"TagB"}
    # A topic of its own: ali-ons loses what comes in one answer with a body that it cannot unfold.
    for compress_type in CompressionType:
        with Producer("PG_packed", where, ProducerOptions(compress_type=compress_type)) as packing:
            packing.send(
                Message(packed, b"%d" % compress_type.value + b" " * 5000, tags="TagA", keys="packed")
            )
    wanted = {compress_type.value for compress_type in CompressionType}
    unpacking.wait(lambda events: received(events) >= wanted, DELIVERY_LIMIT_S)


def test_a_minute_without_consumers_and_dead_letters(
    group: LocalCluster,
    drive: Callable[..., Driver],
    topics: Callable[[str], str],
    ali_ons: ClientKind,
    py_rocketmq: ClientKind,
) -> None:
    """Nothing that came meanwhile is lost or a dead letter; the leader is killed in the middle of it."""
    kinds = {
        "java4": java_client(4, FAST_POLL_MS, binary=True),
        "java5": java_client(5, FAST_POLL_MS),
        "ali": ali_ons,
        "cpp": py_rocketmq,
    }
    outage, dying = topics("Outage"), topics("Dying")
    where = group.namesrv_addr
    producer = drive(kinds["java5"], "produce", where, outage, "PG_outage")
    first = {name: drive(kind, "consume", where, outage, f"CG_outage_{name}") for name, kind in kinds.items()}
    for consumer in first.values():
        consumer.wait(lambda events: received(events) >= set(range(BEFORE)), DELIVERY_LIMIT_S)
    time.sleep(COMMITTED_S)
    for consumer in first.values():
        consumer.close()
    began = time.monotonic()
    before = len(acked(producer.drained()))

    with Producer("PG_dying", where) as ours:
        for seq in DYING:
            ours.send(Message(dying, b"%d" % seq, tags="TagA", keys=f"key-{seq}"))
    fallible = [name for name in kinds if name != "cpp"]  # of it the number of tries cannot be set
    for name in fallible:
        drive(kinds[name], "dies", where, dying, f"CG_dying_{name}")
    time.sleep(OUTAGE_S / 2)
    node = group.kill_leader().node
    group.restart_node(node)
    time.sleep(max(0.0, began + OUTAGE_S - time.monotonic()))

    missed = len(acked(producer.drained())) - before
    assert missed > 200
    second = {
        name: drive(kind, "consume", where, outage, f"CG_outage_{name}") for name, kind in kinds.items()
    }
    goal = len(acked(producer.drained())) + AFTER
    producer.wait(lambda events: len(acked(events)) >= goal, READY_S)
    sent = acked(producer.events)
    for name, consumer in second.items():
        earlier = received(first[name].events)
        consumer.wait(lambda events, got=earlier: got | received(events) >= sent, DELIVERY_LIMIT_S)  # type: ignore[misc]
        again = earlier & received(consumer.events)
        print(f"\n{name}: {missed} came in a minute without it, all consumed; {len(again)} again")
        assert dead_letters(where, f"CG_outage_{name}") == []
    for name in fallible:
        await_dead_letters(where, f"CG_dying_{name}")


def await_dead_letters(where: str, group: str) -> None:
    """Each of the dying messages is one, once."""
    wait_for(lambda: set(dead_letters(where, group)) >= DYING or None, READY_S, lambda: group)
    assert sorted(dead_letters(where, group)) == sorted(DYING)


def dead_letters(where: str, group: str) -> list[int]:
    """Numbers of the messages in a group's dead-letter topic."""
    with PullConsumer("CG_undertaker", where) as consumer:
        try:
            queues = consumer.queues(f"%DLQ%{group}")
        except TopicNotFound:
            return []
        consumer.assign(queues, FromWhere.FIRST)
        count = sum(consumer.highest(queue) for queue in queues)
        found: list[int] = []
        while len(found) < count:
            found += [int(message.body) for message in consumer.poll(5.0)]
        return found


@pytest.mark.parametrize("major", [4, 5])
def test_mqadmin_reads_our_traces(major: int, group: LocalCluster, topics: Callable[[str], str]) -> None:
    topic = topics(f"Traced{major}")
    client = ClientOptions(trace=True, namespace="INST" if major == 5 else "")
    got: list[bytes] = []
    with Producer("PG_traced", group.namesrv_addr, client=client) as producer:
        if client.namespace:
            producer.create_topic(topic)
        sent = producer.send(Message(topic, b"body"))
        with PushConsumer(
            "CG_traced",
            group.namesrv_addr,
            lambda message: got.append(message.body),
            topic=topic,
            from_where="first",
            client=client,
        ):
            wait_for(lambda: got or None, READY_S, lambda: "nothing consumed")

    def printed() -> str | None:
        text, _ = mqadmin(major, group, f"queryMsgTraceById -i {sent.message_id}").communicate(timeout=60)
        return text if "Sub " in text else None

    text = wait_for(printed, READY_S, lambda: "no trace")
    lines = [line.split() for line in text.splitlines() if line.strip()]
    pub, sub = (next(words for words in lines if words[0] == kind) for kind in ("Pub", "Sub"))
    assert (pub[1], pub[-1]) == ("PG_traced", "success")
    assert (sub[1], sub[-1]) == ("CG_traced", "success")
