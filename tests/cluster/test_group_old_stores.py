"""Stores that earlier versions of this program wrote, opened by this one.

`data/stores-of-21-november.json.xz`: three nodes of the commit "The options that both audits share are
defined once" (21 November 2026): 120 messages of a topic with two queues, a killed leader after 60, stopped
by SIGTERM. That program knew no second copy of the hard state, no `members`, no `begins`, no boundary
snapshots.

`data/stores-of-25-november.json.xz`: three nodes of the last version with hand-coded state, whose log begins
at entry 70, at a boundary snapshot: 80 messages of a megabyte each (the first 40 compressed) in a topic with
two queues, a killed leader after 20, a consumer group that committed 26 and 24 of them, stopped by SIGTERM.

Path -> [size, content without the zeros at its end].
"""

from __future__ import annotations

import json
import lzma
from base64 import b64decode
from pathlib import Path

import pytest

from dledger.client.consuming.offsets import FromWhere
from dledger.client.consuming.sync_consumers import PullConsumer
from dledger.client.message import Message
from dledger.client.producing.sync_producer import Producer
from dledger.local.cluster import ClusterSpec, LocalCluster, find_base_port
from tests.audit.engine import audit

DATA = Path(__file__).parent / "data"
FIRST, TRIMMED = DATA / "stores-of-21-november.json.xz", DATA / "stores-of-25-november.json.xz"
SEGMENT_SIZE = 9 * 1024 * 1024
OLD, NEW = 120, 30


def unpack(stores: Path, root: Path) -> None:
    for name, (size, content) in json.loads(lzma.decompress(stores.read_bytes())).items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b64decode(content))
        with path.open("r+b") as file:
            file.truncate(size)


@pytest.mark.slow
def test_the_stores_of_the_first_version_serve_fail_over_and_audit_clean(tmp_path: Path) -> None:
    spec = ClusterSpec(base_port=find_base_port(), segment_size=SEGMENT_SIZE, pool_segments=1)
    group = LocalCluster.create(tmp_path, spec)
    unpack(FIRST, tmp_path / "store")
    stores = [tmp_path / "store" / node for node in spec.node_ids]
    assert audit(stores).exit_code == 0
    group.start()
    try:
        with Producer("PG_old", group.namesrv_addr) as producer:
            for number in range(OLD, OLD + NEW):
                producer.send(Message("Old", b"message %d " % number))
                if number == OLD + NEW // 2:
                    killed = group.kill_leader()
        group.start_node(killed.node)
        group.wait_caught_up()
        assert messages(group) == list(range(OLD + NEW))
    finally:
        group.stop()
    assert audit(stores).exit_code == 0


@pytest.mark.slow
def test_stores_whose_log_begins_at_a_snapshot_serve_with_all_their_state(tmp_path: Path) -> None:
    spec = ClusterSpec(base_port=find_base_port(), segment_size=SEGMENT_SIZE, pool_segments=1)
    group = LocalCluster.create(tmp_path, spec)
    unpack(TRIMMED, tmp_path / "store")
    stores = [tmp_path / "store" / node for node in spec.node_ids]
    assert audit(stores).exit_code == 0
    group.start()
    try:
        with PullConsumer("CG_old", group.namesrv_addr) as consumer:
            queues = consumer.queues("Old")
            assert [consumer.committed(queue) for queue in queues] == [26, 24]
            assert sum(consumer.highest(queue) for queue in queues) == 80
        with Producer("PG_old", group.namesrv_addr) as producer:
            producer.send(Message("Old", b"one more"))
            killed = group.kill_leader()
            producer.send(Message("Old", b"and another"))
        group.start_node(killed.node)
        group.wait_caught_up()
        with PullConsumer("CG_old", group.namesrv_addr) as consumer:
            assert sum(consumer.highest(queue) for queue in queues) == 82
            assert [consumer.committed(queue) for queue in queues] == [26, 24]
    finally:
        group.stop()
    assert audit(stores).exit_code == 0


def messages(group: LocalCluster) -> list[int]:
    """Numbers of all messages of the topic."""
    found: list[int] = []
    with PullConsumer("CG_old", group.namesrv_addr) as consumer:
        consumer.assign(consumer.queues("Old"), start=FromWhere.FIRST)
        while len(found) < OLD + NEW and (taken := consumer.poll(timeout_s=5.0)):
            found += [int(message.body.split()[1]) for message in taken]
    return sorted(found)
