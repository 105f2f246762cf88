"""Where a new group begins at real brokers, which have the first message of each queue in memory."""

from __future__ import annotations

import time

from dledger import LitePullConsumer, Message, MessageQueue, Producer, PullConsumer, PushConsumer
from dledger.local.cluster import LocalCluster, wait_for

LIMIT_S = 60


def test_a_new_group_begins_where_it_is_told(group: LocalCluster) -> None:
    where = group.namesrv_addr
    got: dict[str, list[bytes]] = {"last": [], "time": [], "lite": [], "new": []}
    with Producer("PG_begin", where) as producer:
        producer.create_topic("Begin", queues=1)
        for _ in range(5):
            producer.send("Begin", b"before")
        queue = MessageQueue("Begin", group.spec.group, 0)
        producer.send("Begin", b"before")
        at_ms = int(time.time() * 1000) + 10
        time.sleep(0.02)  # what follows has a later store time
        with (
            PushConsumer("CG_last", where, lambda m: got["last"].append(m.body), topic="Begin"),
            PushConsumer("CG_new", where, lambda m: got["new"].append(m.body), topic="BeginLater"),
            LitePullConsumer("CG_lite", where, topic="Begin") as lite,
            PullConsumer("CG_last", where) as looking,
            PullConsumer("CG_never", where) as never,
        ):
            assert looking.committed(queue) == 6 and never.committed(queue) is None
            for _ in range(3):
                producer.send("Begin", b"after")
            producer.send("BeginLater", b"the first one")
            with PushConsumer(
                "CG_time",
                where,
                lambda m: got["time"].append(m.body),
                topic="Begin",
                from_where="timestamp",
                from_timestamp_ms=at_ms,
            ):

                def all_there() -> bool:
                    got["lite"] += [message.body for message in lite.poll(0.1)]
                    return all(len(got[name]) >= 3 for name in ("last", "time", "lite")) and bool(got["new"])

                wait_for(all_there, LIMIT_S, lambda: f"{got}")
    assert got == {name: [b"after"] * 3 for name in ("last", "time", "lite")} | {"new": [b"the first one"]}


def test_messages_between_two_members_are_not_lost(group: LocalCluster) -> None:
    """The first member ends before it has got anything; the next one begins where the first one did."""
    where = group.namesrv_addr
    got: list[bytes] = []
    with Producer("PG_between", where) as producer:
        producer.create_topic("Between", queues=4)
        for number in range(8):
            producer.send("Between", b"before %d" % number)
        with PushConsumer("CG_between", where, lambda m: got.append(m.body), topic="Between"):
            pass
        for number in range(8):
            producer.send("Between", b"between %d" % number)
        producer.create_topic("Between", queues=6)
        for number in (4, 5):
            queue = MessageQueue("Between", group.spec.group, number)
            producer.send(Message("Between", b"new queue %d" % number), queue)
        with PushConsumer("CG_between", where, lambda m: got.append(m.body), topic="Between"):
            wait_for(lambda: len(got) >= 10, LIMIT_S, lambda: f"{got}")
    assert sorted(got) == sorted([*(b"between %d" % n for n in range(8)), b"new queue 4", b"new queue 5"])
