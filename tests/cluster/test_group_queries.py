"""Our client on a real group: consumers by SQL, messages by key, at one leader and at the next."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from dledger import BrokerRefused, Message, Producer, PullConsumer, PushConsumer, ReceivedMessage, Sql
from dledger.local.cluster import LocalCluster, wait_for
from tests.audit.engine import audit

LIMIT_S = 30


def send(group: LocalCluster, first: int, last: int) -> list[str]:
    """Numbered messages; their unique keys."""
    with Producer("PG", group.namesrv_addr) as producer:
        return [
            producer.send(
                Message("Q", b"%d" % number, keys=f"k{number} all", properties={"number": str(number)})
            ).message_id
            for number in range(first, last)
        ]


def test_by_sql_and_by_key_at_one_leader_and_the_next(new_group: Callable[..., LocalCluster]) -> None:
    group = new_group()
    group.create_topic("Q", 2)
    got: set[bytes] = set()
    lock = threading.Lock()

    def listen(message: ReceivedMessage) -> None:
        with lock:
            got.add(message.body)

    consumer = PushConsumer("CG", group.namesrv_addr, listen, from_where="first")
    consumer.subscribe("Q", Sql("number BETWEEN 5 AND 30 AND number <> 7"))
    with consumer, PullConsumer("reader", group.namesrv_addr) as reader:
        unique = send(group, 0, 20)

        def wanted(last: int) -> set[bytes]:
            return {b"%d" % number for number in range(5, min(last, 31)) if number != 7}

        wait_for(lambda: got == wanted(20) or None, LIMIT_S, lambda: f"{got}")
        group.kill_leader()
        unique += send(group, 20, 40)
        wait_for(lambda: got == wanted(40) or None, LIMIT_S, lambda: f"{got}")
        assert [message.body for message in reader.query_by_key("Q", "k3")] == [b"3"]
        assert [message.body for message in reader.query_by_key("Q", "k33")] == [b"33"]
        every = reader.query_by_key("Q", "all")
        assert [message.body for message in every] == [b"%d" % number for number in range(40)]
        assert len(reader.query_by_key("Q", "all", most=5)) == 5
        middle = every[20].store_timestamp_ms
        assert reader.query_by_key("Q", "all", begin_ms=middle)[0].store_timestamp_ms >= middle
        for number in (0, 39):
            found = reader.query_by_unique_key("Q", unique[number])
            assert found is not None and found.body == b"%d" % number
        assert reader.query_by_unique_key("Q", "none") is None
        assert reader.query_by_key("Q", "k100") == []
    for node in group.spec.node_ids:
        if node not in group.running():
            group.restart_node(node)
    group.wait_caught_up()
    group.stop()
    report = audit([group.store(node) for node in group.spec.node_ids])
    # The files of a node that was just restarted may still follow the log, which is information.
    assert [found for found in report.ordered() if found.code.startswith("KEY") and found.severity] == []


def test_a_condition_that_is_wrong_is_told(group: LocalCluster) -> None:
    group.create_topic("Wrong")
    with PullConsumer("reader", group.namesrv_addr) as reader:
        reader.subscribe("Wrong", Sql("a >"))
        reader.assign(reader.queues("Wrong"), start="first")
        assert reader.poll(1.0) == []  # the log of the client says what the broker says


def test_what_a_query_must_have(group: LocalCluster) -> None:
    group.create_topic("Q")
    with PullConsumer("reader", group.namesrv_addr) as reader:
        with pytest.raises(Exception, match="give 1 to 64"):
            reader.query_by_key("Q", "a", most=100)
        with pytest.raises(Exception, match="an empty key"):
            reader.query_by_key("Q", "")
        with pytest.raises(BrokerRefused):
            reader.query_by_key("Q", "k" * 40_000)
