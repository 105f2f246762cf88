"""Topics that real brokers deleted and made again: files and brokers show the same messages, with one id."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow")

import dledger
from dledger.client import Message, MessageQueue, Producer
from dledger.local.cluster import MIB, ClusterSpec, LocalCluster, find_base_port, wait_for
from dledger.spark.option_values import BadOption

pytestmark = pytest.mark.slow

TOPIC, OTHER, GONE = "orders", "payments", "carts"
COLUMNS = ["id", "topic", "partition", "offset", "value"]


@pytest.fixture
def group(tmp_path: Path) -> Iterator[LocalCluster]:
    spec = ClusterSpec(base_port=find_base_port(start=27000), segment_size=9 * MIB)
    cluster = LocalCluster.create(tmp_path / "group", spec)
    cluster.start()
    yield cluster
    cluster.stop()


def send(producer: Producer, group: LocalCluster, topic: str, count: int) -> None:
    for number in range(count):
        queue = MessageQueue(topic, group.spec.group, number % 2)
        producer.send(Message(topic, b"%d" % number), queue)


def rows(**options: Any) -> list[tuple[Any, ...]]:
    table = dledger.read(columns=COLUMNS, **options).read_all()
    return sorted(zip(*(table[name].to_pylist() for name in COLUMNS), strict=True))


def test_files_show_what_brokers_show(group: LocalCluster) -> None:
    live = group.namesrv_addr
    with Producer("PG", live) as producer:
        for topic in (TOPIC, OTHER, GONE):
            producer.create_topic(topic, queues=2)
            send(producer, group, topic, 20)
        before = rows(servers=live, subscribe=TOPIC)
        producer.delete_topic(TOPIC)
        producer.delete_topic(GONE)
        producer.create_topic(TOPIC, queues=2)
        send(producer, group, TOPIC, 6)
    told = rows(servers=live, subscribe=f"{TOPIC},{OTHER}")
    assert len(told) == 26 and len({row[0] for row in told}) == 26

    def same() -> None:
        for node in group.spec.node_ids:
            store = str(group.store(node))
            wait_for(lambda store=store: rows(path=store) == told, 60, f"{node} does not show it")
            assert rows(path=store, subscribe=TOPIC) == [row for row in told if row[1] == TOPIC]
            every = rows(path=store, includeDeleted=True)
            assert len(every) == 20 + 20 + 20 + 6 and len({row[0] for row in every}) == len(every)
            assert set(before) < set(every), "the ids are those that the brokers gave before the deletion"
            with pytest.raises(BadOption, match=f"there is no topic '{GONE}': it was deleted"):
                rows(path=store, subscribe=GONE)

    same()
    group.stop()
    same()
