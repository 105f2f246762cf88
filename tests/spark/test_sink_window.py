"""A stream's batch that retention may have overtaken: it is refused, as its rows cannot be recognised."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("pyarrow")

from dledger.remoting.codes import RequestCode
from dledger.spark import sink_options
from dledger.spark.option_values import BadOption
from dledger.spark.sink_brokers import WINDOW_MARGIN_MS, Begun, begun_batch, check_brokers, with_topic
from tests.client.fake_cluster import FakeCluster, eventually

BEGUN_MS = 1_700_000_000_000
SPARK_4 = """v1
{"batchWatermarkMs":0,"batchTimestampMs":%d,"conf":{"spark.sql.shuffle.partitions":"2"}}
{"Orders:broker-a:0@0a1b2c.17":150}"""


def checkpoint(root: Path, planned: Sequence[int], ended: Sequence[int], text: str = SPARK_4) -> str:
    """A checkpoint as Spark writes it; batch n is planned n seconds after the first."""
    for part, numbers in (("offsets", planned), ("commits", ended)):
        (root / part).mkdir(parents=True)
        for number in numbers:
            content = text % (BEGUN_MS + 1000 * number) if "%" in text else text
            (root / part / str(number)).write_text(content)
            (root / part / f".{number}.crc").write_bytes(b"crc")
    return str(root)


@pytest.mark.parametrize(
    ("planned", "ended", "found"),
    [
        ((0, 1, 10), (0, 1), Begun(10, BEGUN_MS + 10_000)),
        ((0,), (), Begun(0, BEGUN_MS)),
        ((9, 10), (9, 10), None),
        ((), (), None),
    ],
)
def test_the_batch_that_was_begun_is_in_the_checkpoint(
    tmp_path: Path, planned: Sequence[int], ended: Sequence[int], found: Begun | None
) -> None:
    place = checkpoint(tmp_path / "a b", planned, ended)
    for form in (place, f"file://{place}", f"file:{place}"):
        assert begun_batch(form) == found


@pytest.mark.parametrize(
    "text", ["", "v1", "v9\n[]\n", "v1\n{}\n", "v1\nnot json\n", 'v1\n{"batchTimestampMs":null}']
)
def test_a_checkpoint_that_says_nothing_is_no_error(tmp_path: Path, text: str) -> None:
    """Another release of Spark may write it in another way, and it may be where only Java reads it."""
    assert begun_batch(checkpoint(tmp_path / "c", (0,), (), text)) is None
    for place in ("", str(tmp_path / "nowhere"), "s3a://bucket/check", "hdfs://host/check"):
        assert begun_batch(place) is None


def checked(place: str, oldest_ms: int | None, lowest: int, topic: str = "T", one: bool = False) -> None:
    """Check the brokers of a fake cluster. `lowest`: the first offset of a queue that retention has left."""

    async def test() -> None:
        async with FakeCluster(topics={"T": 4}) as cluster:
            cluster.lowest["T", 2] = lowest
            for broker in cluster.brokers[:1] if one else cluster.brokers:
                broker.oldest_ms = oldest_ms
            given = {"servers": cluster.namesrv, "exactlyOnce": "true", "checkpointLocation": place}
            options = sink_options.parse({**given, "topic": topic} if topic else given)
            await asyncio.to_thread(check_brokers, options)

    asyncio.run(test())


@pytest.mark.parametrize("one", [False, True], ids=["all brokers", "one broker"])
def test_a_batch_older_than_the_log_is_refused(tmp_path: Path, one: bool) -> None:
    """One broker is enough, as it may lead when the rows are sent again."""
    place = checkpoint(tmp_path / "c", (0, 1), (0,))
    with pytest.raises(BadOption) as refused:
        checked(place, BEGUN_MS + 3_600_000, 100, one=one)
    for part in (
        f"option exactlyOnce: batch 1 of the checkpoint {place} was begun at 2023-11-14T22:13:21+00:00",
        "has only what was stored from 2023-11-14T23:13:20+00:00 on",
        "rows of topic T",
        "run the query once without the option exactlyOnce",
    ):
        assert part in str(refused.value)
    with pytest.raises(BadOption, match="was begun at"):
        checked(place, BEGUN_MS + 1000 - WINDOW_MARGIN_MS + 1, 100)


def test_what_is_in_the_log_or_not_known_is_written(tmp_path: Path) -> None:
    place, late = checkpoint(tmp_path / "c", (0, 1), (0,)), BEGUN_MS + 3_600_000
    checked(place, BEGUN_MS + 1000 - WINDOW_MARGIN_MS, 100)
    checked(place, late, 0)  # a log that is younger than the batch, of which nothing was deleted
    checked(place, None, 100)
    checked(place, late, 100, topic="")
    checked(place, late, 100, topic="NotThereYet")
    checked(checkpoint(tmp_path / "ended", (0, 1), (0, 1)), late, 100)
    checked("", late, 100)


def test_it_waits_for_a_leader(tmp_path: Path) -> None:
    place = checkpoint(tmp_path / "c", (0, 1), (0,))

    async def test() -> None:
        async with FakeCluster(topics={"T": 4}) as cluster:
            cluster.lowest["T", 2] = 100
            for broker in cluster.brokers:
                broker.oldest_ms = BEGUN_MS + 3_600_000
            cluster.lead(-1)
            given = {"servers": cluster.namesrv, "exactlyOnce": "true", "checkpointLocation": place}
            options = sink_options.parse({**given, "topic": "T"})
            checking = asyncio.create_task(asyncio.to_thread(check_brokers, options))
            await eventually(
                lambda: any(RequestCode.GET_MIN_OFFSET in one.requests for one in cluster.brokers)
            )
            assert not checking.done()
            cluster.lead(1)
            await checking

    with pytest.raises(BadOption, match="batch 1 of the checkpoint"):
        asyncio.run(test())


def with_topics(topic: str, **options: str) -> sink_options.SinkOptions:
    """What the driver finds in a cluster with the topics Orders and Payments, which creates others."""

    async def test() -> sink_options.SinkOptions:
        async with FakeCluster(topics={"Orders": 4, "Payments": 2, "TBW102": 8}) as cluster:
            given = sink_options.parse({"servers": cluster.namesrv, "topic": topic, **options})
            found = await asyncio.to_thread(with_topic, given)
            assert (topic in cluster.topics) == (topic == "Orders" or options.get("createTopic") == "true")
            return found

    return asyncio.run(test())


def test_a_target_topic_that_does_not_exist_is_refused_unless_it_is_to_be_created() -> None:
    assert with_topics("Orders").queues == ()
    with pytest.raises(BadOption, match=r"option topic: there is no topic 'Ordres': did you mean 'Orders'\?"):
        with_topics("Ordres")
    with pytest.raises(BadOption, match=r"there are Orders, Payments\. Create it with .* createTopic"):
        with_topics("Zzz", createTopic="false")
    with_topics("Zzz", createTopic="true")


def test_the_driver_fixes_the_queues_for_exactly_once() -> None:
    found = with_topics("Orders", exactlyOnce="true").queues
    assert [queue.queue_id for queue in found] == [0, 1, 2, 3]
