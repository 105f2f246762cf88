"""Rows of scans as files: whole or not there, used again only while they say all that a scan would say."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("pyarrow")

from dledger.audit.compare import analyse, split_blocks
from dledger.audit.digests import differing, merge
from dledger.audit.findings import BoundRow, FlatRow, Row, finding, flatten
from dledger.audit.scan import EntryRow, scan_segment, scan_side
from dledger.audit.shipped_scans import (
    SCHEMA,
    SIDE,
    Place,
    Scan,
    ShippedRowsError,
    collect,
    decode_rows,
    encode_rows,
    find_scans,
    forget_scans,
    read_scan,
    reusable,
    segment_bound,
    side_bound,
    write_scan,
)
from dledger.audit.store_directory import Replica, open_store, segment_tasks
from dledger.runtime.files import OsFiles
from tests.audit.engine import audit
from tests.audit.store_builder import SEGMENT_SIZE, Log, cut_after, flip, sample_log, write_group

FILES = OsFiles()
NOW = 1_800_000_000_000


@pytest.fixture(scope="module")
def log() -> Log:
    return sample_log()


def opened(store: Path) -> Replica:
    (replica,) = open_store(FILES, str(store))
    return replica


def ship(root: Path, store: Path) -> Replica:
    """What a broker does: segments first, the side last."""
    replica = opened(store)
    for task in segment_tasks(replica):
        rows = list(scan_segment(FILES, task))
        write_scan(FILES, str(root), segment_bound(replica.row(), task, rows, NOW), rows)
    write_scan(
        FILES, str(root), side_bound(replica.row(), segment_tasks(replica), NOW), scan_side(FILES, replica)
    )
    return replica


def scan(root: Path, replica: Replica, segment: int) -> Scan:
    found = read_scan(FILES, str(root), Place(replica.row().group, replica.name, segment))
    assert found is not None
    return found


def no_drill(ranges: list[tuple[int, int]]) -> list[EntryRow]:
    raise AssertionError(f"nothing differs, but {ranges} would be read again")


def codes(rows: list[Row]) -> list[str]:
    others, blocks = split_blocks(rows)
    return [found.code for found in analyse(others, differing(merge(blocks)), lambda ranges: []).ordered()]


def test_columns_are_those_of_flat_rows() -> None:
    assert tuple(SCHEMA.names) == FlatRow._fields


def test_rows_survive_the_file(log: Log, tmp_path: Path) -> None:
    store = write_group(log, tmp_path, 1)[0]
    replica = ship(tmp_path / "shipped", store)
    task = segment_tasks(replica)[1]
    found = scan(tmp_path / "shipped", replica, task.start)
    assert found.rows == list(scan_segment(FILES, task))
    assert (found.bound.first_index, found.bound.next_first) == (task.first_index, task.next_first)
    assert decode_rows(encode_rows([]), "nothing") == []


def test_names_are_escaped_as_spark_does(tmp_path: Path) -> None:
    place = Place("", "n0@/data/a=b", SIDE)
    assert place.directory("r") == (
        "r/group=__HIVE_DEFAULT_PARTITION__/replica=n0@%2Fdata%2Fa%3Db/segment=side"
    )
    bound = side_bound_named("", "n0@/data/a=b")
    write_scan(FILES, str(tmp_path), bound, [])
    assert find_scans(FILES, str(tmp_path)) == [place]


def side_bound_named(group: str, name: str) -> BoundRow:
    return BoundRow(name, SIDE, group, "o", 9, 0, -1, -1, NOW, 0, 1, 1024, ())


def test_shipped_rows_give_the_report_of_the_stores(log: Log, tmp_path: Path) -> None:
    stores = write_group(log, tmp_path)
    for store in stores:
        ship(tmp_path / "shipped", store)
    others, blocks = split_blocks(collect(FILES, str(tmp_path / "shipped"), "g0"))
    shipped = analyse(others, differing(merge(blocks)), no_drill)
    assert shipped.as_json() == {**audit(stores).as_json(), "seconds": 0.0}
    assert (shipped.exit_code, len(shipped.replicas)) == (0, 3)


def test_only_full_committed_clean_segments_are_final(log: Log, tmp_path: Path) -> None:
    stores = write_group(log, tmp_path)
    flip(stores[0], log.entries[30], 60)
    replica = ship(tmp_path / "shipped", stores[0])
    tasks = segment_tasks(replica)
    final = [scan(tmp_path / "shipped", replica, task.start).bound.final for task in tasks]
    assert final == [0, *[1] * (len(tasks) - 2), 0]  # rot in the first, the last one still grows
    cut_after(stores[1], log, len(log.entries) - 1, committed=400)
    replica = ship(tmp_path / "shipped", stores[1])
    for task in segment_tasks(replica):
        bound = scan(tmp_path / "shipped", replica, task.start).bound
        assert bound.final == int(task.next_first is not None and task.next_first - 1 <= 400)


def test_a_segment_whose_queue_units_lag_is_not_final(log: Log, tmp_path: Path) -> None:
    store = write_group(log, tmp_path, 1)[0]
    path = store / "consumequeue" / "orders" / "1" / f"{0:020d}"
    path.write_bytes(path.read_bytes()[: 20 * 20])
    replica = ship(tmp_path / "shipped", store)
    assert [scan(tmp_path / "shipped", replica, t.start).bound.final for t in segment_tasks(replica)][1] == 0


def test_rows_are_used_again_only_for_the_same_segment(log: Log, tmp_path: Path) -> None:
    store = write_group(log, tmp_path, 1)[0]
    replica = ship(tmp_path / "shipped", store)
    task = segment_tasks(replica)[1]
    bound = scan(tmp_path / "shipped", replica, task.start).bound
    assert reusable(bound, replica.row(), task)
    for field, other in (
        ("origin", "another"),
        ("size", 1),
        ("first_index", 7),
        ("next_first", 7),
        ("version", 0),
        ("block_entries", 256),
        ("final", 0),
    ):
        assert not reusable(bound._replace(**{field: other}), replica.row(), task), field
    assert not reusable(bound, replica.row(), task, not_before_ms=NOW + 1)
    assert not reusable(bound, replica.row(), segment_tasks(replica)[2])


def test_rows_with_fields_that_are_missing_are_no_rows(log: Log, tmp_path: Path) -> None:
    (store,) = write_group(log, tmp_path, 1)
    ship(tmp_path / "shipped", store)
    place = Place("g0", "n0", 0)
    path = Path(place.path(str(tmp_path / "shipped")))
    scan = read_scan(FILES, str(tmp_path / "shipped"), place)
    assert scan is not None
    flat = [flatten(row) for row in (scan.bound, *scan.rows)]
    kinds = {row.kind for row in flat} - {"block"}
    assert {"bound", "segment", "queue"} <= kinds
    for kind in sorted(kinds):
        path.write_bytes(encode_rows(row._replace(data="[]") if row.kind == kind else row for row in flat))
        with pytest.raises(ShippedRowsError):
            read_scan(FILES, str(tmp_path / "shipped"), place)


def test_what_lacks_or_cannot_be_believed_is_4(log: Log, tmp_path: Path) -> None:
    shipped = tmp_path / "shipped"
    replicas = [ship(shipped, store) for store in write_group(log, tmp_path)]
    first = Place("g0", "n0", 0)
    whole = Path(first.path(str(shipped))).read_bytes()

    Path(first.path(str(shipped))).write_bytes(whole[:-30])
    assert codes(collect(FILES, str(shipped), "g0")) == ["UNREADABLE"]
    with pytest.raises(ShippedRowsError, match=r"rows\.parquet: no rows of a scan"):
        read_scan(FILES, str(shipped), first)

    FILES.rmtree(first.directory(str(shipped)))
    assert codes(collect(FILES, str(shipped), "g0")) == ["UNREADABLE"]

    task = segment_tasks(replicas[0])[0]
    rows = list(scan_segment(FILES, task))
    good = segment_bound(replicas[0].row(), task, rows, NOW)
    for bound in (
        good._replace(origin="before it was wiped"),
        good._replace(version=0),
        good._replace(committed=5, final=0),
    ):
        write_scan(FILES, str(shipped), bound, rows)
        assert codes(collect(FILES, str(shipped), "g0")) == ["UNREADABLE"], bound
    write_scan(FILES, str(shipped), good, rows)
    assert codes(collect(FILES, str(shipped), "g0")) == []

    FILES.rmtree(Place("g0", "n0", SIDE).directory(str(shipped)))
    assert codes(collect(FILES, str(shipped), "g0")) == ["UNREADABLE"]


def test_retired_segments_are_left_out_and_forgotten(log: Log, tmp_path: Path) -> None:
    shipped = tmp_path / "shipped"
    replica = ship(shipped, write_group(log, tmp_path, 1)[0])
    starts = [segment.start for segment in replica.segments]
    side = side_bound(replica.row(), segment_tasks(replica), NOW)._replace(segments=tuple(starts[1:]))
    write_scan(FILES, str(shipped), side, scan_side(FILES, replica))
    rows = collect(FILES, str(shipped), "g0")
    assert {row.segment for row in rows if hasattr(row, "stop")} == set(starts[1:])
    assert forget_scans(FILES, str(shipped), "g0", "n0", starts[1:]) == 1
    assert [place.segment for place in find_scans(FILES, str(shipped))] == [SIDE, *starts[1:]]


def test_a_file_without_a_bound_is_refused(tmp_path: Path) -> None:
    place = Place("g", "r", 0)
    path = Path(place.path(str(tmp_path)))
    path.parent.mkdir(parents=True)
    path.write_bytes(encode_rows([flatten(finding("LAGGING", "r", "x"))]))
    with pytest.raises(ShippedRowsError, match="first row"):
        read_scan(FILES, str(tmp_path), place)
    path.write_bytes(encode_rows([]))
    with pytest.raises(ShippedRowsError):
        read_scan(FILES, str(tmp_path), place)


def test_half_written_files_are_not_seen(log: Log, tmp_path: Path) -> None:
    shipped = tmp_path / "shipped"
    ship(shipped, write_group(log, tmp_path, 1)[0])
    before = find_scans(FILES, str(shipped))
    directory = Path(Place("g0", "n0", SEGMENT_SIZE).directory(str(shipped)))
    (directory / ".rows.parquet.tmp").write_bytes(b"half")
    (directory.parent / f"segment={9 * SEGMENT_SIZE:020d}").mkdir()
    assert find_scans(FILES, str(shipped)) == before
