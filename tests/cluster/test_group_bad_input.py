"""Broken and hostile input on every port: a clear answer or a close, and the server goes on as before."""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Iterator

import pytest

from dledger.chaos.failover import log_path
from dledger.local.cluster import LocalCluster, wait_for
from dledger.local.wire import NoAnswer, RawConnection, call, frame, request

SEND_MESSAGE = 10
PULL_MESSAGE = 11
SUCCESS = 0
SYSTEM_ERROR = 1
NOT_SUPPORTED = 3
MESSAGE_ILLEGAL = 13
TOPIC_NOT_EXIST = 17
INVALID_PARAMETER = 29
MIB = 1024 * 1024
TOPIC = "BadInput"


def send_header(**changes: object) -> dict[str, object]:
    """Header fields of a good SEND_MESSAGE; a change to None leaves the field out."""
    fields: dict[str, object] = {
        "producerGroup": "PG",
        "topic": TOPIC,
        "defaultTopic": "TBW102",
        "defaultTopicQueueNums": "4",
        "queueId": "0",
        "sysFlag": "0",
        "bornTimestamp": str(int(time.time() * 1000)),
        "flag": "0",
        "properties": "",
        **changes,
    }
    return {name: value for name, value in fields.items() if value is not None}


def pull_header(**changes: object) -> dict[str, object]:
    fields: dict[str, object] = {
        "consumerGroup": "CG",
        "topic": TOPIC,
        "queueId": "0",
        "queueOffset": "0",
        "maxMsgNums": "32",
        "sysFlag": "4",
        "commitOffset": "0",
        "suspendTimeoutMillis": "0",
        "subscription": "*",
        "subVersion": "0",
        **changes,
    }
    return {name: value for name, value in fields.items() if value is not None}


@pytest.fixture(scope="module", autouse=True)
def topic(group: LocalCluster) -> None:
    group.create_topic(TOPIC)


@pytest.fixture
def leader(group: LocalCluster) -> str:
    return group.addr(group.wait_leader())


@pytest.fixture(params=["broker", "peer port", "namesrv"])
def addr(request: pytest.FixtureRequest, group: LocalCluster, leader: str) -> str:
    """Every kind of port that takes frames."""
    node = group.wait_leader()
    raft = f"127.0.0.1:{group.spec.raft_port(node)}"
    return {"broker": leader, "peer port": raft, "namesrv": group.namesrv_addr}[request.param]


@pytest.fixture(autouse=True)
def still_serving(group: LocalCluster, leader: str) -> Iterator[None]:
    """After every test: the same processes, the same leader but where its machine paused, and a message is
    taken."""

    def processes() -> list[int | None]:
        return [group.namesrv_pid(), *map(group.pid, group.spec.node_ids)]

    before, late = processes(), delays(group)
    yield
    assert processes() == before
    now = group.addr(group.wait_leader())
    assert now == leader or delays(group) > late, "it was deposed"
    assert call(now, SEND_MESSAGE, send_header(), b"still there").code == SUCCESS


def delays(group: LocalCluster) -> int:
    """How often an event loop was late so far."""
    logs = (log_path(group, node).read_text(errors="replace") for node in group.spec.node_ids)
    return sum(text.count("the event loop was late") for text in logs)


