"""Views `scan`, `entries`, `index` of live brokers against those of their directories. No Spark session."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("pyarrow")

from dledger.audit.digests import DIGEST_VERSION
from dledger.audit.findings import ReplicaRow
from dledger.audit.store_directory import StoreError
from dledger.client.bulk.replicas import AuditOptions, ReplicaClient
from dledger.client.errors import BrokerRefused, ClientError, NoBroker
from dledger.client.options import ClientOptions
from dledger.formats.entry import INDEX_UNIT, INDEX_UNIT_SIZE
from dledger.formats.store_files import segment_name
from dledger.remoting.codes import RequestCode
from dledger.spark.messages import CorruptMessage
from dledger.spark.options import parse
from dledger.spark.source import view_of
from tests.audit.faults import Fault, by_names
from tests.audit.store_builder import (
    SEGMENT_SIZE,
    Log,
    flip,
    sample_log,
    segment_path,
    write_group,
    write_store,
)
from tests.spark.live_kit import LiveGroup, live_group
from tests.spark.views_kit import rows_of, view

Row = dict[str, Any]
BEHIND = 7
"""Entries of the stores that are not committed."""


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Brokers that are down are not asked again."""
    defaults = (15.0, 1, 0.01, 120.0, 0, ClientOptions)
    monkeypatch.setattr(AuditOptions.__init__, "__defaults__", defaults)


@pytest.fixture(scope="module")
def log() -> Log:
    return sample_log()


