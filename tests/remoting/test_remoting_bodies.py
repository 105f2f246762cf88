"""Bodies as Java writes them and as other clients send them."""

from __future__ import annotations

import contextlib
import json
import re
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from remoting_kit import decode_one, java_bytes, java_samples, recorded_frames

from dledger.remoting import fastjson
from dledger.remoting.bodies import (
    Body,
    BrokerMemberGroupBody,
    ClusterInfo,
    ConsumerConnections,
    ConsumerIdList,
    Heartbeat,
    KvTable,
    LockAnswer,
    LockRequest,
    MessageQueue,
    ProducerConnections,
    SubscriptionGroupConfig,
    TopicList,
    TopicOffset,
    TopicRoute,
    decode_body,
    decode_heartbeat,
    decode_queue_table,
    make_subscription,
    queue_table,
    subscription_codes,
)
from dledger.remoting.errors import BadBody
from dledger.remoting.registration import TopicTable, decode_data_version

SAME_AS_JAVA: dict[str, type[Body]] = {
    "route.standard-json(version>=401 or acceptStandardJsonOnly)": TopicRoute,
    "lockBatchRequest": LockRequest,
    "lockBatchResponse": LockAnswer,
    "consumerIdList": ConsumerIdList,
    "heartbeat": Heartbeat,
    "topicConfigSerializeWrapper": TopicTable,
    "kvTable": KvTable,
    "consumerConnection(code 203)": ConsumerConnections,
    "producerConnection(code 204)": ProducerConnections,
    "topicList(206/224/304)": TopicList,
}
UNQUOTED: dict[str, type[Body]] = {
    "route.fastjson-default(client version<401)": TopicRoute,
    "route.orderTopicConf": TopicRoute,
    "clusterInfo": ClusterInfo,
    "brokerMemberGroup(code 901)": BrokerMemberGroupBody,
}


@pytest.mark.parametrize("name", SAME_AS_JAVA)
def test_a_java_body_is_read_and_written_byte_for_byte(name: str) -> None:
    body = decode_body(java_bytes(name), SAME_AS_JAVA[name])
    assert body.encode() == java_bytes(name)


@pytest.mark.parametrize("name", UNQUOTED)
def test_a_java_body_with_unquoted_keys_is_read_and_written_as_strict_json(name: str) -> None:
    body = decode_body(java_bytes(name), UNQUOTED[name])
    strict = body.encode()
    assert strict.replace(b'"0":', b"0:").replace(b'"1":', b"1:") == java_bytes(name)
    json.loads(strict)


def test_a_route_has_the_addresses_by_number() -> None:
    route = decode_body(java_bytes("route.orderTopicConf"), TopicRoute)
    assert route.brokerDatas[0].brokerAddrs == {0: "127.0.0.1:10911", 1: "127.0.0.1:10921"}
    assert route.brokerDatas[0].master == "127.0.0.1:10911"
    assert route.orderTopicConf == "broker-a:4"


def test_a_group_config_of_java_is_read() -> None:
    config = decode_body(java_bytes("subscriptionGroupConfig(code 200 body)"), SubscriptionGroupConfig)
    assert (config.groupName, config.retryMaxTimes, config.consumeEnable) == ("CG", 16, True)


def test_a_table_of_queues_is_javas_byte_for_byte() -> None:
    queue = MessageQueue("T", "broker-a", 0)
    sample = java_bytes("resetOffsetBody(code 220)")
    assert queue_table("offsetTable", {queue: 9}) == sample
    assert decode_queue_table(sample, "offsetTable", int) == {queue: 9}


def test_topic_stats_of_java_are_read() -> None:
    table = decode_queue_table(java_bytes("topicStatsTable"), "offsetTable", TopicOffset)
    assert sorted(queue.queueId for queue in table) == [0, 1]
    assert len(set(map(bytes, (offset.encode() for offset in table.values())))) == 1


def test_queues_sort_as_clients_sort_them() -> None:
    queues = [MessageQueue("T", "b", 0), MessageQueue("T", "a", 10), MessageQueue("T", "a", 2)]
    assert [(q.brokerName, q.queueId) for q in sorted(queues)] == [("a", 2), ("a", 10), ("b", 0)]


