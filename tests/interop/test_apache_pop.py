"""Our pop consumer against Apache's own brokers, 5.4."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from dledger import Message, PopConsumer, PopOptions, Producer
from dledger.local.cluster import find_base_port
from tests.interop.apache import ApacheGroup
from tests.interop.conftest import rocketmq_libraries

pytestmark = pytest.mark.interop

COUNT = 60
LIMIT_S = 60


def test_our_pop_consumer_works_with_apache_s_brokers(tmp_path: Path) -> None:
    """Each message comes once, but for one that it forgets and one that it gives back: those come again."""
    group = ApacheGroup(tmp_path / "apache", rocketmq_libraries(5), find_base_port(start=25000))
    group.start()
    try:
        options = PopOptions(invisible_s=10.0, poll_s=5.0)
        with Producer("PG", group.namesrv_addr) as producer:
            producer.create_topic("Popped", 2)
            for number in range(COUNT):
                producer.send(Message("Popped", str(number).encode(), tags="a"))
        namesrv = group.namesrv_addr
        with PopConsumer("CG_pop", namesrv, topic="Popped", from_where="first", options=options) as one:
            times: dict[int, list[int]] = {}
            deadline = time.monotonic() + LIMIT_S
            while time.monotonic() < deadline and sum(map(len, times.values())) < COUNT + 2:
                for message in one.pop(5.0):
                    number = int(message.body)
                    times.setdefault(number, []).append(message.reconsume_times)
                    assert message.topic == "Popped" and message.tags == "a"
                    if message.reconsume_times == 0 and number == 7:
                        one.change_invisible(message, 1.0)
                    elif message.reconsume_times or number != 11:
                        one.ack(message)
        assert sorted(times) == list(range(COUNT))
        assert {number: seen for number, seen in times.items() if seen != [0]} == {7: [0, 1], 11: [0, 1]}
    finally:
        group.stop()
