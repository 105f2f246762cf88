"""Audits of a group of real processes: over the network, while it is written to, from shipped digests."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from dledger.chaos.workload import Load
from dledger.local.cluster import LocalCluster, wait_for
from dledger.runtime.files import OsFiles
from tests.audit.report_kit import report_of
from tests.uninstalled import run_module_without

ROOT = Path(__file__).parents[2]
TOPIC = "Load"
MESSAGES = 20_000
SEGMENT = 9 * 1024 * 1024
AUDITS = 6
MOMENTARY = {
    "LAGGING",
    "RETENTION",
    "RETIRED",
    "INDEX_LAG",
    "QUEUE_LAG",
    "KEY_LAG",
    "DIVERGENT_UNCOMMITTED",
}
"""What an audit may say of stores that are written to: information, true of the moment."""


def spark_audit(*arguments: str) -> tuple[int, dict[str, Any]]:
    """`dledger spark audit`, without Spark."""
    return report_of("spark", "audit", "--engine", "local", *arguments)


@contextmanager
def deleting(group: LocalCluster, index: int) -> Iterator[None]:
    """Meanwhile all nodes free the segments before an index (`dledger delete-before`)."""
    peers = group.broker_properties(group.spec.node_ids[0])["dLegerPeers"]
    command = [sys.executable, "-m", "dledger", "delete-before", str(index), "--peers", peers]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        yield
    finally:
        said, _ = process.communicate(timeout=60)
        assert process.returncode == 0, said


def codes(report: dict[str, Any]) -> list[tuple[str, str]]:
    return [
        (found["code"], found.get("replica", ""))
        for found in report["findings"]
        if found["severity"] != "info"
    ]


def load_while(group: LocalCluster, work: Callable[[], None], messages: int = MESSAGES) -> Load:
    """Do blocking work while messages are sent, after so many."""
    load = Load(group.namesrv_addr, TOPIC)

    async def session() -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(load.run(), name="load")
            try:
                await load.wait_acked(messages, 30 + messages / 5_000)
                await asyncio.to_thread(work)
            finally:
                load.stop()

    asyncio.run(session())
    return load


def test_a_group_is_audited_while_it_is_written_to(new_group: Callable[..., LocalCluster]) -> None:
    group = new_group(segment_size=SEGMENT, broker={"auditBytesPerSecond": "0"})
    group.create_topic(TOPIC, 4)
    reports: list[tuple[int, dict[str, Any]]] = []

    def audit_again_and_again() -> None:
        for _ in range(5):
            reports.append(spark_audit("--namesrv", group.namesrv_addr, "--group", group.spec.group))

    load = load_while(group, audit_again_and_again)
    for code, report in reports:
        assert (code, codes(report)) == (0, []), report["findings"]
        assert len(report["replicas"]) == 3
        assert min(replica["segments"] for replica in report["replicas"]) >= 3
    assert reports[-1][1]["compared_up_to"] > reports[0][1]["compared_up_to"]
    assert load.acked > MESSAGES


SIZES = [
    pytest.param(MESSAGES, 2 / 3, id="60MB"),
    pytest.param(90_000, 0.2, id="0.3GB", marks=pytest.mark.soak),
    pytest.param(300_000, 0.1, id="1GB", marks=pytest.mark.soak),
    pytest.param(600_000, 0.1, id="2GB", marks=pytest.mark.soak),
]
"""Messages of 1 KiB on each of three nodes, and the share of them that retention takes at each audit."""


@pytest.mark.parametrize("engine", ["local", pytest.param("spark", marks=pytest.mark.spark)])
@pytest.mark.parametrize(("messages", "share"), SIZES)
def test_directories_are_audited_under_writes_and_retention(
    new_group: Callable[..., LocalCluster],
    request: pytest.FixtureRequest,
    messages: int,
    share: float,
    engine: str,
) -> None:
    """No false alarm: entries, derived files and snapshots come, and the oldest segments go."""
    group = new_group(segment_size=SEGMENT)
    group.create_topic(TOPIC, 4)
    stores = [str(group.store(node)) for node in group.spec.node_ids]
    reports: list[tuple[int, dict[str, Any]]] = []
    session = request.getfixturevalue("spark") if engine == "spark" else None

    def audited(number: int) -> tuple[int, dict[str, Any]]:
        if session is None:
            return report_of("dledger", "audit", "compare", "--jobs", str(1 + number % 2), *stores)
        from dledger.spark.audit_job import audit_stores

        report = audit_stores(session, OsFiles(), stores)
        return report.exit_code, report.as_json()

    def enough() -> bool | None:
        """What is committed stands on disk up to a second later, on a quick machine half of it."""
        return audited(0)[1]["compared_up_to"] >= messages // 2 or None

    def audit_and_delete() -> None:
        wait_for(enough, 20, lambda: "the files do not say what is committed")
        for number in range(AUDITS):
            committed = group.committed_index(group.wait_leader())
            with deleting(group, int(committed * share)):
                reports.append(audited(number))

    load = load_while(group, audit_and_delete, messages)
    for code, report in reports:
        assert (code, codes(report)) == (0, []), report["findings"]
        assert {found["code"] for found in report["findings"]} <= MOMENTARY
    firsts = [min(replica["first_index"] for replica in report["replicas"]) for _, report in reports]
    assert firsts[0] < firsts[-1], "retention removed segments meanwhile"
    assert reports[-1][1]["compared_up_to"] > reports[0][1]["compared_up_to"] >= messages // 2
    assert load.acked > messages


def test_a_broker_that_is_down_is_named_and_its_directory_takes_its_place(
    new_group: Callable[..., LocalCluster],
) -> None:
    group = new_group(segment_size=SEGMENT)
    group.create_topic(TOPIC, 4)
    load_while(group, lambda: None)
    group.wait_caught_up()
    node = group.followers_first()[0]
    group.kill(node)
    code, report = spark_audit("--namesrv", group.namesrv_addr)
    assert (code, codes(report)) == (4, [("UNREACHABLE", node)])
    code, report = spark_audit("--namesrv", group.namesrv_addr, str(group.store(node)))
    assert (code, codes(report)) == (0, [])
    assert sorted(replica["replica"] for replica in report["replicas"]) == ["n0", "n1", "n2"]


def test_rot_on_a_live_broker_is_found_over_the_network(new_group: Callable[..., LocalCluster]) -> None:
    # Its first scrub may still be under way and repair what the audit is to find.
    group = new_group(segment_size=SEGMENT, broker={"scrubBytesPerSecond": "0"})
    group.create_topic(TOPIC, 4)
    load_while(group, lambda: None)
    group.wait_caught_up()
    node = group.followers_first()[0]
    path = min((group.store(node) / f"dledger-{node}" / "data").iterdir())
    with path.open("r+b") as file:
        file.seek(SEGMENT // 2)
        file.write(bytes(byte ^ 0xFF for byte in b"\0" * 16))
    code, report = spark_audit("--namesrv", group.namesrv_addr)
    assert code == 2, report["findings"]
    assert {found for found, _ in codes(report)} <= {"BIT_ROT", "CHAIN_BREAK"}
    assert {replica for _, replica in codes(report)} == {node}


def test_brokers_ship_digests(new_group: Callable[..., LocalCluster], tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    shared = tmp_path / "digests"
    shared.mkdir()
    group = new_group(
        segment_size=SEGMENT, broker={"digestShipPath": str(shared), "digestShipIntervalMs": "500"}
    )
    group.create_topic(TOPIC, 4)

    def shipped() -> None:
        for _ in range(3):
            reports.append(spark_audit("--digests", str(shared), "--namesrv", group.namesrv_addr))

    reports: list[tuple[int, dict[str, Any]]] = []
    wait_for(lambda: len(list(shared.glob("*/*/segment=side/rows.parquet"))) == 3 or None, 20, lambda: "")
    # What the very first ones were made of has no checkpoint yet, and so no committed index to compare up to.
    wait_for(lambda: spark_audit("--digests", str(shared))[0] == 0 or None, 30, lambda: "no checkpoints")
    load_while(group, shipped)
    group.wait_caught_up()
    committed = group.committed_index(group.wait_leader())

    def all_shipped() -> bool | None:
        reports.append(spark_audit("--digests", str(shared)))
        return reports[-1][1]["compared_up_to"] >= committed or None

    wait_for(all_shipped, 30, lambda: str(reports[-1]))
    for code, report in reports:
        assert (code, codes(report)) == (0, []), report["findings"]
    size = sum(path.stat().st_size for path in shared.rglob("*.parquet"))
    log = sum(replica["bytes"] for replica in reports[-1][1]["replicas"])
    print(f"\nshipped {size} bytes for {log} bytes of log")


def test_wrong_settings_are_told_at_the_start(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    pytest.importorskip("fsspec")
    for lines, said in (
        ("digestShipPath=s3://", "expected a directory, or a URL such as s3://bucket/digests"),
        ("digestShipPath=s33://bucket/digests", "did you mean 's3'?"),
        ("digestShipPaht=/x", "did you mean 'digestShipPath'?"),
        ("digestShipIntervalMs=5", "expected 100 to"),
    ):
        (tmp_path / "broker.conf").write_text(f"dLegerPeers=n0-127.0.0.1:40911\n{lines}\n")
        command = [sys.executable, "-m", "dledger.broker", "-c", str(tmp_path / "broker.conf")]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=30, check=False)
        assert done.returncode == 2
        assert said in done.stderr


@pytest.mark.parametrize(
    ("module", "place", "extra"),
    [
        ("pyarrow", "/tmp", "spark"),
        ("fsspec", "memory://digests", "spark"),
        ("fsspec", "s3://bucket/digests", "s3"),
        ("s3fs", "s3://bucket/digests", "s3"),
    ],
)
def test_without_its_packages_the_setting_is_refused(
    module: str, place: str, extra: str, tmp_path: Path
) -> None:
    if module != "pyarrow":
        pytest.importorskip("pyarrow")  # which is looked for first
    conf = tmp_path / "broker.conf"
    conf.write_text(
        f"dLegerPeers=n0-127.0.0.1:40911\ndigestShipPath={place}\nstorePathRootDir={tmp_path}/s\n"
    )
    done = run_module_without([module], "dledger.broker", "-c", str(conf))
    assert done.returncode == 2
    assert "digestShipPath" in done.stderr
    assert f"pip install 'dledger[{extra}]'" in done.stderr
    assert not (tmp_path / "s").exists()
