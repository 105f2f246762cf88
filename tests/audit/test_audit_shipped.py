"""Digests as brokers ship them: the same findings as from the stores, and what is said when one lacks."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow")

from dledger.audit.findings import Severity
from dledger.audit.local import audit_sources
from dledger.audit.replicas import ReplicaSource, StoreSource
from dledger.audit.report import Report
from dledger.audit.shipped import ShippedSource, shipped_groups
from dledger.bench.big_store import write_big_group
from dledger.broker.audit.shipping import HOUR_MS, Shipper, ShipSettings
from dledger.formats.consume_queue import UNIT_SIZE
from dledger.formats.state import ReplicatedState
from dledger.formats.state_file import SNAPSHOT_FILE, pack_snapshot
from dledger.runtime.env import Env, SystemWallClock, production_env
from dledger.runtime.files import OsFiles
from dledger.runtime.rate_limit import Pace
from tests.audit.engine import audit
from tests.audit.faults import FAULTS, Fault, by_names
from tests.audit.store_builder import Log, cut_after, sample_log, segment_path, write_group, write_store


class Clock(SystemWallClock):
    """Moved by tests."""

    value = 1_700_000_000_000

    def now_ms(self) -> int:
        return self.value


@pytest.fixture(scope="module")
def log() -> Log:
    return sample_log()


@pytest.fixture
def env() -> Iterator[Env]:
    made = replace(production_env("test"), wall=Clock())
    yield made
    made.workers.close()


def shipper(env: Env, store: Path, shared: Path, number: int, pace: Pace | None = None) -> Shipper:
    settings = ShipSettings(str(shared), "g0", 100, 24)
    return Shipper(env, settings, str(store), f"n{number}", pace or Pace(0))


def ship(env: Env, stores: list[Path], shared: Path) -> list[int]:
    """One round of each broker; how many segments each scanned."""
    shared.mkdir(exist_ok=True)
    numbers = [int(store.name.removeprefix("n")) for store in stores]
    rounds = [shipper(env, store, shared, number).ship for number, store in zip(numbers, stores, strict=True)]
    return [asyncio.run(one()) for one in rounds]


def from_digests(env: Env, shared: Path, drill: list[ReplicaSource], not_before_ms: int = 0) -> Report:
    source = ShippedSource(str(shared), "g0", OsFiles(), not_before_ms)
    return asyncio.run(audit_sources(env, [source], drill_sources=drill))


def directories(stores: list[Path]) -> list[ReplicaSource]:
    return [StoreSource(str(store), OsFiles()) for store in stores]


@pytest.mark.parametrize("fault", FAULTS, ids=str)
@pytest.mark.sample(22)
def test_each_fault_is_found_from_digests_alone_and_drilled_in_the_stores(
    fault: Fault, log: Log, env: Env, tmp_path: Path
) -> None:
    stores = write_group(log, tmp_path)
    fault.inject(stores, log)
    ship(env, stores, tmp_path / "shared")
    report = from_digests(env, tmp_path / "shared", directories(stores))
    assert report.as_json() == audit(stores).as_json()
    assert report.exit_code == fault.exit_code


def test_stores_that_agree_are_not_needed(log: Log, env: Env, tmp_path: Path) -> None:
    stores = write_group(log, tmp_path)
    ship(env, stores, tmp_path / "shared")
    report = from_digests(env, tmp_path / "shared", [StoreSource("/nowhere", OsFiles())])
    assert (report.exit_code, report.findings) == (0, [])
    assert report.entries == 3 * len(log.entries)
    size = sum(path.stat().st_size for path in (tmp_path / "shared").rglob("*.parquet"))
    assert size < 0.5 * sum(map(len, log.segments.values()))  # tiny segments: the share is large here


def test_what_cannot_be_drilled_is_said_with_its_place(log: Log, env: Env, tmp_path: Path) -> None:
    stores = write_group(log, tmp_path)
    next(by_names("rewritten committed entry")).inject(stores, log)
    ship(env, stores, tmp_path / "shared")
    alone = from_digests(env, tmp_path / "shared", [])
    two = from_digests(env, tmp_path / "shared", directories(stores[:2]))
    for report, names in ((alone, "n0, n1, n2"), (two, "n2")):
        (found,) = [found for found in report.findings if found.code == "NOT_DRILLED"]
        assert (found.first_index, found.last_index) == (1024, 2047)
        assert f"the entries of {names} cannot be read" in found.detail
        assert report.exit_code == 4


def test_an_end_in_the_middle_of_a_block_is_no_fault(log: Log, env: Env, tmp_path: Path) -> None:
    stores = write_group(log, tmp_path)
    for fault in by_names("lagging replica", "flipped body byte"):
        fault.inject(stores, log)
    ship(env, stores[1:], tmp_path / "shared")
    lagging = from_digests(env, tmp_path / "shared", [])
    info = [found for found in lagging.findings if found.code == "NOT_DRILLED"]
    assert [(found.first_index, found.severity) for found in info] == [(1024, Severity.INFO)]
    ship(env, stores, tmp_path / "shared")
    damaged = from_digests(env, tmp_path / "shared", [])
    said = [found for found in damaged.findings if found.code == "NOT_DRILLED"]
    assert [(found.first_index, found.severity) for found in said] == [
        (0, Severity.UNKNOWN),
        (1024, Severity.INFO),
    ]


def test_a_segment_is_scanned_once_and_again_when_it_may_have_rotted(
    log: Log, env: Env, tmp_path: Path
) -> None:
    stores = write_group(log, tmp_path)
    shared = tmp_path / "shared"
    count = len(log.segments)
    assert ship(env, stores, shared) == [count] * 3
    assert ship(env, stores, shared) == [0] * 3
    next(by_names("flipped body byte")).inject(stores, log)
    assert ship(env, stores, shared) == [0] * 3
    assert from_digests(env, shared, directories(stores)).exit_code == 0
    Clock.value += 24 * HOUR_MS + 1
    try:
        assert ship(env, stores, shared) == [count] * 3
        assert from_digests(env, shared, directories(stores)).exit_code == 2
        assert ship(env, stores, shared) == [1, 0, 0]  # what is damaged is looked at until it is repaired
    finally:
        Clock.value -= 24 * HOUR_MS + 1


@pytest.mark.parametrize("committed", [None, 0], ids=["committed", "checkpoint still old"])
def test_the_open_segment_is_scanned_when_it_has_grown(
    committed: int | None, log: Log, env: Env, tmp_path: Path
) -> None:
    shared = tmp_path / "shared"
    stores = write_group(log, tmp_path)
    ship(env, stores, shared)
    known = None if committed is None else log.entries[-1].index
    for number, store in enumerate(stores):
        longer = log.copy()
        longer.message("orders", b"one more", queue_id=1)
        shutil.rmtree(store)
        write_store(longer, store, f"n{number}", committed=known)
    assert ship(env, stores, shared) == [1, 1, 1]
    assert from_digests(env, shared, []).as_json() == audit(stores).as_json()


def test_old_digests_and_absent_members_are_said(log: Log, env: Env, tmp_path: Path) -> None:
    stores = write_group(log, tmp_path)
    ship(env, stores[:2], tmp_path / "shared")
    late = from_digests(env, tmp_path / "shared", [], not_before_ms=Clock.value + 5000)
    codes = [(found.code, found.replica) for found in late.ordered()]
    assert codes == [("UNREACHABLE", ""), ("STALE_DIGESTS", "n0"), ("STALE_DIGESTS", "n1")]
    assert late.exit_code == 4
    assert "2 of 3 members" in late.ordered()[0].detail


def test_retired_segments_go_one_round_later(log: Log, env: Env, tmp_path: Path) -> None:
    stores = write_group(log, tmp_path)
    shared = tmp_path / "shared"
    ship(env, stores, shared)
    segment_path(stores[0], 0).unlink()
    places = shared / "group=g0" / "replica=n0"
    ship(env, stores, shared)
    assert (places / "segment=00000000000000000000").exists()
    ship(env, stores, shared)
    assert not (places / "segment=00000000000000000000").exists()


@pytest.mark.parametrize("damage", [b"", b"PAR1 no more"], ids=["empty", "garbage"])
def test_damaged_rows_are_findings_and_written_anew(
    damage: bytes, log: Log, env: Env, tmp_path: Path
) -> None:
    stores = write_group(log, tmp_path)
    shared = tmp_path / "shared"
    ship(env, stores, shared)
    for name in ("segment=00000000000000065536", "segment=side"):
        (shared / "group=g0" / "replica=n1" / name / "rows.parquet").write_bytes(damage)
        report = from_digests(env, shared, [])
        assert report.exit_code == 4
        found = {(found.code, found.replica) for found in report.findings}
        assert ("UNREADABLE", "n1") in found
        # A block that begins in a segment without rows has a digest of its rest only: it would be drilled.
        assert found <= {("UNREADABLE", "n1"), ("UNREACHABLE", ""), ("NOT_DRILLED", "")}
        ship(env, stores, shared)
        assert from_digests(env, shared, []).exit_code == 0


def test_a_directory_that_is_not_there_is_not_made(log: Log, env: Env, tmp_path: Path) -> None:
    (store, *_) = write_group(log, tmp_path)
    with pytest.raises(Exception, match="is it mounted"):
        asyncio.run(shipper(env, store, tmp_path / "mount", 0).ship())
    assert not (tmp_path / "mount").exists()


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - the round is a task of its own
        await asyncio.sleep(0.01)


def test_rounds_go_on_after_a_failure(log: Log, env: Env, tmp_path: Path) -> None:
    (store, *_) = write_group(log, tmp_path)
    one = shipper(env, store, tmp_path / "late", 0)

    async def run() -> None:
        async with asyncio.timeout(60), asyncio.TaskGroup() as group:
            task = group.create_task(one.run(), name="ship")
            await until(lambda: one.stats.failures >= 2)
            (tmp_path / "late").mkdir()
            await until(lambda: one.stats.rounds >= 2)
            task.cancel()

    asyncio.run(run())
    assert one.stats.segments == len(log.segments)
    assert shipped_groups(OsFiles(), str(tmp_path / "late")) == ["g0"]


def test_nothing_is_written_of_a_scan_that_the_end_cut_short(log: Log, env: Env, tmp_path: Path) -> None:
    (store, *_) = write_group(log, tmp_path)
    (tmp_path / "shared").mkdir()
    pace = Pace(0)
    one: Any = shipper(env, store, tmp_path / "shared", 0, pace)
    there, replica, tasks = one._look()
    pace.stop()
    with pytest.raises(OSError, match="the program ends"):
        one._ship_segment(there, replica, tasks[0])
    assert list((tmp_path / "shared").iterdir()) == []


def test_replicas_that_shipped_at_different_times_are_not_blamed(log: Log, env: Env, tmp_path: Path) -> None:
    stores = write_group(log, tmp_path)
    cut_after(stores[0], log, 1500)
    cut_after(stores[1], log, 1600)
    report = audit(stores, same_time=True)
    assert {found.code for found in report.findings} == {"LAGGING", "BELOW_QUORUM"}
    ship(env, stores, tmp_path / "shared")
    report = asyncio.run(
        audit_sources(
            env,
            [ShippedSource(str(tmp_path / "shared"), "g0", OsFiles())],
            drill_sources=directories(stores),
            lag_warning=10,
        )
    )
    assert (report.exit_code, {found.code for found in report.findings}) == (0, {"LAGGING"})


def test_segments_of_a_later_round_owe_the_queues_of_the_side_rows_nothing(env: Env, tmp_path: Path) -> None:
    """An auditor that reads between two uploads of a round: the queues reached less far before it."""
    (store, *_), _ = write_big_group(tmp_path / "stores", 3_000_000, segment_size=1 << 18, body=300)
    early, shared, later = (tmp_path / name for name in ("n0", "shared", "later"))
    shutil.copytree(store, early)
    for queue in (early / "consumequeue").glob("*/*/*"):
        with queue.open("r+b") as file:
            file.truncate(queue.stat().st_size - 3 * UNIT_SIZE)
    state = early / "state" / SNAPSHOT_FILE
    state.write_bytes(pack_snapshot(-1, 0, ReplicatedState()))
    ship(env, [early], shared)
    assert isinstance(env.wall, Clock)
    env.wall.value += 1000
    shutil.rmtree(early)
    store.rename(early)
    ship(env, [early], later)
    assert "QUEUE_MISSING" not in {found.code for found in from_digests(env, later, []).findings}
    for segment in later.glob("*/*/segment=*"):
        if "side" not in segment.name:
            shutil.copytree(segment, shared / segment.relative_to(later), dirs_exist_ok=True)
    codes = {found.code for found in from_digests(env, shared, []).findings}
    assert "QUEUE_LAG" in codes and "QUEUE_MISSING" not in codes
