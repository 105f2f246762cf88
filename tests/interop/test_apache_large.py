"""A large sample of the stores of Apache's brokers (D8): 100,000 messages in a group of 5.4.0.

Batches, delayed messages and transactions are among them. The master is killed on the way, and there are some
twenty segments.

Store n0 has one directory, n1 is spread over two outside of its store, n2 over two inside.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

pytest.importorskip("pyarrow")

import dledger
from dledger.audit.findings import Severity
from dledger.local.cluster import find_base_port
from tests.audit.apache_damage import DAMAGE, Damage, Target, judge
from tests.audit.engine import audit
from tests.interop.apache import ApacheGroup
from tests.interop.conftest import rocketmq_libraries
from tests.interop.large_store import TOPICS, Sent, Traffic
from tests.interop.test_apache_stores import command

pytestmark = pytest.mark.interop

MESSAGES = 100_000
SEGMENT_SIZE = 2 * 1024 * 1024
BROKER = {"mappedFileSizeConsumeQueue": 3000 * 20, "maxHashSlotNum": 5000, "maxIndexNum": 20000}
SPREAD = "n1"


@dataclass
class Written:
    """What a group left. `given`: what is given to audits and readers, of n0, n1 and n2."""

    group: ApacheGroup
    given: list[Path]
    sent: Sent


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Written]:
    directory = tmp_path_factory.mktemp("large")
    paths = {
        SPREAD: f"{directory}/disk1/{SPREAD},{directory}/disk2/{SPREAD}",
        "n2": f"{directory}/n2/commitlog,{directory}/n2/more",
    }
    group = ApacheGroup(
        directory,
        rocketmq_libraries(5),
        find_base_port(start=24000),
        SEGMENT_SIZE,
        broker=BROKER,
        nodes={node: {"storePathDLedgerCommitLog": several} for node, several in paths.items()},
    )
    began = time.monotonic()
    try:
        group.start()
        sent = Traffic(group).run(MESSAGES)
        group.wait_caught_up(sent.acknowledged)
    finally:
        group.stop()
    print(
        f"\nRocketMQ 5.4.0: {sent.acknowledged} messages acknowledged, {sent.unknown} unknown, master "
        f"{sent.killed} killed, {time.monotonic() - began:.0f} s"
    )
    yield Written(group, [group.store("n0"), group.conf(SPREAD), group.store("n2")], sent)


def test_the_audit_finds_nothing(written: Written) -> None:
    for store in written.given:
        alone = json.loads(command("dledger", "audit", "verify", "--json", store))
        assert alone["findings"] == [], store
    report = json.loads(command("dledger", "audit", "compare", "--json", *written.given))
    assert {found["code"] for found in report["findings"]} <= {"LAGGING"}
    assert report["compared_up_to"] >= written.sent.acknowledged
    assert all(replica["segments"] > 10 and replica["last_term"] > 1 for replica in report["replicas"])
    print(f"\naudit: {report['verdict']}, {report['entries']} entries of three stores")


@pytest.mark.parametrize("node", ["n0", "n1", "n2", "all"])
def test_every_message_is_read_once(node: str, written: Written) -> None:
    given = written.given if node == "all" else [written.given[int(node[1:])]]
    table = dledger.read(",".join(map(str, given)), subscribe=",".join(TOPICS)).read_all()
    columns = (table[name].to_pylist() for name in ("topic", "partition", "offset", "value"))
    rows = {(topic, queue, offset): value for topic, queue, offset, value in zip(*columns, strict=True)}
    assert len(rows) == table.num_rows
    sent = written.sent
    assert {place: rows.get(place) for place in sent.acked} == sent.acked
    found = Counter(topic for topic, _, _ in rows)
    least = Counter(topic for topic, _, _ in sent.acked) + sent.hidden
    assert all(least[topic] <= found[topic] for topic in TOPICS), (least, found)
    bodies: Counter[str] = Counter(topic for topic, _ in {(place[0], body) for place, body in rows.items()})
    assert all(bodies[topic] <= sent.bodies[topic] for topic in TOPICS), (bodies, sent.bodies)
    print(f"\n{node}: {len(rows)} messages read, {len(rows) - bodies.total()} of them sent again")


def test_dump_lists_every_entry_of_a_spread_store(written: Written) -> None:
    lines = [json.loads(line) for line in command("dledger", "dump", "--json", written.given[1]).splitlines()]
    assert [line["index"] for line in lines] == list(range(len(lines)))
    assert len(lines) > written.sent.acknowledged


@pytest.mark.parametrize("damage", DAMAGE, ids=lambda damage: damage.name)
def test_damage_is_found(damage: Damage, written: Written, tmp_path: Path) -> None:
    """In the store that is spread over two directories."""
    conf = copy_spread(written.group, tmp_path)
    damage.plant(Target(conf))
    judge(audit([written.given[0], conf, written.given[2]]), damage, SPREAD, known=set())


def copy_spread(group: ApacheGroup, to: Path) -> Path:
    """Copy the spread store; its broker.conf has the paths of the copy."""
    named = [group.store(SPREAD), *(group.directory / f"disk{number}" / SPREAD for number in (1, 2))]
    text = group.conf(SPREAD).read_text()
    for path in named:
        copy = to / path.relative_to(group.directory)
        copy.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(["cp", "-r", "--sparse=always", path, copy], check=True)
    conf = to / f"{SPREAD}.conf"
    conf.write_text(text.replace(str(group.directory), str(to)))
    return conf


def test_a_lost_disk_is_found(written: Written, tmp_path: Path) -> None:
    conf = copy_spread(written.group, tmp_path)
    for path in sorted((tmp_path / "disk1" / SPREAD).iterdir())[1:]:
        path.unlink()
    report = audit([written.given[0], conf, written.given[2]])
    found = {(one.code, one.replica) for one in report.findings if one.severity > Severity.INFO}
    assert ("MISSING_SEGMENT", SPREAD) in found
    assert {replica for _, replica in found} == {SPREAD}
