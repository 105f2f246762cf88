"""Roots in the log prove a table when the log does not hold its messages any more."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("deltalake")
pytest.importorskip("pyiceberg")

import pyarrow as pa

from dledger.audit.findings import Finding
from dledger.lake import delta, iceberg
from dledger.lake.certificates import TopicLife, digest_of, row_hashes, total
from dledger.lake.deleted import drop_deleted
from dledger.lake.opening import Place, open_table
from dledger.lake.roots import NOTHING, Root, Sum, root_of, written_roots
from dledger.lake.rows import SCHEMA
from dledger.lake.table_audit import audit_table
from dledger.lake.tables import Entries, TableError, TopicTable
from tests.lake.by_hand import Hand, Row, change, copied
from tests.lake.lake_kit import Group, delete_topic, make_topic


@pytest.fixture(scope="module", params=["delta", "iceberg"])
def filled(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Group:
    group = Group(tmp_path_factory.mktemp("lake"), format=request.param)
    group.writer().catch_up()
    return group


def _root(table: TopicTable) -> Root:
    root = root_of(table, "c0")
    assert root is not None
    return root


def _forge(hand: Hand, how: Callable[[Row], Row]) -> None:
    """Change a row, and all certificates so that they fit."""
    change(hand, "queue = 1 and offset = 7", how, lambda row: (row["queue"], row["offset"]) == (1, 7))
    rows = hand.rows()
    certified = []
    for one in hand.certificates():
        mine = [row for row in rows if one["first_index"] <= row["log_index"] <= one["last_index"]]
        digest = digest_of(pa.Table.from_pylist(mine, SCHEMA))
        certified.append(one | {"rows": len(mine), "digest": f"{digest:0128x}"})
    hand.replace_certificates(certified)


def test_rows_that_were_changed_with_their_certificates_are_found(filled: Group, tmp_path: Path) -> None:
    root = _root(filled.table())
    with copied(filled, tmp_path) as hand:
        _forge(hand, lambda row: row | {"body": b"forged"})
        table = open_table(Place("", hand.place, {}))
        assert not audit_table(table).findings
        (found,) = audit_table(table, roots=[root]).findings
        assert (found.code, found.first_index, found.last_index) == ("TABLE_ROOT", root.first, root.last)
        assert {one.compared_with for one in audit_table(table, roots=[root]).ranges} == {"itself"}


def test_a_table_that_was_rolled_back_is_found(filled: Group, tmp_path: Path) -> None:
    root = _root(filled.table())
    with copied(filled, tmp_path) as hand:
        certificates = sorted(hand.certificates(), key=lambda one: one["first_index"])
        hand.delete(f"log_index >= {certificates[-1]['first_index']}")
        hand.replace_certificates(certificates[:-1])
        codes = {
            found.code for found in audit_table(open_table(Place("", hand.place, {})), roots=[root]).findings
        }
    assert codes == {"TABLE_UNPROVEN", "TABLE_ROOT"}


def test_ranges_up_to_a_root_are_proven_by_it(tmp_path: Path, format: str) -> None:
    group = Group(tmp_path, format=format)
    batches = group.batches()
    table = group.table()
    for batch in batches[:5]:
        table.certify(batch.certificate)
        table.add(batch.rows, batch.certificate)
        table.refresh()
    older = _root(table)
    table = group.fill()
    newest = _root(table)
    report = audit_table(table, roots=[newest, older])
    assert not report.findings and {one.compared_with for one in report.ranges} == {"root"}
    (found,) = audit_table(table, roots=[replace(older, cluster="another")]).findings
    assert found.code == "TABLE_ROOT" and "has nothing of this log" in found.detail
    report = audit_table(table, roots=[older])
    assert not report.findings
    proven = [one.certificate.last for one in report.ranges if one.compared_with == "root"]
    assert max(proven) == older.last and len(proven) == 5
    assert {one.compared_with for one in audit_table(table, [group.write()], [newest]).ranges} == {"log"}


def test_certificates_that_are_merged_have_the_same_root(tmp_path: Path, format: str) -> None:
    from dledger.lake.certificates import compacted, series

    table = Group(tmp_path, format=format).fill()
    before, end = _root(table), table.position("c0")
    assert end is not None
    table.replace_certificates(compacted(series(table.certificates(), end), 4))
    table.refresh()
    assert _root(table) == before


def test_what_was_removed_on_purpose_does_not_hide_other_changes(tmp_path: Path, format: str) -> None:
    group = Group(tmp_path, format=format)
    before = _root(group.fill())
    delete_topic(group.log)
    make_topic(group.log)
    group.log.message("orders", b"of the new topic")
    table = group.fill()
    (dropped,) = drop_deleted(table, "c0")
    after = root_of(table, "c0", before)
    assert after is not None and len(after.lives) == 2
    assert before.without([dropped]) == NOTHING and after.without([dropped]).rows == 1
    for roots in ([before], [before, after]):
        report = audit_table(table, roots=roots)
        assert not report.findings
    assert {one.compared_with for one in report.ranges} == {"root"}


def test_a_root_is_not_made_from_what_was_forged(filled: Group, tmp_path: Path) -> None:
    root = _root(filled.table())
    with copied(filled, tmp_path) as hand:
        older = replace(root, last=root.last - 100)
        _forge(hand, lambda row: row | {"body": b"forged"})
        table = open_table(Place("", hand.place, {}))
        behind = Entries("c0", 0, older.last)
        digests = [digest for batch in filled_rows(filled, behind) for digest in row_hashes(batch)]
        (life,) = root.lives
        older = replace(older, lives={life: Sum(len(digests), total(digests))})
        with pytest.raises(TableError, match="do not agree with the rows or with the root of"):
            root_of(table, "c0", older)


def filled_rows(group: Group, entries: Entries) -> list[pa.RecordBatch]:
    other = Group(group.store.parent / "again", group.log, format="delta")
    return list(other.fill().scan(SCHEMA.names, entries))


def test_a_life_that_was_never_there_switches_off_nothing(filled: Group, tmp_path: Path) -> None:
    root = _root(filled.table())
    with copied(filled, tmp_path) as hand:
        _forge(hand, lambda row: row | {"body": b"forged"})
        dropped = json.dumps([["orders", "c0.0"], ["orders", "c0.5"]])
        hand.replace_certificates([one | {"dropped": dropped} for one in hand.certificates()])
        findings = audit_table(open_table(Place("", hand.place, {})), roots=[root]).findings
    assert "TABLE_ROOT" in _codes(findings)


def test_a_table_from_before_its_first_row_is_found(tmp_path: Path, format: str) -> None:
    group = Group(tmp_path, format=format)
    root = _root(group.fill())
    empty = Group(tmp_path / "older", group.log, format=format).table()
    (found,) = audit_table(empty, [group.write()], [root]).findings
    assert found.code == "TABLE_ROOT" and "has nothing of this log" in found.detail


def test_a_table_with_a_gap_in_its_certificates_has_no_root(filled: Group, tmp_path: Path) -> None:
    with copied(filled, tmp_path) as hand:
        certificates = sorted(hand.certificates(), key=lambda one: one["first_index"])
        hand.replace_certificates([*certificates[:3], *certificates[4:]])
        with pytest.raises(TableError, match="certificates are missing"):
            root_of(open_table(Place("", hand.place, {})), "c0")


ROOT = Root("t", "c", "g", 0, 9, {TopicLife("orders", "c.0"): Sum(10, 1 << 400)})


def test_a_root_is_read_as_it_was_written() -> None:
    assert Root.decode(ROOT.encode(), 0, "") == ROOT


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xff",
        b"[]",
        b"{}",
        b'"text"',
        b"[" * 200_000,
        *(
            json.dumps(json.loads(ROOT.encode()) | changed).encode()
            for changed in (
                {"more": 5},
                {"last": "9"},
                {"last": True},
                {"table": None},
                {"group": 7},
                {"lives": 7},
                {"lives": [["orders"]]},
                {"lives": [["orders", "c.0", 1, "xyz"]]},
                {"lives": [["orders", "c.0", 1, 5]]},
                {"lives": [["orders", "c.0", "1", "5"]]},
                {"lives": [["orders", "no life", 1, "5"]]},
                {"lives": [[7, "c.0", 1, "5"]]},
            )
        ),
    ],
)
def test_what_is_no_root_is_refused(body: bytes) -> None:
    with pytest.raises(ValueError, match="not a root"):
        Root.decode(body, 0, "")


def test_roots_are_read_from_store_directories(tmp_path: Path, format: str) -> None:
    group = Group(tmp_path, format=format)
    table = group.fill()
    root = _root(table)
    assert written_roots(table.uuid, stores=[str(group.store)]) == []
    make_topic(group.log, "dledger_table_roots")
    keys = f"KEYS\x01{table.uuid}\x02"
    group.log.message("dledger_table_roots", root.encode(), properties=keys)
    group.log.message("dledger_table_roots", b"of somebody else", properties=keys)
    for other in (replace(root, table="another table"), replace(root, group="another group")):
        group.log.message("dledger_table_roots", other.encode(), properties=keys)
    group.write()
    (found,) = written_roots(table.uuid, stores=[str(group.store)])
    assert replace(found, written_ms=0, place="") == root
    assert found.written_ms and found.place == "dledger_table_roots queue 0 offset 0 of g0"


def _files(group: Group) -> Sequence[Path]:
    return sorted(path for path in Path(group.place).rglob("*.parquet") if "_dledger" not in str(path))


@pytest.mark.parametrize("damage", ["removed", "cut", "emptied", "bits"])
def test_a_file_that_cannot_be_read_is_named_with_its_rows(tmp_path: Path, format: str, damage: str) -> None:
    group = Group(tmp_path, format=format)
    group.fill()
    file = next(path for path in _files(group) if "certificates" not in str(path))
    content = file.read_bytes()
    if damage == "removed":
        file.unlink()
    else:
        half = len(content) // 2
        changed = {"cut": content[:half], "emptied": b"", "bits": bytes(half) + content[half:]}
        file.write_bytes(changed[damage])
    table = open_table(Place(format, group.place, {}))
    findings = audit_table(table, [group.write()]).findings
    assert _codes(findings) == {"TABLE_FILE", "TABLE_ROW_MISSING"}
    (named,) = [found.detail for found in findings if found.code == "TABLE_FILE"]
    assert file.name in named
    assert _codes(audit_table(table).findings) >= {"TABLE_FILE"}


def test_a_storage_that_fails_is_no_damage(
    tmp_path: Path, format: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = Group(tmp_path, format=format)
    table = group.fill()

    def fail(storage: object, path: str) -> None:
        raise PermissionError(13, "Permission denied", path)

    for module in (delta, iceberg):
        monkeypatch.setattr(module, "check_storage", fail)
    next(path for path in _files(group) if "certificates" not in str(path)).unlink()
    with pytest.raises(TableError, match="Permission denied"):
        audit_table(table, [group.write()])


def _codes(findings: Sequence[Finding]) -> set[str]:
    return {found.code for found in findings}
