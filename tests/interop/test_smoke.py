"""One short run of each real client on an undisturbed group of three: the fixed part of this suite.

A client and our own producer send to one topic. The client's push consumers and our own must receive all of
it, and the broker must hold the offsets that the consumers commit. Apache's mqadmin must show the messages
and the offsets of our own clients.

Nothing here judges speed: each step waits for a condition, and the limits are far above what it takes. Kills,
retries, transactions and all other modes of the clients are in the other files.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Any

import pytest

from dledger import (
    ClientOptions,
    FromWhere,
    Message,
    Producer,
    ProducerOptions,
    PullConsumer,
    PushConsumer,
    ReceivedMessage,
)
from dledger.local.cluster import LocalCluster, wait_for
from tests.interop.conftest import ClientKind, Driver, java_client, judge_order
from tests.interop.test_java_client import acked, received
from tests.interop.test_mqadmin import printed

pytestmark = [pytest.mark.interop, pytest.mark.smoke]

THEIRS = 40
"""Messages that the client sends: numbers 0 to 39."""
INTERVAL_MS = 20
"""Pause of the client between two sends."""
OURS = range(THEIRS, THEIRS + 10)
"""Numbers of the messages that our producer sends to the same topic."""
LIMIT_S = 120
"""Limit of each wait. A client that gets no answer at first asks again after up to 30 s."""
PATIENT = ClientOptions(request_timeout_s=30.0, failover_timeout_s=LIMIT_S)
"""Options of our own clients: they fail no earlier than the clients under test."""
PATIENT_PRODUCER = ProducerOptions(timeout_s=LIMIT_S, attempt_timeout_s=30.0)
MQADMIN_VERSION = 5
QUEUES = 4
"""Queues of a topic that the fixture `topics` makes."""
ADDRESS = r"127\.0\.0\.1:\d+"

Place = tuple[int, int]
"""Queue id and queue offset of a message."""


def go(request: pytest.FixtureRequest) -> ClientKind:
    """Return Apache's Go client; skip where there is no Go to build its driver with."""
    kind: ClientKind | None = request.getfixturevalue("go_client")
    if kind is None:
        pytest.skip("no Go to build the client with")
    return kind


CLIENTS: dict[str, tuple[Callable[[pytest.FixtureRequest], ClientKind], tuple[str, ...]]] = {
    "java-4.9.5": (lambda request: java_client(4), ("consume", "orderly")),
    "java-5.4.0": (lambda request: java_client(5), ("consume", "orderly")),
    "go": (go, ("consume", "orderly")),
    "ali-ons": (lambda request: request.getfixturevalue("ali_ons"), ("consume",)),
    "cpp": (lambda request: request.getfixturevalue("py_rocketmq"), ("consume", "orderly")),
}
"""Client -> how to get its driver, and the driver's modes that are push consumers."""


@pytest.mark.parametrize("name", CLIENTS)
def test_what_a_client_sends_arrives_and_is_committed(
    name: str,
    request: pytest.FixtureRequest,
    group: LocalCluster,
    drive: Callable[..., Driver],
    topics: Callable[[str], str],
) -> None:
    get, modes = CLIENTS[name]
    kind = get(request)
    topic = topics("Smoke_" + name.replace(".", "_"))
    consumers = {
        mode: drive(kind, mode, group.namesrv_addr, topic, consumer_group(mode, topic)) for mode in modes
    }
    # The mode "many", here with one producer, ends after a number of messages.
    producing = f"produce:{topic}:PG_{topic}:{THEIRS}:{INTERVAL_MS}"
    producer = drive(kind, "many", group.namesrv_addr, producing, "-")
    producer.wait(lambda events: any(item["event"] == "done" for item in events), LIMIT_S)
    assert acked(producer.events) == set(range(THEIRS)), producer.summary()
    send(group, topic, OURS)

    stored = read(group, topic)
    judge_stored(stored)
    judge_acknowledged(producer.named("acked"), stored)
    for mode, consumer in consumers.items():
        consumer.wait(lambda events: places(events) >= stored.keys(), LIMIT_S)
        judge_received(consumer.named("received"), stored)
        if mode == "orderly":
            judge_order(consumer.named("received"))
    for mode in modes:
        await_committed(group, consumer_group(mode, topic), topic)