GOOD = request(SEND_MESSAGE, send_header(), b"x")
BROKEN = {
    "an http request": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "random bytes": bytes(range(255, 0, -1)) * 8,
    "length above the limit": struct.pack(">II", 0x7FFFFFFF, 10) + b"{}",
    "negative length": struct.pack(">iI", -1, 10) + b"{}",
    "length of nothing": struct.pack(">II", 0, 0),
    "header longer than the frame": struct.pack(">II", 20, 4000) + bytes(16),
    "header that is no JSON": frame(b"{not json"),
    "header that is no object": frame(b"[1, 2]"),
    "header that is not UTF-8": frame(b'{"code": "\xff\xfe"}'),
    "header without a code": frame(b'{"opaque": 1}'),
    "deeply nested header": frame(b"[" * 100_000),
    "unknown serialization": frame(b"{}", serialize=9),
    "binary header cut off": frame(b"\x00\x0a\x01", serialize=1),
    "binary header with a wild length": frame(
        struct.pack(">hBhiiii", 10, 0, 401, 1, 0, -5, 0x7FFFFFFF), serialize=1
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_frame_closes_the_connection(name: str, addr: str) -> None:
    with RawConnection(addr) as connection:
        connection.send(BROKEN[name])
        assert connection.closed_by_peer()


@pytest.mark.parametrize("cut", [1, 4, 7, 9, len(GOOD) // 2, len(GOOD) - 1])
def test_a_frame_that_ends_early_is_dropped_with_its_connection(cut: int, addr: str) -> None:
    with RawConnection(addr) as connection:
        connection.send(GOOD[:cut])
        connection.half_close()
        assert connection.closed_by_peer()


def test_a_good_connection_may_turn_bad(leader: str) -> None:
    with RawConnection(leader) as connection:
        connection.send(GOOD)
        assert connection.answer().code == SUCCESS
        connection.send(BROKEN["header that is no JSON"])
        assert connection.closed_by_peer()


def test_one_byte_at_a_time_is_slow_but_right(leader: str) -> None:
    with RawConnection(leader) as connection:
        for at in range(len(GOOD)):
            connection.send(GOOD[at : at + 1])
        assert connection.answer().code == SUCCESS


@pytest.mark.parametrize("where", ["broker", "namesrv"])
@pytest.mark.parametrize("code", [0, 9999, -1, 32768, 2**31 - 1])
def test_an_unknown_code_is_not_supported(where: str, code: int, leader: str, group: LocalCluster) -> None:
    answer = call(leader if where == "broker" else group.namesrv_addr, code)
    assert answer.code == NOT_SUPPORTED
    assert str(code) in (answer.remark or "")


@pytest.mark.parametrize("field", ["producerGroup", "topic", "queueId", "sysFlag", "bornTimestamp"])
def test_a_missing_field_is_named(field: str, leader: str) -> None:
    answer = call(leader, SEND_MESSAGE, send_header(**{field: None}), b"x")
    assert answer.code == SYSTEM_ERROR
    assert field in (answer.remark or "")


@pytest.mark.parametrize("value", ["abc", "", "1.5", str(2**70)])
def test_a_field_of_the_wrong_type_is_named(value: str, leader: str) -> None:
    answer = call(leader, SEND_MESSAGE, send_header(queueId=value), b"x")
    assert answer.code == SYSTEM_ERROR
    assert "queueId" in (answer.remark or "")


@pytest.mark.parametrize("topic", ["with space", "a/../../b", "nul\0", "ümlaut", "x" * 128, "", "."])
def test_an_illegal_topic_is_refused_and_leaves_nothing_behind(
    topic: str, leader: str, group: LocalCluster
) -> None:
    answer = call(leader, SEND_MESSAGE, send_header(topic=topic), b"x")
    assert answer.code == INVALID_PARAMETER
    assert answer.remark
    names = sorted(path.name for path in group.store(group.wait_leader()).rglob("*") if path.is_dir())
    assert topic not in names


def test_a_body_above_the_limit_is_refused(leader: str) -> None:
    answer = call(leader, SEND_MESSAGE, send_header(), bytes(4 * MIB + 1))
    assert answer.code == MESSAGE_ILLEGAL
    assert answer.remark


def test_properties_above_the_limit_are_refused(leader: str) -> None:
    answer = call(leader, SEND_MESSAGE, send_header(properties="K\x01" + "v" * 40_000 + "\x02"), b"x")
    assert answer.code == MESSAGE_ILLEGAL


@pytest.mark.parametrize("queue", [4, 1_000_000])
def test_a_queue_that_does_not_exist_is_refused(queue: int, leader: str) -> None:
    assert call(leader, SEND_MESSAGE, send_header(queueId=str(queue)), b"x").code == INVALID_PARAMETER
    assert call(leader, PULL_MESSAGE, pull_header(queueId=str(queue))).code == INVALID_PARAMETER


def test_an_unknown_topic_cannot_be_pulled(leader: str) -> None:
    assert call(leader, PULL_MESSAGE, pull_header(topic="NoSuchTopic")).code == TOPIC_NOT_EXIST


def test_a_broken_batch_is_refused_whole(leader: str) -> None:
    """The inner message says more bytes than there are."""
    body = struct.pack(">iiiii", 100, 0, 0, 0, 90) + b"short"
    names = {"a": "PG", "b": TOPIC, "c": "TBW102", "i": "", "m": "true"}
    header = {**names, "d": "4", "e": "0", "f": "0", "g": "1", "h": "0"}
    answer = call(leader, 320, header, body)
    assert answer.code in (SYSTEM_ERROR, MESSAGE_ILLEGAL)
    assert answer.remark


def test_descriptors_and_connections_come_back(group: LocalCluster, leader: str) -> None:
    """Two hundred bad connections of each kind leave nothing behind."""
    pids = {"broker": group.pid(group.wait_leader()), "namesrv": group.namesrv_pid()}
    before = {name: descriptors(pid) for name, pid in pids.items()}
    bad = [*BROKEN.values(), GOOD[:9], b""]
    for addr in (leader, group.namesrv_addr):
        for number in range(200):
            try:
                with RawConnection(addr) as connection:
                    connection.send(bad[number % len(bad)])
            except NoAnswer:
                continue  # closed while we wrote: as it should be

    def returned() -> bool | None:
        return all(descriptors(pid) <= before[name] + 3 for name, pid in pids.items()) or None

    wait_for(returned, 10, lambda: f"before {before}, now {[descriptors(pid) for pid in pids.values()]}")


def descriptors(pid: int | None) -> int:
    assert pid is not None
    return len(os.listdir(f"/proc/{pid}/fd"))
