"""The pure parts: ids, queues of a group, subscriptions, process queues, routes, encoding."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dledger.client import ClientError, FlowLimits, InvalidMessage, Message, MessageQueue, ReceivedMessage
from dledger.client.broker_group import BrokerGroup
from dledger.client.compression import CompressionType, compress, decompress
from dledger.client.consuming.process_queue import ProcessQueue
from dledger.client.consuming.subscription import subscribe
from dledger.client.encoding import host_text, properties_text, received
from dledger.client.message import check_group, check_topic
from dledger.client.producing.unique_ids import UniqueIds
from dledger.client.routes import inherited_route, parse_route, publish_queues, subscribe_queues
from dledger.formats.message_ids import pack_ipv4_host
from dledger.formats.record import COMPRESSED, COMPRESSION_LZ4, COMPRESSION_ZSTD, decode_record, encode_record
from dledger.remoting.bodies import BrokerData, QueueData, TopicRoute
from dledger.runtime.env import production_env

QUEUE = MessageQueue("orders", "broker-a", 0)


# --- subscriptions ------------------------------------------------------------------------------------


def test_tag_expressions() -> None:
    both = subscribe("orders", " TagA ||TagB || TagA", 5)
    assert both.tags == ("TagA", "TagB")
    assert both.codes == (2598919, 2598920)
    assert both.expression == "TagA || TagB"
    assert both.matches("TagB") and not both.matches("TagC") and not both.matches(None)
    assert subscribe("orders", "*", 0).matches(None)


@pytest.mark.parametrize("expression", ["A || ", "||", "A | B", "A || *"])
def test_bad_tag_expressions_are_refused(expression: str) -> None:
    with pytest.raises(ClientError, match="tag expression"):
        subscribe("orders", expression, 0)


# --- process queues -----------------------------------------------------------------------------------


def message(offset: int, body: bytes = b"x") -> ReceivedMessage:
    return ReceivedMessage("orders", body, QUEUE, offset, "", "", {}, 0, 0, 0, 0, "", "", 0, 0)


def test_the_smallest_offset_in_process_is_committed() -> None:
    process = ProcessQueue(QUEUE, 10, FlowLimits())
    pulled = [message(offset) for offset in range(10, 15)]
    process.put(pulled, 15)
    process.remove(pulled[1:4])
    assert process.commit_offset == 10
    process.remove(pulled[:1])
    assert process.commit_offset == 14
    process.remove(pulled[4:])
    assert process.commit_offset == 15
    process.put([], 20)  # nothing matched up to there
    assert process.commit_offset == 20


@given(st.lists(st.integers(0, 30), unique=True), st.lists(st.integers(0, 30)))
def test_nothing_in_process_is_ever_committed(pulled: list[int], consumed: list[int]) -> None:
    process = ProcessQueue(QUEUE, 0, FlowLimits())
    process.put([message(offset) for offset in sorted(pulled)], 31)
    process.remove([message(offset) for offset in consumed])
    left = sorted(set(pulled) - set(consumed))
    assert process.commit_offset == (left[0] if left else 31)
    assert process.count == len(left)
    assert process.bytes_waiting == len(left)


def test_pulling_pauses_by_number_bytes_and_span() -> None:
    by_number = ProcessQueue(QUEUE, 0, FlowLimits(max_messages=2))
    by_number.put([message(0)], 1)
    assert not by_number.full
    by_number.put([message(1)], 2)
    assert by_number.full
    by_bytes = ProcessQueue(QUEUE, 0, FlowLimits(max_bytes=10))
    by_bytes.put([message(0, bytes(10))], 1)
    assert by_bytes.full
    by_span = ProcessQueue(QUEUE, 0, FlowLimits(max_span=100))
    by_span.put([message(0), message(100)], 101)
    assert by_span.full
    by_span.remove([message(0)])
    assert not by_span.full


def test_a_moved_queue_goes_on_where_the_broker_says() -> None:
    process = ProcessQueue(QUEUE, 100, FlowLimits())
    process.reset(7)
    assert process.commit_offset == 7


# --- broker groups ------------------------------------------------------------------------------------


def test_a_broker_s_word_counts_until_the_nameserver_has_news() -> None:
    group = BrokerGroup("broker-a")
    assert group.registered({0: "a", 2: "b", 3: "c"})
    assert group.leader == "a"
    assert group.accepted("b")
    assert not group.registered({0: "a", 2: "b", 3: "c"})  # the NameServer has not noticed yet
    assert group.leader == "b"
    assert group.registered({0: "c", 1: "a", 2: "b"})
    assert group.leader == "c"
    group.failed("b")
    assert group.leader == "c"
    group.failed("c")
    assert group.leader is None
    assert not group.registered({1: "a", 2: "b", 3: "c"})
    assert group.candidates() == ["a", "b", "c"]


# --- routes -------------------------------------------------------------------------------------------


def test_routes_are_read_in_fastjson_s_form_too() -> None:
    route = parse_route(
        b'{"brokerDatas":[{"brokerAddrs":{0:"127.0.0.1:10911",1:"127.0.0.1:10921"},"brokerName":"broker-a",'
        b'"cluster":"C"}],"filterServerTable":{},"queueDatas":[{"brokerName":"broker-a","perm":6,'
        b'"readQueueNums":3,"topicSysFlag":0,"writeQueueNums":2}]}'
    )
    assert route.brokerDatas[0].brokerAddrs == {0: "127.0.0.1:10911", 1: "127.0.0.1:10921"}
    assert len(publish_queues("orders", route)) == 2
    assert len(subscribe_queues("orders", route)) == 3


def test_only_permitted_queues_of_known_brokers_count_with_or_without_a_leader() -> None:
    route = TopicRoute(
        [
            QueueData("b", 1, 1, 6),
            QueueData("a", 1, 1, 4),
            QueueData("gone", 1, 1, 6),
            QueueData("c", 1, 1, 2),
        ],
        [BrokerData("C", "a", {0: "x"}), BrokerData("C", "b", {2: "y"}), BrokerData("C", "c", {0: "z"})],
    )
    assert [queue.broker_name for queue in publish_queues("orders", route)] == ["b", "c"]
    assert [queue.broker_name for queue in subscribe_queues("orders", route)] == ["a", "b"]


def test_a_new_topic_inherits_at_most_the_default_queues() -> None:
    default = TopicRoute([QueueData("a", 8, 8, 7), QueueData("b", 8, 8, 6)], [BrokerData("C", "a", {0: "x"})])
    route = inherited_route(default, 4)
    assert route.queueDatas == [QueueData("a", 4, 4, 6)]


# --- ids, names, encoding -----------------------------------------------------------------------------


def test_unique_ids_have_rocketmq_s_form_and_are_unique() -> None:
    ids = UniqueIds(production_env(), bytes([127, 0, 0, 1]))
    found = [ids.next() for _ in range(70_000)]
    assert len(set(found)) == len(found)
    assert all(len(text) == 32 for text in found[:3])
    assert found[0].startswith("7F000001")
    assert found == sorted(found)


@pytest.mark.parametrize("topic", ["orders", "%RETRY%group", "a-b_c|d", "t" * 127, "%DLQ%" + "g" * 200])
def test_good_topics(topic: str) -> None:
    check_topic(topic)


@pytest.mark.parametrize("name", ["", "a b", "a.b", "t" * 256, "é"])
def test_bad_names(name: str) -> None:
    with pytest.raises(InvalidMessage):
        check_topic(name)
    with pytest.raises(InvalidMessage):
        check_group(name)


@given(st.one_of(st.binary(max_size=5000), st.text("ab", max_size=5000).map(str.encode)))
@pytest.mark.parametrize("kind", CompressionType)
def test_bodies_survive_compression(kind: CompressionType, body: bytes) -> None:
    if kind is CompressionType.ZSTD:
        pytest.importorskip("zstandard")
    packed, flag = compress(body, kind)
    assert len(packed) <= len(body) and flag in (0, kind.value)
    assert (decompress(packed, flag) if flag else packed) == body


@pytest.mark.parametrize(
    ("flag", "frame"),
    [
        (257, "04224d186070732e0000001f7a0100" + "ff" * 35 + "32507a7a7a7a7a00000000"),
        (513, "28b52ffd00584c0000107a7a010023830758010000"),
    ],
)
def test_bodies_of_the_java_client_5_are_unfolded(flag: int, frame: str) -> None:
    if flag == CompressionType.ZSTD.value:
        pytest.importorskip("zstandard")
    plain = decompress(bytes.fromhex(frame), flag)
    assert set(plain) == {ord("z")} and len(plain) > 5000


def test_damaged_and_unknown_compressions_are_delivered_as_they_came() -> None:
    for flag in (COMPRESSED, COMPRESSED | COMPRESSION_LZ4, COMPRESSED | COMPRESSION_ZSTD):
        record = decode_record(encode_record(topic="orders", body=b"not compressed", sys_flag=flag))
        got = received(record, "broker-a")
        assert got.body == b"not compressed"
        assert got.sys_flag == flag


def test_retried_messages_show_their_own_topic() -> None:
    record = decode_record(
        encode_record(topic="%RETRY%g", body=b"x", properties="RETRY_TOPIC\x01orders\x02", reconsume_times=2)
    )
    got = received(record, "broker-a")
    assert (got.topic, got.queue.topic, got.reconsume_times) == ("orders", "%RETRY%g", 2)
    assert got.message_id == got.offset_message_id


def test_hosts_are_shown_as_text() -> None:
    assert host_text(pack_ipv4_host("10.0.0.1", 10911)) == "10.0.0.1:10911"
    assert (
        host_text(bytes(15) + b"\x01" + (80).to_bytes(4, "big"))
        == "[0000:0000:0000:0000:0000:0000:0000:0001]:80"
    )


def test_properties_have_id_and_wait_first() -> None:
    text = properties_text(Message("orders", b"x", tags="t", properties={"a": "b"}), "ID")
    assert text == "UNIQ_KEY\x01ID\x02WAIT\x01true\x02TAGS\x01t\x02a\x01b\x02"