def test_mqadmin_shows_what_our_clients_did(group: LocalCluster, topics: Callable[[str], str]) -> None:
    topic, name = topics("Smoke_mqadmin"), "CG_Smoke_mqadmin"
    send(group, topic, range(THEIRS))
    with PushConsumer(
        name, group.namesrv_addr, lambda message: None, topic=topic, from_where="FIRST", client=PATIENT
    ):
        ends = await_committed(group, name, topic)
    leaders = {wait_for(group.leader, LIMIT_S, "no leader")}
    clusters, route, status, progress = printed(
        MQADMIN_VERSION,
        group,
        "clusterList",
        f"topicRoute -t {topic}",
        f"topicStatus -t {topic}",
        f"consumerProgress -g {name}",
    )
    leaders.add(wait_for(group.leader, LIMIT_S, "no leader"))  # a busy machine may have moved it
    addresses = sorted(map(group.addr, group.spec.node_ids))
    assert sorted(re.findall(ADDRESS, clusters)) == sorted(re.findall(ADDRESS, route)) == addresses
    assert set(re.findall(rf'\b0:"({ADDRESS})"', route)) <= {group.addr(node) for node in leaders}, route
    assert len(ends) == QUEUES and sum(ends.values()) >= THEIRS
    assert f'"readQueueNums":{QUEUES}' in route, route
    row = rf"(?m)^{re.escape(group.spec.group)} +(\d+) +0 +(\d+) "
    assert {int(queue): int(end) for queue, end in re.findall(row, status)} == ends, status
    row = rf"(?m)^{topic} +{re.escape(group.spec.group)} +(\d+) +(\d+) +(\d+) "
    shown = {int(queue): (int(end), int(place)) for queue, end, place in re.findall(row, progress)}
    assert shown == {queue: (end, end) for queue, end in ends.items()}, progress
    assert "Diff Total: 0" in progress, progress


def consumer_group(mode: str, topic: str) -> str:
    return f"CG_{mode}_{topic}"


def send(group: LocalCluster, topic: str, numbers: range) -> None:
    """Send numbered messages with our own client, as the drivers make them."""
    with Producer("PG_smoke", group.namesrv_addr, PATIENT_PRODUCER, client=PATIENT) as producer:
        for number in numbers:
            producer.send(Message(topic, b"%d" % number, keys=f"key-{number}", tags="TagA"))


def read(group: LocalCluster, topic: str) -> dict[Place, ReceivedMessage]:
    """Read the whole topic with our own client, and return its messages by their places."""
    with PullConsumer("CG_smoke_reader", group.namesrv_addr, client=PATIENT) as reader:
        queues = reader.queues(topic)
        reader.assign(queues, FromWhere.FIRST)
        total = sum(reader.highest(queue) for queue in queues)
        found: list[ReceivedMessage] = []
        deadline = time.monotonic() + LIMIT_S
        while len(found) < total:
            assert time.monotonic() < deadline, f"only {len(found)} of {total} messages were read"
            found += reader.poll(5.0)
    return {(message.queue.queue_id, message.queue_offset): message for message in found}


def await_committed(group: LocalCluster, name: str, topic: str) -> dict[int, int]:
    """Wait until a group has committed the end of each queue, and return these offsets by queue id."""
    with PullConsumer(name, group.namesrv_addr, client=PATIENT) as reader:
        queues = reader.queues(topic)
        ends = {queue.queue_id: reader.highest(queue) for queue in queues}

        def committed() -> dict[int, int]:
            return {queue.queue_id: reader.committed(queue) or 0 for queue in queues}

        def reached() -> bool | None:
            return committed() == ends or None

        wait_for(reached, LIMIT_S, lambda: f"{name} has committed {committed()} of {ends}")
    return ends


def places(events: list[dict[str, Any]]) -> set[Place]:
    return {(item["queue"], item["offset"]) for item in events if item["event"] == "received"}


def judge_stored(stored: dict[Place, ReceivedMessage]) -> None:
    """Require each number at least once, with its key and its tag. A repeated send may be stored twice."""
    for message in stored.values():
        assert message.keys == [f"key-{int(message.body)}"], message
        assert message.tags == "TagA", message
    assert {int(message.body) for message in stored.values()} == {*range(THEIRS), *OURS}


def judge_acknowledged(events: list[dict[str, Any]], stored: dict[Place, ReceivedMessage]) -> None:
    """Require each acknowledged message where its acknowledgement says that it is.

    Drivers print the place of a message, its unique id, or its offset message id.
    """
    found: dict[Place | str, ReceivedMessage] = {}
    for place, message in stored.items():
        found |= {place: message, message.message_id: message, message.offset_message_id: message}
    for item in events:
        message = found[item["id"] if "id" in item else (item["queue"], item["offset"])]
        assert int(message.body) == item["seq"], item


def judge_received(events: list[dict[str, Any]], stored: dict[Place, ReceivedMessage]) -> None:
    """Require that the client's consumer received the messages that our own consumer reads."""
    assert received(events) == {*range(THEIRS), *OURS}
    for item in events:
        seq = item["seq"]
        assert (item["keys"], item["tag"]) == (f"key-{seq}", "TagA"), item
        message = stored.get((item["queue"], item["offset"]))
        # A send that timed out may be stored after the topic was read.
        assert message is None or int(message.body) == seq, item
