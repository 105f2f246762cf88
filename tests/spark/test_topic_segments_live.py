"""A read of some topics from the stores of real brokers, running or not, gives what a full read gives."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("pyarrow")

import dledger
from dledger.client import Message, MessageQueue, Producer
from dledger.local.cluster import MIB, ClusterSpec, LocalCluster, find_base_port, wait_for
from dledger.spark import views

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
BODY_BYTES = 64 * 1024


@pytest.fixture
def group(tmp_path: Path) -> Iterator[LocalCluster]:
    spec = ClusterSpec(base_port=find_base_port(start=27000), segment_size=9 * MIB)
    cluster = LocalCluster.create(tmp_path / "group", spec)
    cluster.start()
    yield cluster
    cluster.stop()


def rows(
    store: Path, topic: str, monkeypatch: pytest.MonkeyPatch, *, whole: bool
) -> tuple[list[object], int]:
    """Queue, offset and index of each message, and how many segments were read."""
    seen: set[int] = set()
    plain = views.packed

    def packed(found: object, *rest: object) -> object:
        known = list(found)  # type: ignore[call-overload]
        seen.update(piece.task.start for piece in known)
        return plain(known, *rest)  # type: ignore[arg-type]

    with monkeypatch.context() as patched:
        patched.setattr(views, "packed", packed)
        if whole:
            patched.setattr(views, "segments_of", lambda *_: None)
        reader = dledger.read(str(store), subscribe=topic, columns=["partition", "offset", "logIndex"])
        return sorted(zip(*(column.to_pylist() for column in reader.read_all()), strict=True)), len(seen)


def test_topics_of_real_stores(group: LocalCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    group.create_topic("noise", 4)
    group.create_topic("rare", 2)
    group.create_topic("nothing", 1)
    rng = random.Random(5)

    def send(topic: str, count: int, size: int = BODY_BYTES) -> None:
        with Producer(f"PG_{topic}", group.namesrv_addr) as producer:
            for number in range(count):
                queue = MessageQueue(topic, group.spec.group, number % 2)
                producer.send(Message(topic, rng.randbytes(size)), queue)

    stores = [group.store(node) for node in group.spec.node_ids]

    def same(at_most: float) -> None:
        """Each store gives the same, of which `rare` needs no more than this share of its segments."""
        for store in stores:
            for topic in ("noise", "rare", "nothing"):
                before, _ = rows(store, topic, monkeypatch, whole=True)
                found, count = rows(store, topic, monkeypatch, whole=False)
                after, every = rows(store, topic, monkeypatch, whole=True)  # a follower may hear of more
                assert set(before) <= set(found) <= set(after) and (topic == "nothing" or found)
                if topic != "noise":
                    assert count <= at_most * every, (topic, count, every)

    send("rare", 3, 10)
    send("noise", 600)
    send("rare", 3, 10)
    send("noise", 300)
    group.wait_caught_up()
    same(1.0)  # running: what is newer than the state file is read
    with Producer("PG_delete", group.namesrv_addr) as producer:
        producer.delete_topic("rare")
    group.create_topic("rare", 2)
    send("rare", 2, 10)
    send("noise", 400)
    group.stop()
    same(0.85)  # what is older than the deletion, and the last segment
    group.start()
    group.wait_leader()
    send("noise", 300)
    group.wait_caught_up()
    peers = group.broker_properties(group.spec.node_ids[0])["dLegerPeers"]
    index = group.committed_index(group.wait_leader()) - 700
    command = [sys.executable, "-m", "dledger", "delete-before", str(index), "--peers", peers]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=60)

    def freed() -> bool:
        return all(int(group.state(node)["begin_index"]) > index - 200 for node in group.spec.node_ids)

    wait_for(freed, 60, "retention did not free all segments everywhere")  # one has some 140 entries
    send("rare", 2, 10)
    same(1.0)
    group.stop()
    for store in stores:
        found, count = rows(store, "rare", monkeypatch, whole=False)
        assert found == rows(store, "rare", monkeypatch, whole=True)[0] and count <= 3
