"""Options of Spark's source and sink `kafka`: each is accepted as it is, or refused with what to do."""

from __future__ import annotations

import pytest

pytest.importorskip("pyarrow")

from dledger.spark import sink_options
from dledger.spark.kafka_options import OF_CONSUMER, OF_SINK, OF_SOURCE, reason, sink_reason
from dledger.spark.option_values import BadOption
from dledger.spark.options import OPTIONS, canonical, parse

VALUES = {
    "kafka.bootstrap.servers": "127.0.0.1:9876",
    "subscribe": "orders",
    "subscribePattern": "ord.*",
    "assign": '{"orders": [0]}',
    "startingOffsets": "earliest",
    "startingOffsetsByTimestamp": '{"orders": {"0": 1774828800000}}',
    "startingTimestamp": "1774828800000",
    "startingOffsetsByTimestampStrategy": "latest",
    "endingOffsets": "latest",
    "endingOffsetsByTimestamp": '{"orders": {"0": 1774828800000}}',
    "endingTimestamp": "1774828800000",
    "failOnDataLoss": "false",
    "includeHeaders": "true",
    "maxOffsetsPerTrigger": "5",
    "minOffsetsPerTrigger": "5",
    "maxTriggerDelay": "5m",
    "minPartitions": "5",
    "maxRecordsPerPartition": "5",
}
"""A value of each option that is accepted."""
NEEDS = {
    "startingOffsetsByTimestampStrategy": {"startingTimestamp": "1774828800000"},
    "maxTriggerDelay": {"minOffsetsPerTrigger": "5"},
}


@pytest.mark.parametrize("name", sorted(VALUES))
def test_what_is_accepted_has_an_effect(name: str) -> None:
    here = OF_SOURCE[name].here
    assert list(canonical({name: VALUES[name]})) == [here]
    mode = OPTIONS[here].mode[0]
    source = {} if here == "servers" else {"servers": "127.0.0.1:9876"}
    plain = parse({**source, **NEEDS.get(name, {})}, mode) if source else None
    assert parse({**source, **NEEDS.get(name, {}), name: VALUES[name]}, mode).given >= {here}
    assert plain is None or here not in plain.given


@pytest.mark.parametrize("name", sorted({**OF_SOURCE, **OF_CONSUMER}))
def test_what_is_not_accepted_is_refused_with_the_reason(name: str) -> None:
    option = {**OF_SOURCE, **OF_CONSUMER}[name]
    assert option.accepted == (name in VALUES)
    for here in filter(None, option.here.split(", ")):
        assert here in OPTIONS, "what is used instead exists"
    if option.accepted:
        return
    written = name.replace("*", "anything")
    for spelling in (written, written.lower(), written.upper()):
        with pytest.raises(BadOption) as caught:
            parse({"servers": "127.0.0.1:9876", spelling: "5"})
        text = str(caught.value)
        said = spelling if "*" in name else name
        assert text.startswith(f"option {said}: it is an option of Kafka's source: "), text
        assert option.note in text
        assert text.count(",") < 10, "no list of all options"
        assert all(here in text for here in option.here.split(", ")[:1])


@pytest.mark.parametrize("name", sorted(OF_SINK))
def test_options_of_kafkas_sink_are_refused_with_the_reason(name: str) -> None:
    option = OF_SINK[name]
    for here in filter(None, option.here.split(", ")):
        assert here in sink_options.OPTIONS, "what is used instead exists"
    if option.accepted:
        assert sink_options.parse({"servers": "127.0.0.1:9876", "topic": "T"}).topic == "T"
        return
    written = name.replace("*", "anything")
    with pytest.raises(BadOption) as caught:
        sink_options.parse({"servers": "127.0.0.1:9876", "topic": "T", written: "5"})
    said = written if "*" in name else name
    text = str(caught.value)
    assert text.startswith(f"option {said}: it is an option of Kafka's sink: {option.note}")
    assert all(here in text for here in option.here.split(", "))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("group_id", "option group_id: it is a setting of Kafka's clients: no consumer group is joined"),
        ("group.id", "no consumer group is joined"),
        ("auto_offset_reset", "startingOffsets says where to begin"),
        ("bootstrap_servers", "write servers"),
        ("bootstrap.servers", "write servers"),
        ("enable.auto.commit", "nothing is committed to a group"),
    ],
)
def test_settings_as_kafkas_clients_write_them(name: str, text: str) -> None:
    with pytest.raises(BadOption, match=text):
        parse({"servers": "127.0.0.1:9876", name: "5"})


def test_settings_of_the_producer_as_kafkas_clients_write_them() -> None:
    for name, text in (
        ("bootstrap.servers", "write servers"),
        ("linger_ms", "maxBatchBytes"),
        ("enable.idempotence", "exactlyOnce"),
    ):
        with pytest.raises(BadOption, match=f"option {name}: it is a setting of Kafka's clients: .*{text}"):
            sink_options.parse({"servers": "127.0.0.1:9876", "topic": "T", name: "5"})


def test_other_names_have_no_such_reason() -> None:
    assert reason("subscribe") is None
    assert reason("kafka") is None
    assert reason("subscribd") is None and sink_reason("topc") is None
