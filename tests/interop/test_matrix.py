"""Bodies that we compress and Java unfolds; traces of ours that mqadmin reads."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dledger import (
    ClientOptions,
    CompressionType,
    Message,
    Producer,
    ProducerOptions,
    PushConsumer,
)
from dledger.local.cluster import LocalCluster, wait_for
from tests.interop.conftest import Driver, java_client
from tests.interop.test_java_client import received
from tests.interop.test_mqadmin import mqadmin

pytestmark = pytest.mark.interop

READY_S = 60
DELIVERY_LIMIT_S = 90


def test_java_unfolds_every_compression(
    group: LocalCluster, drive: Callable[..., Driver], topics: Callable[[str], str]
) -> None:
    where, packed = group.namesrv_addr, topics("Packed")
    unpacking = drive(java_client(5), "consume", where, packed, "CG_packed")
    for compress_type in CompressionType:
        with Producer("PG_packed", where, ProducerOptions(compress_type=compress_type)) as packing:
            packing.send(
                Message(packed, b"%d" % compress_type.value + b" " * 5000, tags="TagA", keys="packed")
            )
    wanted = {compress_type.value for compress_type in CompressionType}
    unpacking.wait(lambda events: received(events) >= wanted, DELIVERY_LIMIT_S)


@pytest.mark.parametrize("major", [4, 5])
def test_mqadmin_reads_our_traces(major: int, group: LocalCluster, topics: Callable[[str], str]) -> None:
    topic = topics(f"Traced{major}")
    client = ClientOptions(trace=True, namespace="INST" if major == 5 else "")
    got: list[bytes] = []
    with Producer("PG_traced", group.namesrv_addr, client=client) as producer:
        if client.namespace:
            producer.create_topic(topic)
        sent = producer.send(Message(topic, b"body"))
        with PushConsumer(
            "CG_traced",
            group.namesrv_addr,
            lambda message: got.append(message.body),
            topic=topic,
            from_where="first",
            client=client,
        ):
            wait_for(lambda: got or None, READY_S, lambda: "nothing consumed")

    def printed() -> str | None:
        text, _ = mqadmin(major, group, f"queryMsgTraceById -i {sent.message_id}").communicate(timeout=60)
        return text if "Sub " in text else None

    text = wait_for(printed, READY_S, lambda: "no trace")
    lines = [line.split() for line in text.splitlines() if line.strip()]
    pub, sub = (next(words for words in lines if words[0] == kind) for kind in ("Pub", "Sub"))
    assert (pub[1], pub[-1]) == ("PG_traced", "success")
    assert (sub[1], sub[-1]) == ("CG_traced", "success")
