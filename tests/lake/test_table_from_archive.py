"""The beginning of a table comes from an archive when the log does not have it any more."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("deltalake")
pytest.importorskip("pyiceberg")

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

import dledger
from dledger.formats.store_files import segment_name
from dledger.lake.from_archive import fill_from_archive
from dledger.lake.log_reading import LogState
from dledger.lake.table_audit import audit_table
from dledger.lake.tables import About, TableError, TopicTable
from dledger.runtime.files import OsFiles
from dledger.spark.jobs.archive_files import ArchivedFile, Batch
from tests.audit.store_builder import Log
from tests.lake.lake_kit import ABOUT, Group, Row, delete_topic, make_topic, rows_of


def three_lives(tmp_path: Path, format: str, about: About = ABOUT) -> Group:
    log = Log()
    log.open_term(1)
    for count in (40, 50, 60):
        make_topic(log)
        for number in range(count):
            log.message(
                "orders", b'{"n": %d}' % number, queue_id=number % 2, properties=f"KEYS\x01k{number}\x02"
            )
            log.message("payments", b"not wanted")
        if count != 60:
            delete_topic(log)
    return Group(tmp_path, log, about, format)


def archived(group: Group, root: Path, *ends: int, changed: dict[str, Any] | None = None) -> str:
    """Make an archive of the log as the job makes it, with batches that end before these entries."""
    group.write()
    rows = dledger.read(
        str(group.store), includeHeaders=True, includeLife=True, includeDeleted=True, includeGroup=True
    ).read_all()
    rows = rows.filter(pc.is_in(rows["topic"], pa.array(["orders", "payments"])))
    (root / "_archive").mkdir(parents=True)
    first, lives = 0, {}
    for number, end in enumerate(ends):
        mine = rows.filter(pc.and_(pc.greater_equal(rows["logIndex"], first), pc.less(rows["logIndex"], end)))
        found = []
        for topic in mine["topic"].unique().to_pylist():
            part = mine.filter(pc.equal(mine["topic"], topic)).drop_columns(["topic"])
            lives[topic] = part["life"].to_pylist()[-1]
            path = f"topic={topic}/day=2023-11-14/{segment_name(number)}.parquet"
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            pq.write_table(part, root / path)
            found.append(ArchivedFile("", path, part.num_rows))
        batch = Batch(
            number, "g0", "c0", {}, {"g0": {"log": end}}, {"g0": {}}, tuple(found), lives={"g0": dict(lives)}
        )
        record = json.dumps(asdict(replace(batch, **(changed or {}))))
        (root / "_archive" / f"{segment_name(number)}.json").write_text(record)
        first = end
    return str(root)


def fill(group: Group, root: str, begin: int, rows: list[Row]) -> TopicTable:
    """Fill a table from the archive and from a log that begins with an entry. `rows` are those of the whole
    log."""
    log = group.write()
    position = log.chunk(begin).position
    births = {int(row["life"].partition(".")[2]) for row in rows}
    born = max((birth for birth in births if birth <= position), default=0)
    table = group.table()
    state = log.state()._replace(begin=begin)
    assert fill_from_archive(table, OsFiles(), root, state, {"orders": born} if born else {}).rows
    assert table.position("c0") == begin
    return group.fill()


def whole(group: Group) -> list[Row]:
    """The rows of a table that is filled from the whole log."""
    other = Group(group.store.parent / "whole", group.log, group.about, group.format)
    return rows_of(other.fill())


@pytest.mark.parametrize("begin", [50, 130, 200, 290])
def test_rows_are_those_that_the_log_had(tmp_path: Path, format: str, begin: int) -> None:
    group = three_lives(tmp_path, format)
    rows = whole(group)
    table = fill(group, archived(group, tmp_path / "archive", 60, 150, 300), begin, rows)
    assert rows_of(table) == rows
    assert not audit_table(table).findings
    assert not audit_table(table, [group.write()]).findings, "a backup that has all entries agrees"


def test_typed_bodies_come_from_the_archive_too(tmp_path: Path, format: str) -> None:
    schema = '{"type": "object", "properties": {"n": {"type": "integer"}}}'
    group = three_lives(tmp_path, format, About(("orders",), schema))
    table = fill(group, archived(group, tmp_path / "archive", 300), 200, whole(group))
    values = [row["value"]["n"] for batch in table.scan(["value"]) for row in batch.to_pylist()]
    assert len(values) == 150 and not audit_table(table, [group.write()]).findings


def test_a_table_that_has_something_takes_nothing(tmp_path: Path, format: str) -> None:
    group = three_lives(tmp_path, format)
    root = archived(group, tmp_path / "archive", 300)
    table = group.fill()
    assert fill_from_archive(table, OsFiles(), root, group.write().state()._replace(begin=100), {}).rows == 0


def _lose_a_row(root: Path) -> None:
    path = next(root.glob("topic=orders/*/*.parquet"))
    pq.write_table(pq.read_table(path, partitioning=None)[1:], path)


def _lose_a_file(root: Path) -> None:
    next(root.glob("topic=orders/*/*.parquet")).unlink()


@pytest.mark.parametrize(
    ("changed", "by_hand", "text"),
    [
        ({"positions": {"g0": {"orders/0": 7}}}, None, "archived from live brokers"),
        ({"cluster": "c1"}, None, "archive of another log"),
        (
            {"group": "g1", "positions": {"g1": {"log": 300}}, "lives": {"g1": {}}},
            None,
            "is an archive of g1, not of g0",
        ),
        ({"skipped": (("log", 3, 9),)}, None, "lacks the entries 3 to 9"),
        ({"lives": {}}, None, "did not record the lives"),
        ({"selection": {"subscribe": "payments"}}, None, "only the messages of subscribe=payments"),
        ({"selection": {"subscribe": "orders", "tags": "a"}}, None, "only the messages of"),
        ({}, _lose_a_row, "rows, and the record of the archive says"),
        ({}, _lose_a_file, "parquet"),
    ],
)
def test_an_archive_that_does_not_fit_is_refused_before_anything_is_added(
    tmp_path: Path, changed: dict[str, Any], by_hand: Callable[[Path], None] | None, text: str
) -> None:
    group = three_lives(tmp_path, "delta")
    root = archived(group, tmp_path / "archive", 300, changed=changed)
    if by_hand is not None:
        by_hand(Path(root))
    table = group.table()
    state = LogState("c0", "g0", 200, 303)
    with pytest.raises(TableError, match=text):
        fill_from_archive(table, OsFiles(), root, state, {})
    assert table.position("c0") is None and table.count() == 0


def test_a_gap_between_archive_and_log_is_refused(tmp_path: Path) -> None:
    group = three_lives(tmp_path, "delta")
    root = archived(group, tmp_path / "archive", 100)
    with pytest.raises(TableError, match="ends with entry 99 of g0, and the log begins with entry 200"):
        fill_from_archive(group.table(), OsFiles(), root, LogState("c0", "g0", 200, 303), {})


def test_a_directory_without_an_archive_is_refused(tmp_path: Path) -> None:
    group = three_lives(tmp_path, "delta")
    with pytest.raises(TableError, match="no archive"):
        fill_from_archive(group.table(), OsFiles(), f"{tmp_path}/none", LogState("c0", "g0", 200, 303), {})
