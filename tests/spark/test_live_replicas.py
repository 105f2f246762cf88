"""Live brokers give the same report as their directories; what does not answer is said, never left out."""

from __future__ import annotations

import asyncio
import pickle
from pathlib import Path
from typing import Any

import pytest

from dledger.audit.digests import DIGEST_VERSION
from dledger.audit.local import audit_sources
from dledger.audit.replicas import ReplicaSource, StoreSource, look_at
from dledger.audit.report import Report
from dledger.client.bulk.replicas import AuditOptions, ReplicaClient, find_groups
from dledger.remoting.codes import RequestCode
from dledger.runtime.env import production_env
from dledger.runtime.files import OsFiles
from dledger.spark.live import GroupSource
from tests.audit.engine import audit
from tests.audit.faults import FAULTS, Fault, by_names
from tests.audit.store_builder import Log, sample_log, segment_path, write_group
from tests.client.consumer_kit import until
from tests.client.patience import be_patient
from tests.spark.live_kit import LiveGroup, live_group

QUICK = AuditOptions(attempts=1, busy_pause_s=0.01)


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """The brokers are in this process, and so is their auditor."""
    be_patient(monkeypatch)


@pytest.fixture(scope="module")
def log() -> Log:
    return sample_log()


def source(group: LiveGroup, name: str = "g0", **options: int) -> GroupSource:
    """Three tries, as by default: one connection that a busy machine does not make in time is no finding."""
    return GroupSource(group.namesrv, name, options=AuditOptions(busy_pause_s=0.01, **options))


def run(*sources: ReplicaSource) -> Report:
    env = production_env("test")
    try:
        return asyncio.run(audit_sources(env, sources))
    finally:
        env.workers.close()


def comparable(report: Report) -> dict[str, Any]:
    """All of it, but where the replicas are."""
    found = report.as_json()
    for replica in found["replicas"]:  # type: ignore[attr-defined]
        del replica["store"]
    return found


@pytest.mark.parametrize("fault", FAULTS, ids=str)
@pytest.mark.sample(22)
def test_each_fault_is_reported_as_in_the_directories(fault: Fault, log: Log, tmp_path: Path) -> None:
    stores = write_group(log, tmp_path)
    fault.inject(stores, log)
    with live_group(stores) as group:
        report = run(source(group))
    expected = audit(stores)
    if "ENDS_EARLY" in fault.codes:  # a running broker is no copy that was made too early
        expected = audit(stores, same_time=True)
    assert comparable(report) == comparable(expected)
    assert report.exit_code == max(fault.exit_code, expected.exit_code)


def test_brokers_and_directories_mix(log: Log, tmp_path: Path) -> None:
    stores = write_group(log, tmp_path)
    for fault in by_names("flipped body byte", "rewritten committed entry", "lagging replica"):
        fault.inject(stores, log)
    with live_group(stores) as group:
        group.stop(1)
        mixed = run(source(group), StoreSource(str(stores[1]), OsFiles()))
    assert comparable(mixed) == comparable(audit(stores))


def test_a_broker_that_is_down_is_a_finding_and_the_others_are_compared(log: Log, tmp_path: Path) -> None:
    stores = write_group(log, tmp_path)
    next(by_names("flipped body byte")).inject(stores, log)
    with live_group(stores) as group:
        group.stop(2)
        report = run(source(group))
        del group.registered[2]  # the NameServers have forgotten it, but its peers know it
        forgotten = run(source(group))
    assert report.exit_code == forgotten.exit_code == 4
    assert {(found.code, found.replica) for found in report.findings} == {
        ("BIT_ROT", "n0"),
        ("UNREACHABLE", "n2"),
    }
    assert forgotten.findings == report.findings


def test_a_broker_that_nameservers_do_not_know_is_found_through_its_peers(log: Log, tmp_path: Path) -> None:
    stores = write_group(log, tmp_path)
    with live_group(stores) as group:
        del group.registered[0], group.registered[2]
        report = run(source(group))
        group.members["n2"] = ""
        hidden = run(source(group))
    assert comparable(report) == comparable(audit(stores))
    (found,) = hidden.findings
    assert (found.code, found.replica) == ("UNREACHABLE", "n2")


def test_a_broker_that_goes_down_in_between_is_a_finding(log: Log, tmp_path: Path) -> None:
    stores = write_group(log, tmp_path)
    with live_group(stores) as group:
        look = source(group).look()
        group.stop(1)
        (replica,) = [each for each in look.replicas if each.name == "n1"]
        task = replica.tasks()[0]
        rows = list(replica.reader.scan(task))
        side = list(replica.side())
        drilled = list(replica.reader.drill(task, [(0, 9)]))
    assert [type(row).__name__ for row in rows] == ["Finding", "SegmentRow"]
    assert [type(row).__name__ for row in side] == ["ReplicaRow", "Finding"]
    assert [row.index for row in drilled] == [-1]


