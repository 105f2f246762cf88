"""Tables are kept in order: small files are compacted, certificates merged, deleted topics removed."""

from __future__ import annotations

import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("deltalake")
pytest.importorskip("pyiceberg")

from dledger.formats.life import Life
from dledger.lake import writer
from dledger.lake.batches import Batch
from dledger.lake.certificates import compacted, series
from dledger.lake.deleted import drop_deleted
from dledger.lake.iceberg_files import remove_old
from dledger.lake.opening import Place, make_table
from dledger.lake.table_audit import audit_table
from dledger.lake.tables import About, TableChanged, TableError, TopicTable
from tests.audit.store_builder import Log
from tests.lake.by_hand import IcebergHand
from tests.lake.lake_kit import Group, delete_topic, make_topic, rows_of


def with_lives(tmp_path: Path, format: str) -> tuple[Group, list[str]]:
    """A topic in three lives of 40, 50 and 60 messages."""
    log = Log()
    log.open_term(1)
    lives = []
    for count in (40, 50, 60):
        lives.append(str(Life("c0", make_topic(log))))
        for number in range(count):
            log.message("orders", b"%d " % number * 40, queue_id=number % 2)
        if count != 60:
            delete_topic(log)
    return Group(tmp_path, log, format=format), lives


def test_small_files_are_written_together_and_keep_their_proof(tmp_path: Path, format: str) -> None:
    group = Group(tmp_path, format=format)
    table = group.fill()
    rows = rows_of(table)
    assert table.compact() > 5
    assert rows_of(table) == rows
    assert table.compact() == 0
    assert not audit_table(group.table(), [group.write()]).findings
    assert group.writer().catch_up() == 0


def test_a_compaction_between_two_batches_disturbs_no_writer(tmp_path: Path, format: str) -> None:
    group = Group(tmp_path, format=format)
    other = group.table()

    class Compacting:
        def __init__(self, table: TopicTable) -> None:
            self._table = table
            self.left = 3

        def __getattr__(self, name: str) -> object:
            return getattr(self._table, name)

        def add(self, rows: object, certificate: object) -> None:
            if self.left:
                self.left -= 1
                other.compact()
            self._table.add(rows, certificate)  # type: ignore[arg-type]

    rows = group.writer(Compacting(group.table())).catch_up()  # type: ignore[arg-type]
    assert rows == len(rows_of(group.table()))
    assert not audit_table(group.table(), [group.write()]).findings


def test_the_messages_of_deleted_topics_can_be_removed(tmp_path: Path, format: str) -> None:
    group, lives = with_lives(tmp_path, format)
    table = group.fill()
    assert len(rows_of(table)) == 150
    assert [one.life for one in drop_deleted(table, "c0")] == sorted(lives[:2])
    assert {row["life"] for row in rows_of(table)} == {lives[2]} and table.count() == 60
    for logs in ([group.write()], []):
        assert not audit_table(group.table(), logs).findings
    assert drop_deleted(table, "c0") == []
    group.log.message("orders", b"later")
    assert group.writer().catch_up() == 1
    assert not audit_table(group.table(), [group.write()]).findings


def test_an_interrupted_removal_is_seen_and_done_by_the_next(tmp_path: Path, format: str) -> None:
    group, lives = with_lives(tmp_path, format)
    group.fill()

    class Killed(Exception):
        pass

    class Dying:
        def __init__(self, table: TopicTable) -> None:
            self._table = table

        def __getattr__(self, name: str) -> object:
            return getattr(self._table, name)

        def delete_lives(self, lives: object) -> None:
            raise Killed

    with pytest.raises(Killed):
        drop_deleted(Dying(group.table()), "c0")  # type: ignore[arg-type]
    assert audit_table(group.table(), [group.write()]).findings
    assert [one.life for one in drop_deleted(group.table(), "c0")] == sorted(lives[:2])
    assert not audit_table(group.table(), [group.write()]).findings


def test_only_what_the_table_itself_saw_deleted_is_removed(tmp_path: Path, format: str) -> None:
    """The topic is deleted and made again behind the end of the table."""
    group, lives = with_lives(tmp_path, format)
    table = group.fill()
    delete_topic(group.log)
    newest = str(Life("c0", make_topic(group.log)))
    group.log.message("orders", b"new")
    assert [one.life for one in drop_deleted(table, "c0")] == sorted(lives[:2])
    assert {row["life"] for row in rows_of(table)} == {lives[2]}
    group.fill()
    assert [one.life for one in drop_deleted(group.table(), "c0")] == [lives[2]]
    assert {row["life"] for row in rows_of(group.table())} == {newest}
    assert not audit_table(group.table(), [group.write()]).findings


def test_a_certificate_that_comes_meanwhile_is_not_lost(tmp_path: Path, format: str) -> None:
    group, lives = with_lives(tmp_path, format)
    table = group.fill()
    certified = table.certificates()
    group.log.message("orders", b"later")
    group.fill()
    with pytest.raises(TableChanged):
        table.replace_certificates(certified)
    assert not audit_table(group.table(), [group.write()]).findings
    assert [one.life for one in drop_deleted(group.table(), "c0")] == sorted(lives[:2])


