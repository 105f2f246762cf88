"""Options of the data source: checked without Spark."""

from __future__ import annotations

import pytest

from dledger.spark.option_values import BadOption
from dledger.spark.options import ALIASES, OPTIONS, parse


def test_names_are_not_case_sensitive() -> None:
    options = parse({"PATH": "/a,/b", "VIEW": "Entries", "indexranges": "5-9,0-1,2"}, "batch")
    assert (options.paths, options.view) == (("/a", "/b"), "entries")
    assert options.index_ranges == ((0, 2), (5, 9)), "sorted, and neighbours are one"


def test_paths_with_commas_come_as_json() -> None:
    assert parse({"path": '["/a,b", "/c"]'}).paths == ("/a,b", "/c")


def test_several_paths_of_load_are_paths() -> None:
    assert parse({"paths": '["/a","/b"]'}).paths == ("/a", "/b")


def test_names_of_other_connectors_are_understood() -> None:
    options = parse({"nameServer": "h:1;i:2", "topic": "a, b", "subExpression": "x || y"})
    assert options.servers == "h:1;i:2"
    assert (options.topics.named, options.tags) == (("a", "b"), ("x", "y"))
    assert set(ALIASES.values()) <= set(OPTIONS)


def test_lists_come_as_json_too() -> None:
    given = {"path": "/a", "group": '["g", "h"]', "subscribe": '["a", "b"]', "tags": '["x y", "a, b"]'}
    options = parse(given, "batch")
    assert options.groups == ("g", "h")
    assert options.topics.named == ("a", "b")
    assert options.tags == ("x y", "a, b")
    assert parse({"path": "/a", "keys": '["a,b"]'}, "batch").keys == {"a,b"}


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("1700000000123", 1_700_000_000_123),
        ("2023-11-14T22:13:20.123", 1_700_000_000_123),
        ("2023-11-14T23:13:20.123+01:00", 1_700_000_000_123),
        ("2023-11-14 22:13:20Z", 1_700_000_000_000),
        ("2023-11-14", 1_699_920_000_000),
        ("0", 0),
    ],
)
def test_a_time_is_milliseconds_or_a_text_in_iso_form(text: str, ms: int) -> None:
    options = parse({"path": "/a", "startingTimestamp": text}, "batch")
    assert options.starting_ms == ms


def test_offsets_are_understood_as_kafka_writes_them_and_as_checkpoints_do() -> None:
    text = '{"a": {"0": 23, "1": -2}, "b@g/4": 7}'
    options = parse({"path": "/a", "startingOffsets": text}, "stream")
    assert options.starting == {("a", 0): 23, ("a", 1): -2, ("b@g", 4): 7}