# --- heartbeats ---------------------------------------------------------------------------------------

HEARTBEATS = [frame for frame in recorded_frames() if frame["header"]["code"] == 34]


@pytest.mark.parametrize("frame", HEARTBEATS, ids=lambda f: f["client"])
def test_the_heartbeat_of_every_client_is_read(frame: dict[str, Any]) -> None:
    heartbeat = decode_heartbeat(decode_one(bytes.fromhex(frame["frame_hex"])).body)
    assert "@" in heartbeat.clientID
    assert heartbeat.producerDataSet or heartbeat.consumerDataSet


def test_the_cpp_heartbeat_has_ordinals_text_numbers_and_no_codes() -> None:
    body = (
        b'{"clientID":"1-127.0.0.1@DEFAULT","consumerDataSet":[{"consumeFromWhere":0,"consumeType":1,'
        b'"groupName":"CG","messageModel":1,"subscriptionDataSet":[{"subString":"TagA || TagB",'
        b'"subVersion":"1795215859824","topic":"T"}]}],"producerDataSet":[{"groupName":"PG"}]}\n'
    )
    (consumer,) = decode_heartbeat(body).consumerDataSet
    assert consumer.consumeType == "CONSUME_PASSIVELY"
    assert consumer.messageModel == "CLUSTERING"
    assert consumer.consumeFromWhere == "CONSUME_FROM_LAST_OFFSET"
    (subscription,) = consumer.subscriptionDataSet
    assert subscription.subVersion == 1795215859824
    assert subscription.expressionType == "TAG"
    assert subscription.tagsSet == ["TagA", "TagB"]
    assert subscription.codeSet == [2598919, 2598920]


def test_nulls_missing_lists_and_large_versions_are_fine() -> None:
    body = (
        b'{"clientID":"c","producerDataSet":null,"consumerDataSet":[{"groupName":"CG","consumeType":null,'
        b'"subscriptionDataSet":[{"topic":"T","subVersion":1795215859824000001,"expressionType":null}]}]}'
    )
    heartbeat = decode_heartbeat(body)
    assert heartbeat.producerDataSet == []
    assert heartbeat.consumerDataSet[0].subscriptionDataSet[0].subVersion == 1795215859824000001


@pytest.mark.parametrize(
    "body, reason",
    [
        (b"", "not JSON"),
        (b"[]", "not a JSON object"),
        (b"{}", "clientID"),
        (b'{"clientID":"c","consumerDataSet":[{"groupName":"g","consumeType":9}]}', "consumeType: 9"),
        (b'{"clientID":"c","consumerDataSet":[{"groupName":"g","messageModel":"X"}]}', "messageModel: 'X'"),
        (b'{"clientID":"c","consumerDataSet":[7]}', "heartbeat is wrong"),
        (b'{"clientID":"\xff"}', "UTF-8"),
    ],
)
def test_a_bad_heartbeat_says_what_is_wrong(body: bytes, reason: str) -> None:
    with pytest.raises(BadBody, match=reason) as caught:
        decode_heartbeat(body)
    assert caught.value.code == 1


def test_subscriptions_to_everything_have_no_codes() -> None:
    for expression in (None, "", "*", " * "):
        assert subscription_codes(expression) == ([], [])
    assert make_subscription("T", "a > 3", 1, "SQL92").codeSet == []


# --- fastjson -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text, value",
    [
        ('{"offsetTable":{"T@CG":{0:5,1:7}}}', {"offsetTable": {"T@CG": {"0": 5, "1": 7}}}),
        ("{-1:true, 2 : null ,}", {"-1": True, "2": None}),
        ('{a:[1,-2.5e3,"x\\n\\u0041"],$b:{}}', {"a": [1, -2500.0, "x\nA"], "$b": {}}),
        ('{{"b":1,"a":"x"}:9}', {'{"a":"x","b":1}': 9}),
        (" {0 : [ ] } \n", {"0": []}),
    ],
)
def test_relaxed_json_is_read(text: str, value: object) -> None:
    assert fastjson.loads(text.encode()) == value