@pytest.fixture(scope="module")
def stores(log: Log, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    root, last = tmp_path_factory.mktemp("stores"), len(log.entries) - 1 - BEHIND
    return [write_store(log, root / node, node, committed=last) for node in ("n0", "n1", "n2")]


@pytest.fixture(scope="module")
def group(stores: list[Path]) -> Iterator[LiveGroup]:
    with live_group(stores) as group:
        yield group


def live(group: LiveGroup, /, **options: str) -> Any:
    return view_of(parse({"servers": group.namesrv, **options}, "batch"))


def of_directories(stores: list[Path], **options: str) -> list[Row]:
    return rows_of(view(json.dumps([str(path) for path in stores]), **options))


def by_place(rows: list[Row]) -> list[str]:
    """All rows, in an order of their own, without what tells where a replica is."""

    def placeless(row: Row) -> Row:
        if row["kind"] != "replica":
            return row
        said = ReplicaRow(*json.loads(row["data"]))._replace(live=0)
        return {**row, "data": [item for item in said if "/" not in str(item)]}

    return sorted(json.dumps(placeless(row)) for row in rows)


# --- scan -------------------------------------------------------------------------------------------------


SCANNED = (
    "flipped body byte",
    "rewritten committed entry",
    "deleted oldest segment",
    "unreadable segment",
    "lagging replica",
    "torn tail",
    "damaged identity",
    "no checkpoint",
)


@pytest.mark.parametrize("fault", list(by_names(*SCANNED)), ids=str)
@pytest.mark.sample(4)
def test_scan_rows_are_those_of_the_directories(fault: Fault, log: Log, tmp_path: Path) -> None:
    stores = write_group(log, tmp_path)
    fault.inject(stores, log)
    with live_group(stores) as group:
        found = rows_of(live(group, view="scan", blockRows="100"))
    assert by_place(found) == by_place(of_directories(stores, view="scan", blockRows="100"))


def test_scan_says_who_does_not_answer(log: Log, tmp_path: Path) -> None:
    stores = write_group(log, tmp_path)
    with live_group(stores) as group:
        group.stop(2)
        found = rows_of(live(group, view="scan"))
        planned = live(group, view="scan")
        parts = planned.plan()
        group.stop(1)
        late = [row for part in parts for batch in planned.read(part) for row in batch.to_pylist()]
    (unreachable,) = [row for row in found if row["code"] == "UNREACHABLE"]
    assert unreachable["replica"] == "n2" and "does not answer" in unreachable["data"]
    rest = [row for row in found if row is not unreachable]
    assert by_place(rest) == by_place(of_directories(stores[:2], view="scan"))
    assert {row["replica"] for row in late if row["code"] == "UNREACHABLE"} == {"n1", "n2"}
    of_n0 = [row for row in rest if row["replica"] == "n0"]
    assert [row for row in late if row["replica"] == "n0"] == of_n0 != []


def test_scan_is_divided_by_replicas_and_segments(group: LiveGroup, log: Log) -> None:
    whole, fine = live(group, view="scan"), live(group, view="scan", minPartitions="9")
    assert len(whole.plan()) == 3, "small segments of a replica are one task"
    assert len(log.segments) > 4 and len(fine.plan()) >= 9
    assert by_place(rows_of(fine)) == by_place(rows_of(whole))


def test_groups_are_chosen_by_name(group: LiveGroup) -> None:
    assert rows_of(live(group, view="scan", group="g0"))
    for name in ("scan", "entries"):
        with pytest.raises(StoreError, match="no broker group 'g1' is registered; registered are g0"):
            live(group, view=name, group="g1").plan()
        with pytest.raises(ClientError, match="no NameServer answers"):
            view_of(parse({"servers": "127.0.0.1:1", "view": name}, "batch")).plan()


def test_replicas_of_several_groups_are_told_apart(log: Log, tmp_path: Path) -> None:
    """Nodes have the same names in both; of the second group one is down."""
    one = write_group(log, tmp_path / "one", 2)
    two = [write_store(log, tmp_path / "two" / node, node, group="g1") for node in ("n0", "n1", "n2")]
    with live_group(one) as group, live_group(two) as other:
        other.group = "g1"
        group.others["g1"] = other.registered
        other.stop(1)
        rows = rows_of(live(group, view="scan"))
        entries = live(group, view="entries", corruptRecords="include")
        found = {(row["replica"], row["index"] >= 0) for row in rows_of(entries)}
        only = {row["replica"] for row in rows_of(live(group, view="scan", group="g1"))}
    assert [row["replica"] for row in rows if row["code"] == "UNREACHABLE"] == ["n1@g1"]
    replicas = {row["replica"] for row in rows}
    assert {name.partition("@")[0] for name in replicas} == {"n0", "n1", "n2"}
    assert len(replicas) == 5 and "n2" in replicas and only == {"n0", "n1", "n2"}
    assert found == {(name, name != "n1@g1") for name in replicas}


# --- entries ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"isolation": "all"},
        {"indexRanges": "3-40,77,300-299999"},
        {"indexRanges": "5-9,2490-100000", "isolation": "all"},
        {"indexRanges": "1000000-2000000", "isolation": "all"},
        {"minPartitions": "12"},
    ],
)
@pytest.mark.parametrize("asked", [64 * 1024, 50])
def test_entries_are_those_of_the_directories(
    group: LiveGroup,
    stores: list[Path],
    options: dict[str, str],
    asked: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("dledger.spark.live_replicas.ENTRIES_ASKED", asked)
    found = rows_of(live(group, view="entries", **options))
    assert found == of_directories(stores, view="entries", **options)
    assert found or "1000000-2000000" in options.values()


def test_only_committed_entries_are_shown(group: LiveGroup, log: Log) -> None:
    last = {row["replica"]: row["index"] for row in rows_of(live(group, view="entries"))}
    assert last == dict.fromkeys(("n0", "n1", "n2"), len(log.entries) - 1 - BEHIND)
    last = {row["replica"]: row["index"] for row in rows_of(live(group, view="entries", isolation="all"))}
    assert last == dict.fromkeys(("n0", "n1", "n2"), len(log.entries) - 1)


def test_filters_on_the_index_leave_segments_unasked(group: LiveGroup, log: Log) -> None:
    from dataclasses import replace

    from pyspark.sql.datasource import GreaterThanOrEqual, LessThan

    from dledger.spark.pushdown import push

    whole = live(group, view="entries")
    pushed, rest = push(
        "entries", [GreaterThanOrEqual(("index",), 100), LessThan(("index",), 140)], all_rows=False, live=True
    )
    part = replace(whole, pushed=pushed)
    before = group.brokers[0].asked.get(RequestCode.AUDIT_ENTRIES, 0)
    assert rest == [] and rows_of(part) == [row for row in rows_of(whole) if 100 <= row["index"] < 140]
    asked = group.brokers[0].asked[RequestCode.AUDIT_ENTRIES] - before
    holding = {entry.pos // SEGMENT_SIZE for entry in log.entries[100:140]}
    assert asked == len(holding) + len(log.segments), "the segments of the range, and then all"


def test_entries_that_no_index_unit_tells_of_are_read_too(
    log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dledger.spark.live_replicas.ENTRIES_ASKED", 20)
    store = write_store(log, tmp_path / "n0", committed=50)
    for file in (store / "dledger-n0" / "index").iterdir():
        file.unlink()
    with live_group([store]) as group:
        found = rows_of(live(group, view="entries", isolation="all"))
    assert [row["index"] for row in found] == list(range(len(log.entries)))


@pytest.mark.parametrize(("asked", "isolation"), [(64 * 1024, "all"), (10, "committed")])
@pytest.mark.parametrize(
    "name", ["flipped body byte", "rewritten committed entry", "zeroed pages", "deleted segment"]
)
@pytest.mark.sample(4)
def test_damage_is_told_as_in_the_directories(
    name: str, asked: int, isolation: str, log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dledger.spark.live_replicas.ENTRIES_ASKED", asked)
    stores = write_group(log, tmp_path)
    next(by_names(name)).inject(stores, log)
    with live_group(stores) as group:
        found = rows_of(live(group, view="entries", isolation=isolation))
    assert found == of_directories(stores, view="entries", isolation=isolation)


@pytest.mark.parametrize("asked", [64 * 1024, 10])
@pytest.mark.parametrize("which", [0, 2, -1])
def test_a_segment_whose_head_is_damaged_gives_the_same_entries(
    which: int, asked: int, log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dledger.spark.live_replicas.ENTRIES_ASKED", asked)
    store = write_store(log, tmp_path / "n0")
    start = sorted(log.segments)[which]
    flip(store, next(entry for entry in log.entries if entry.pos == start), 9)
    with live_group([store]) as group:
        found = rows_of(live(group, view="entries"))
    expected = rows_of(view(store, view="entries"))
    assert found == expected
    assert 0 < len(expected) < len(log.entries)


def test_what_cannot_be_asked_or_read_fails_or_is_a_row(log: Log, tmp_path: Path) -> None:
    stores = write_group(log, tmp_path)
    bad = segment_path(stores[1], SEGMENT_SIZE)
    bad.unlink()
    bad.mkdir()  # reading it fails, also for root
    with live_group(stores) as group:
        with pytest.raises(CorruptMessage, match=f"n1: .*{segment_name(SEGMENT_SIZE)}"):
            rows_of(live(group, view="entries"))
        found = rows_of(live(group, view="entries", corruptRecords="include"))
        assert found == of_directories(stores, view="entries", corruptRecords="include")
        assert [row["replica"] for row in found if row["damage"] == 8] == ["n1"]
        group.stop(2)
        with pytest.raises(StoreError, match=r"n2: .* does not answer: .*corruptRecords=include"):
            rows_of(live(group, view="entries"))
        included = live(group, view="entries", corruptRecords="include")
        parts = included.plan()
        group.stop(0)
        found = [row for part in parts for batch in included.read(part) for row in batch.to_pylist()]
    assert {row["replica"]: row["index"] for row in found if row["damage"] == 8} == dict.fromkeys(
        ("n0", "n1", "n2"), -1
    )
    assert {row["replica"] for row in found if row["index"] >= 0} == {"n1"}


def test_brokers_of_an_older_release_refuse_clearly(log: Log, stores: list[Path], tmp_path: Path) -> None:
    with live_group(stores) as group:
        for broker in group.brokers:
            del broker.server.handlers[RequestCode.AUDIT_ENTRIES]
        with pytest.raises(BrokerRefused, match=r"3 REQUEST_CODE_NOT_SUPPORTED.*too old"):
            rows_of(live(group, view="entries"))
        assert rows_of(live(group, view="scan"))


def test_no_answer_is_larger_than_a_job_may_be(group: LiveGroup, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row of 72 bytes an entry: what is asked for at once is far below what fails a job."""
    from dledger.broker.audit.audit_jobs import MAX_JOB_BYTES
    from dledger.spark.live_replicas import ENTRIES_ASKED

    assert 72 * ENTRIES_ASKED < MAX_JOB_BYTES / 4
    monkeypatch.setattr("dledger.broker.audit.audit_jobs.MAX_JOB_BYTES", 5000)
    with pytest.raises(BrokerRefused, match="TooManyRows"):
        rows_of(live(group, view="entries"))
    monkeypatch.setattr("dledger.spark.live_replicas.ENTRIES_ASKED", 60)
    assert rows_of(live(group, view="entries"))


# --- index ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"indexRanges": "3-5,90,890-100000"}, {"indexRanges": "1000000"}])
@pytest.mark.parametrize("asked", [128 * 1024, 50])
def test_index_units_are_those_of_the_directories(
    group: LiveGroup,
    stores: list[Path],
    options: dict[str, str],
    asked: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("dledger.spark.live_replicas.UNITS_ASKED", asked)
    found = rows_of(live(group, view="index", **options))
    assert found == of_directories(stores, view="index", **options)
    assert bool(found) == ("1000000" not in options.values())


def test_wrong_and_missing_units_are_shown_as_they_are(
    log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of the broker begin anew every few units: holes between and within them."""
    monkeypatch.setattr("dledger.broker.audit.audit_processor._ROW_UNITS", 8)
    store = write_store(log, tmp_path / "n0")
    with (store / "dledger-n0" / "index" / f"{0:020}").open("r+b") as file:
        file.seek(10 * INDEX_UNIT_SIZE)
        file.write(INDEX_UNIT.pack(7, 123, 45, 6, 7))
        file.seek(30 * INDEX_UNIT_SIZE)
        file.write(bytes(20 * INDEX_UNIT_SIZE))
    with live_group([store]) as group:
        found = rows_of(live(group, view="index"))
    assert found == rows_of(view(store, view="index"))
    assert [row["number"] for row in found] == [*range(30), *range(50, len(log.entries))]
    assert tuple(found[10].values()) == ("n0", 10, 6, 7, 123, 45, 7)


def test_index_files_that_cannot_be_read_and_brokers_that_are_down_fail(log: Log, tmp_path: Path) -> None:
    stores = write_group(log, tmp_path)
    with live_group(stores) as group:
        planned = live(group, view="index")
        parts = planned.plan()
        file = stores[1] / "dledger-n1" / "index" / f"{0:020}"
        file.unlink()
        file.mkdir()  # reading it fails, also for root
        assert [*planned.read(parts[0])] and [*planned.read(parts[2])]
        with pytest.raises(CorruptMessage, match=r"n1: .*/index: "):
            [*planned.read(parts[1])]
        group.stop(2)
        with pytest.raises(StoreError, match=r"n2: .* does not answer"):
            live(group, view="index").plan()
        with pytest.raises(NoBroker):
            [*planned.read(parts[2])]


@pytest.mark.parametrize(("first", "count"), [(-1, 5), (0, 0), (0, (1 << 18) + 1), (3, -1)])
def test_how_many_units_may_be_asked_for(group: LiveGroup, first: int, count: int) -> None:
    with ReplicaClient(group.brokers[0].address) as client:
        description, _ = client.describe(DIGEST_VERSION)
        assert list(client.units(description, 0, 1 << 18))
        with pytest.raises(BrokerRefused, match=f"{count} units from unit {first} on: ask for 1 to 262144"):
            list(client.units(description, first, count))