def test_a_wrong_name_is_refused_with_a_suggestion(log: Log, tmp_path: Path) -> None:
    with live_group(write_group(log, tmp_path)[:1]) as group:
        wrong = run(source(group, "g"))
        assert wrong.exit_code == 4
        assert "did you mean 'g0'?" in wrong.findings[0].detail
        nobody = run(GroupSource("127.0.0.1:1", "g0"))
        assert nobody.exit_code == 4
        assert "no NameServer answers" in nobody.findings[0].detail
        (found,) = find_groups(group.namesrv)
        assert (found.cluster, found.group, found.addresses) == ("c0", "g0", (group.brokers[0].address,))
        with pytest.raises(Exception, match="'c1' is registered; registered are c0"):
            find_groups(group.namesrv, "c1")


def test_the_same_group_twice_is_refused(log: Log, tmp_path: Path) -> None:
    with live_group(write_group(log, tmp_path)[:1]) as group:
        report = run(source(group), source(group))
    assert "given twice" in report.findings[0].detail


def test_views_travel_to_other_processes(log: Log, tmp_path: Path) -> None:
    with live_group(write_group(log, tmp_path)[:1]) as group:
        here = look_at([source(group)])
        there = pickle.loads(pickle.dumps(here))
        task = there.replicas[0].tasks()[1]
        assert list(there.replicas[0].reader.scan(task)) == list(here.replicas[0].reader.scan(task))
        assert len(pickle.dumps(here.replicas[0].reader)) < 600


def test_rows_no_older_than_asked_for_are_not_read_again(log: Log, tmp_path: Path) -> None:
    stores = write_group(log, tmp_path)
    with live_group(stores) as group:
        before = run(source(group))
        next(by_names("flipped body byte")).inject(stores, log)
        assert comparable(run(source(group, max_age_ms=600_000))) == comparable(before)
        assert run(source(group)).exit_code == 2


def test_many_rows_come_in_pages(log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dledger.audit.row_codec.encode_pages.__defaults__", (500,))
    stores = write_group(log, tmp_path)
    next(by_names("rewritten committed entry")).inject(stores, log)
    with live_group(stores) as group:
        report = run(source(group))
        assert group.brokers[0].asked[RequestCode.AUDIT_PAGE] > 20
    assert comparable(report) == comparable(audit(stores))


def test_an_answer_waits_no_longer_than_agreed(
    log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slow scan is asked about again and again; no request waits for its end.

    The scan reads nothing before it was asked about four times."""
    monkeypatch.setattr("dledger.broker.audit.audit_jobs.HOLD_S", 0.05)
    stores = write_group(log, tmp_path)[:1]
    with live_group(stores) as group:
        asked = group.brokers[0].asked
        pace = group.brokers[0].jobs.pace
        spend = pace.spend

        def spend_later(count: int) -> None:
            until(lambda: asked.get(RequestCode.AUDIT_PAGE, 0) > 3, 60.0)
            spend(count)

        monkeypatch.setattr(pace, "spend", spend_later)
        report = run(source(group))
    assert comparable(report)["entries"] == len(log.entries)


def test_what_a_broker_does_not_know_any_more_is_said(log: Log, tmp_path: Path) -> None:
    stores = write_group(log, tmp_path)[:1]
    with live_group(stores) as group, ReplicaClient(group.brokers[0].address, QUICK) as client:
        with pytest.raises(Exception, match="describe the replica again"):
            list(client.segment("0" * 16, 0, 1024))
        with pytest.raises(Exception, match="use one release for both"):
            client.describe(DIGEST_VERSION + 1)
        description, _ = client.describe(DIGEST_VERSION)
        with pytest.raises(Exception, match="no segment was described at 77"):
            list(client.segment(description, 77, 1024))
        for ranges in ([(5, 3)], [(0, 5), (5, 9)], [(0, 1 << 21)], [("a", 1)]):
            with pytest.raises(Exception, match=r"29 INVALID_PARAMETER"):
                list(client.drill(description, 0, ranges))  # type: ignore[arg-type]


def test_a_segment_retired_in_between_is_no_fault(log: Log, tmp_path: Path) -> None:
    stores = write_group(log, tmp_path)
    with live_group(stores) as group:
        look = source(group).look()
        segment_path(stores[0], 0).unlink()
        replica = look.replicas[0]
        codes = [row.code for row in replica.reader.scan(replica.tasks()[0]) if hasattr(row, "code")]
    assert codes == ["RETIRED"]
