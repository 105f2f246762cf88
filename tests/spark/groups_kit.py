"""Groups of real broker processes for tests of jobs over them: messages known byte by byte, planted rot."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from dledger.client.message import Message, MessageQueue
from dledger.client.producing.sync_producer import Producer
from dledger.local.cluster import MIB, ClusterSpec, LocalCluster, find_base_port

QUEUES = 4
UNDISTURBED = {"scrubBytesPerSecond": "0", "auditBytesPerSecond": "0"}
"""Nobody repairs what an audit is to find, and scans take no longer than they must."""


@contextmanager
def running_group(
    directory: Path, *, registered_at: LocalCluster | None = None, **settings: str
) -> Iterator[LocalCluster]:
    """Three brokers and a NameServer; they register at the NameServer of another group, too.

    `settings`: of the brokers; `group` is the name of the group.
    """
    spec = ClusterSpec(
        base_port=find_base_port(start=26000),
        group=settings.pop("group", "broker-a"),
        segment_size=9 * MIB,
        broker={**UNDISTURBED, **settings},
    )
    if registered_at is not None:
        addresses = f"127.0.0.1:{spec.namesrv_port};{registered_at.namesrv_addr}"
        spec.broker["namesrvAddr"] = addresses
    group = LocalCluster.create(directory, spec)
    group.start()
    try:
        yield group
    finally:
        group.stop()


def send(group: LocalCluster, topic: str, bodies: Sequence[bytes]) -> dict[tuple[str, int, int], bytes]:
    """Send them to this group, into its queues in turns. (group, queue, offset) -> body."""
    found = {}
    with Producer("PG_groups", group.namesrv_addr) as producer:
        for number, body in enumerate(bodies):
            queue = MessageQueue(topic, group.spec.group, number % QUEUES)
            result = producer.send(Message(topic, body), queue)
            found[group.spec.group, result.queue.queue_id, result.queue_offset] = body
    group.wait_caught_up()
    return found


def plant_rot(group: LocalCluster, node: str, body: bytes) -> None:
    """Flip the first byte of a body, which must not be compressed, on one node's disk."""
    for path in sorted((group.store(node) / f"dledger-{node}" / "data").iterdir()):
        at = path.read_bytes().find(body)
        if at >= 0:
            with path.open("r+b") as file:
                file.seek(at)
                file.write(bytes([body[0] ^ 0xFF]))
            return
    raise AssertionError(f"{node} does not hold this body")