def test_defaults_differ_between_batch_and_stream() -> None:
    assert parse({"path": "/a"}, "batch").starting == "earliest"
    assert parse({"path": "/a"}, "stream").starting == "latest"


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({}, "path is missing"),
        ({"path": "127.0.0.1:9876"}, "looks like the address of a NameServer: give it with servers"),
        ({"path": "/a", "provider": "dledger"}, "CREATE TABLE .* Use CREATE TEMPORARY VIEW"),
        ({"path": "/a", "paths": "/b"}, "path and paths are the same option"),
        ({"path": "/a", "vieuw": "scan"}, "did you mean 'view'"),
        ({"path": "/a", "subscribed": "x"}, "did you mean 'subscribe'"),
        ({"path": "/a", "view": "entrys"}, "did you mean 'entries'"),
        ({"path": "/a", "includeValue": "yes"}, "includeValue: 'yes' is not one of true, false"),
        ({"path": "/a", "indexRanges": "9-5"}, "empty or negative"),
        ({"path": "/a", "indexRanges": "a-b"}, "must have the form"),
        ({"path": "/a", "view": "scan", "blockRows": "0"}, "not a positive number"),
        ({"path": "/a", "topic": "x", "subscribe": "y"}, "topic and subscribe are the same option"),
        ({"path": "/a", "view": "entries", "corruptRecords": "skip"}, "'skip' is not one of fail, include"),
        ({"path": "[1]"}, "not a list of texts"),
        ({"path": "/a", "servers": "h:1"}, "exclude each other"),
        ({"servers": " "}, "servers is empty"),
        ({"path": "/a", "view": "entries", "subscribe": "x"}, "subscribe has no effect on view entries"),
        ({"path": "/a", "readFrom": "any"}, "readFrom has no effect with path"),
        ({"servers": "h:1", "readFrom": "Any"}, "readFrom: any has no effect: only leaders answer"),
        ({"servers": "h:1", "readFrom": "all"}, "'all' is not one of leader"),
        (
            {"path": "/a", "topic": "x", "includeSystemTopics": "true"},
            "no effect with subscribe: name the system",
        ),
        ({"path": "/a", "assign": '{"x": [0]}', "includeSystemTopics": "false"}, "no effect with assign"),
        (
            {"servers": "h:1", "indexRanges": "1"},
            "view messages with servers, only with path, or on entries, index",
        ),
        ({"servers": "h:1", "isolation": "all"}, "isolation has no effect on view messages with servers"),
        ({"path": "/a", "maxOffsetsPerTrigger": "9"}, "has no effect on a batch, only on a stream"),
        ({"path": "/a", "subscribe": "x", "assign": '{"x": [0]}'}, "subscribe and assign exclude"),
        ({"path": "/a", "subscribe": ","}, "names no topic"),
        ({"path": "/a", "subscribePattern": "("}, "not a regular expression"),
        ({"path": "/a", "assign": '{"x": 0}'}, "list of queue ids"),
        ({"path": "/a", "assign": "x"}, "not JSON"),
        ({"path": "/a", "tags": "a |"}, "not a tag expression"),
        ({"path": "/a", "tags": "amount > 5"}, "'amount > 5' is no tag: .* SQL92 .* column headers"),
        ({"path": "/a", "tags": "web,app"}, "'web,app' is no tag: write 'A .. B' for several"),
        ({"path": "/a", "tags": "a IS NOT NULL"}, "is no tag"),
        ({"path": "/a", "tags": "['a']"}, "not a JSON list"),
        ({"path": "/a", "tags": "[]"}, "at least one tag"),
        ({"path": "/a", "keys": "a,b"}, "separate keys by single spaces"),
        (
            {"path": "/a", "subscribe": "orders;payments"},
            "holds ';': .*separated by commas",
        ),
        ({"path": "/a", "subscribe": "['orders']"}, "subscribe: .* is not a JSON list"),
        ({"path": "/a", "subscribe": "[]"}, "names no topic"),
        ({"path": "/a", "startingTimestamp": "1700000000"}, "looks like seconds.* 1700000000000"),
        ({"path": "/a", "startingTimestamp": "1700000000000000"}, "looks like microseconds"),
        (
            {"path": "/a", "startingTimestamp": "2026-01-02", "endingTimestamp": "2026-01-01T12:00+01:00"},
            "endingTimestamp .* must be after startingTimestamp .* nothing would be read",
        ),
        ({"path": "/a", "startingOffsets": "latest"}, "'latest' is not one of earliest"),
        ({"path": "/a", "startingOffsets": '{"a": {"0": -1}}'}, "-1 .latest. is for streams"),
        ({"path": "/a", "startingOffsets": '{"a": {"x": 1}}'}, "must have the form"),
        (
            {"path": "/a", "startingOffsets": '{"a": {"0": 9}}', "endingOffsets": '{"a/0": 8}'},
            "a/0 ends at 8, which is before its start 9 .startingOffsets.: nothing would be read",
        ),
        ({"path": "/a", "endingOffsets": '{"a": {"0": -2}}'}, "-2 .earliest. would read nothing"),
        (
            {"path": "/a", "startingTimestamp": "monday"},
            "'monday' is not a time: give milliseconds",
        ),
        (
            {"path": "/a", "startingOffsetsByTimestamp": '{"a": {"0": "noon"}}'},
            "startingOffsetsByTimestamp: 'noon' is not a time",
        ),
        ({"path": "/a", "startingOffsetsByTimestamp": '{"a": 5}'}, "must have the form"),
        ({"path": "/a", "startingOffsetsByTimestamp": '{"a": {"0": 1700000000}}'}, "looks like seconds"),
        (
            {
                "path": "/a",
                "startingOffsetsByTimestamp": '{"a": {"0": 1774828800000}}',
                "endingOffsetsByTimestamp": '{"a": {"0": 1774828800000}}',
            },
            "time of a/0 must be after that of startingOffsetsByTimestamp: nothing",
        ),
        (
            {"path": "/a", "startingOffsetsByTimestampStrategy": "error"},
            "no effect without startingOffsetsByTimestamp or startingTimestamp",
        ),
        (
            {
                "path": "/a",
                "startingTimestamp": "1774828800000",
                "startingOffsetsByTimestampStrategy": "earliest",
            },
            "'earliest' is not one of error, latest",
        ),
        ({"path": "/a", "maxRecordsPerPartition": "0"}, "not a positive number"),
        ({"path": "/a", "minOffsetsPerTrigger": "9"}, "has no effect on a batch, only on a stream"),
    ],
)
def test_what_is_wrong_is_named(options: dict[str, str], text: str) -> None:
    with pytest.raises(BadOption, match=text):
        parse(options, "batch")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"path": "/a", "view": "queues"}, "view queues cannot be streamed"),
        ({"path": "/a", "endingOffsets": "latest"}, "has no effect on a stream, only on a batch"),
        (
            {"path": "/a", "offsetType": "log", "startingTimestamp": "1774828800000"},
            "no effect with offsetType log",
        ),
        (
            {"path": "/a", "offsetType": "log", "startingOffsetsByTimestamp": '{"a": {"0": 1774828800000}}'},
            "no effect with offsetType log",
        ),
        ({"path": "/a", "maxTriggerDelay": "5s"}, "no effect without minOffsetsPerTrigger"),
        ({"path": "/a", "minOffsetsPerTrigger": "5", "maxTriggerDelay": "soon"}, "not a duration: .* 15m"),
        (
            {"path": "/a", "minOffsetsPerTrigger": "5", "maxOffsetsPerTrigger": "4"},
            r"minOffsetsPerTrigger \(5\) must not be above maxOffsetsPerTrigger \(4\)",
        ),
    ],
)
def test_what_is_wrong_with_a_stream_is_named(options: dict[str, str], text: str) -> None:
    with pytest.raises(BadOption, match=text):
        parse(options, "stream")