def test_a_late_certificate_of_a_writer_that_was_overtaken_is_no_finding(tmp_path: Path, format: str) -> None:
    group, _ = with_lives(tmp_path, format)
    stale = group.batches(1 << 20)
    table = group.fill()
    drop_deleted(table, "c0")
    for batch in stale:
        table.certify(batch.certificate)
    assert not audit_table(group.table(), [group.write()]).findings


def test_certificates_are_merged_when_there_are_many(
    tmp_path: Path, format: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    group, _ = with_lives(tmp_path, format)
    group.fill()
    count = len(group.table().certificates())
    assert count > 6
    monkeypatch.setattr(writer, "MAX_CERTIFICATES", 6)
    monkeypatch.setattr(writer, "TIDY_COMMITS", 0)
    group.log.message("orders", b"later")
    group.writer().catch_up()
    table = group.table()
    assert len(table.certificates()) <= 3
    assert not audit_table(table, [group.write()]).findings and not audit_table(table).findings
    assert group.writer().catch_up() == 0


def test_a_series_is_found_among_certificates_of_two_writers(tmp_path: Path) -> None:
    group = Group(tmp_path)
    small, large = (group.batches(size, 250) for size in (1, 30_000))
    both = [batch.certificate for batch in (*small, *large)]
    end = 251
    for known in (both, both[::-1], both[: len(small)], both[len(small) :]):
        found = series(known, end)
        assert (found[0].first, found[-1].last) == (0, end - 1)
        assert all(later.follows(earlier) for earlier, later in pairwise(found))
        (one,) = compacted(found, 2)
        assert (one.rows, one.digest) == (sum(b.certificate.rows for b in large), _sum(large))


def _sum(batches: list[Batch]) -> int:
    (one,) = compacted([batch.certificate for batch in batches], 2)
    return one.digest


def test_a_gap_between_certificates_stays_one(tmp_path: Path) -> None:
    group = Group(tmp_path)
    known = [batch.certificate for batch in group.batches(1, 250)]
    found = series([*known[:4], *known[6:]], 251)
    assert found == [*known[:4], *known[6:]]
    assert len(compacted(found, 2)) == 2


def test_topics_that_share_a_life_are_removed_one_by_one(tmp_path: Path, format: str) -> None:
    """Topics whose birth is not recorded have the position 0 in their life, all of them the same one."""
    log = Log()
    log.open_term(1)
    for number in range(10):
        log.message("orders", b"%d" % number)
        log.message("payments", b"%d" % number)
    delete_topic(log, "payments")
    group = Group(tmp_path, log, about=About(("orders", "payments")), format=format)
    table = group.fill()
    drop_deleted(table, "c0")
    assert [row["topic"] for row in rows_of(table)] == ["orders"] * 10
    for logs in ([group.write()], []):
        assert not audit_table(group.table(), logs).findings


def test_a_word_that_names_no_catalog_is_refused_with_the_way_to_a_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(TableError, match=r"no catalog of this name; for a directory write \./ice"):
        make_table(Place("iceberg", "ice", {}), About(("orders",)))
    assert not list(tmp_path.iterdir())
    made = make_table(Place("iceberg", "./ice", {}), About(("orders",)))
    assert made.count() == 0


def test_old_snapshots_and_files_of_killed_writers_are_removed(tmp_path: Path) -> None:
    group = Group(tmp_path, format="iceberg")
    table = group.fill()
    rows = rows_of(table)
    table.file_writer().write(group.batches()[0].rows, "part-of-a-killed-task")
    raw = IcebergHand(group.place).table()
    snapshots, files = len(raw.snapshots()), _files(group)
    assert snapshots > 5
    table.compact()
    assert len(_files(group)) > len(files), "nothing is old yet"
    raw.refresh()
    assert remove_old(raw, kept_ms=-1000) > len(files) // 2
    assert len(raw.snapshots()) == 1
    left = _files(group)
    assert not [path for path in left if "killed" in path.name]
    table = group.table()
    assert rows_of(table) == rows
    assert not audit_table(table, [group.write()]).findings
    group.log.message("orders", b"one more")
    assert group.fill().count() == len(rows) + 1
    assert remove_old(IcebergHand(group.place).table()) == 0


def _files(group: Group) -> set[Path]:
    tables = Path(group.place).rglob("*")
    return {path for path in tables if path.is_file() and "orders/" in f"{path}"}


@pytest.mark.parametrize(
    ("format", "option"),
    [
        ("delta", ("--stored-before", "2026-11-21")),
        ("iceberg", ("--batch-mb", "5")),
        ("delta", ("--batch-messages", "5")),
        ("parquet", ("--schema", "infer")),
        ("parquet", ("--no-roots",)),
        ("parquet", ("--table-option", "a=b")),
    ],
)
def test_an_option_without_an_effect_on_the_format_is_refused(format: str, option: tuple[str, ...]) -> None:
    given = ("archive", "n0", "--topics", "orders", "--to", "x", "--format", format, *option)
    command = [sys.executable, "-m", "dledger", "spark", *given]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 4 and f"Error: {option[0]} " in done.stderr, done.stderr