@pytest.mark.parametrize("text", ["{0:}", "{0 1}", "{0:1", "[0:1]", "{0:1}x", "{,}", "{0:tru}", '{0:"a}', ""])
def test_what_is_not_even_relaxed_json_is_refused(text: str) -> None:
    with pytest.raises(BadBody, match="not JSON"):
        fastjson.loads(text.encode())


def test_deep_nesting_is_refused() -> None:
    with pytest.raises(BadBody, match="nested more than"):
        fastjson.loads(b"{0:" * 1000)


@pytest.mark.parametrize("large", [False, True])
def test_what_is_not_strict_is_read_quickly_or_refused(large: bool) -> None:
    """400 KB of it held a leader for 0.9 s; whatever the bytes are, each is looked at once."""
    unquoted = b'{"a":[' + b"{1:2}," * 6000 + b"{1:2}]}"
    assert fastjson.loads(unquoted, large=large) == {"a": [{"1": 2}] * 6001}
    odd = b'{"a":[' + b"{{0:1}:2}," * 600 + b"{{0:1}:2}]}"
    if large:
        assert fastjson.loads(odd, large=True) == {"a": [{'{"0":1}': 2}] * 601}
    else:
        with pytest.raises(BadBody, match="in other forms it may have 4096 bytes at most"):
            fastjson.loads(odd)
    text = {'a{1:"': {"1:2,b:": [True, None, -1.5e3]}}
    assert fastjson.loads(b'{1:2,b :3,"c":' + fastjson.dumps_plain(text) + b"}") == {
        "1": 2,
        "b": 3,
        "c": text,
    }


@pytest.mark.parametrize(
    "body",
    [b'"' + b'\\"' * 20_000, b"{a:[" + b"a " * 20_000, b"a" * 48_000, b"{a" + b" " * 48_000, b'{"":' * 9000],
)
def test_no_body_is_looked_at_again_and_again(body: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is decoded twice, the slow parser gets nothing of it, and the pattern looks at each byte once: where
    it found nothing, it gave up at the first byte."""
    decoded: list[int] = []

    class Json:
        @staticmethod
        def decode(data: bytes) -> object:
            decoded.append(len(data))
            return msgspec.json.decode(data)

    class Parser:
        def __init__(self, text: str) -> None:
            raise AssertionError("the parser that takes 2 microseconds a byte")

    monkeypatch.setattr(fastjson, "msgspec", SimpleNamespace(json=Json))
    monkeypatch.setattr(fastjson, "_Parser", Parser)
    with pytest.raises(BadBody):
        fastjson.loads(body)
    assert len(decoded) == 2 and sum(decoded) <= 5 * len(body)
    at = 0
    between = b""
    for match in fastjson._UNQUOTED.finditer(body):
        between += body[at : match.start()]
        at = match.end()
    assert not re.search(rb'["A-Za-z_$0-9]', between + body[at:]), "a look that began here came to nothing"


@given(st.binary(max_size=60) | st.text(st.sampled_from('{}[]:,"01a \\'), max_size=30).map(str.encode))
def test_any_bytes_are_a_value_or_a_bad_body(data: bytes) -> None:
    with contextlib.suppress(BadBody):
        fastjson.loads(data)


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text(st.characters(codec="utf-8")),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(st.characters(codec="utf-8")), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(JSON_VALUES)
def test_strict_json_reads_the_same_through_the_relaxed_parser(value: object) -> None:
    text = json.dumps(value)
    assert fastjson._Parser(text).value(0) == value


def test_nulls_are_left_out_and_keys_sorted() -> None:
    assert fastjson.dumps({"b": None, "c": [{"y": None, "x": 1}], "a": 1}) == b'{"a":1,"c":[{"x":1}]}'


def test_javas_unquoted_offsets_are_read() -> None:
    value = fastjson.loads(java_samples()["consumerOffset(code 43)"]["text"].encode())
    assert value["offsetTable"] == {"T@CG": {"0": 5, "1": 7}}
    assert decode_data_version(java_bytes("dataVersion(code 322 body)")).counter == 3