def test_one_time_takes_precedence_over_times_of_queues_and_these_over_offsets() -> None:
    """As in Spark's Kafka source."""
    by_queue = {
        "startingOffsetsByTimestamp": '{"a": {"0": 1774828800000}}',
        "startingOffsets": '{"a": {"0": 3}}',
    }
    some = parse({"path": "/a", **by_queue}, "batch")
    assert (some.starting_ms, some.starting_times, some.starting) == (
        None,
        {("a", 0): 1774828800000},
        "earliest",
    )
    one = parse({"path": "/a", "startingTimestamp": "1774828800002", **by_queue}, "batch")
    assert (one.starting_ms, one.starting_times, one.starting) == (1774828800002, {}, "earliest")
    ends = {"endingOffsetsByTimestamp": '{"a": {"0": 1774828800000}}', "endingOffsets": '{"a": {"0": 3}}'}
    some = parse({"path": "/a", **ends}, "batch")
    assert (some.ending_ms, some.ending_times, some.ending) == (None, {("a", 0): 1774828800000}, "latest")
    one = parse({"path": "/a", "endingTimestamp": "1774828800002", **ends}, "batch")
    assert (one.ending_ms, one.ending_times, one.ending) == (1774828800002, {}, "latest")


def test_times_of_queues_are_milliseconds_or_texts_in_iso_form() -> None:
    text = (
        '{"a": {"0": 1774828800000, "1": "2026-03-30T00:00:00Z", "2": "1774828800000"}, "b/4": 1774828800001}'
    )
    found = parse({"path": "/a", "startingOffsetsByTimestamp": text}, "stream").starting_times
    assert found == {**dict.fromkeys([("a", 0), ("a", 1), ("a", 2)], 1774828800000), ("b", 4): 1774828800001}


@pytest.mark.parametrize(
    ("text", "ms"), [("15m", 900_000), ("90 s", 90_000), ("2H", 7_200_000), ("1d", 86_400_000), ("250", 250)]
)
def test_a_delay_is_written_as_in_spark(text: str, ms: int) -> None:
    options = {"path": "/a", "minOffsetsPerTrigger": "5", "maxTriggerDelay": text}
    assert parse(options, "stream").max_trigger_delay_ms == ms


def test_a_queue_without_a_later_message_is_an_error_only_for_times_of_queues() -> None:
    by_queue = {"path": "/a", "startingOffsetsByTimestamp": '{"a": {"0": 1774828800000}}'}
    assert parse(by_queue).unmatched == "error", "as in Spark's Kafka source"
    assert parse({"path": "/a", "startingTimestamp": "1774828800000"}).unmatched == "latest"
    assert parse({**by_queue, "startingOffsetsByTimestampStrategy": "Latest"}).unmatched == "latest"


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"view": "queues", "maxOffsetsPerTrigger": "5"}, "no effect on view queues"),
        ({"endingOffsets": "latest", "maxOffsetsPerTrigger": "5"}, "only for batches, .* only for streams"),
    ],
)
def test_options_that_fit_neither_a_batch_nor_a_stream_are_an_error_of_load(
    options: dict[str, str], text: str
) -> None:
    with pytest.raises(BadOption, match=text):
        parse({"path": "/a", **options})
