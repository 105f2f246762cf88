"""The audit of a table finds what somebody changed by hand, and nothing else."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("deltalake")
pytest.importorskip("pyiceberg")

import pyarrow as pa
from deltalake import DeltaTable

from dledger.lake.opening import Place, open_table
from dledger.lake.rows import SCHEMA
from dledger.lake.table_audit import audit_table
from dledger.lake.tables import About
from tests.lake.by_hand import DeltaHand, Hand, IcebergHand, Row, change, copied
from tests.lake.lake_kit import Group

QUEUE, OFFSET = 1, 7
"""The row that is changed."""
WHERE = f"queue = {QUEUE} and offset = {OFFSET}"
MILLISECOND = timedelta(milliseconds=1)
ByHand = Callable[[Hand], None]


@dataclass(frozen=True)
class Change:
    """`by_hand` changes a table. `codes`: what is found with the log, `alone`: without it."""

    name: str
    by_hand: ByHand
    codes: frozenset[str]
    alone: frozenset[str]

    def __str__(self) -> str:
        return self.name


def _is_it(row: Row) -> bool:
    return (row["queue"], row["offset"]) == (QUEUE, OFFSET)


def _delete(where: str) -> ByHand:
    return lambda hand: hand.delete(where)


def _set(**values: Any) -> ByHand:
    """Change columns of one row: to a value, or by a function of the old one."""

    def new(row: Row) -> Row:
        given = {name: value(row[name]) if callable(value) else value for name, value in values.items()}
        return row | given

    return lambda hand: change(hand, WHERE, new, _is_it)


def _again(**values: Any) -> ByHand:
    """Add the row again, with other values in some columns."""

    def by_hand(hand: Hand) -> None:
        (row,) = [row for row in hand.rows() if _is_it(row)]
        hand.append(pa.Table.from_pylist([row | values], SCHEMA))

    return by_hand


def _all(*changes: ByHand) -> ByHand:
    def by_hand(hand: Hand) -> None:
        for one in changes:
            one(hand)

    return by_hand


def _file(hand: Hand) -> None:
    """The rows of one batch are dropped, as with a file."""
    first, last = sorted((one["first_index"], one["last_index"]) for one in hand.certificates())[3]
    hand.delete(f"log_index >= {first} and log_index <= {last}")


def _certificate(**values: object) -> ByHand:
    def by_hand(hand: Hand) -> None:
        rows = sorted(hand.certificates(), key=lambda one: one["first_index"])
        rows[3] = rows[3] | values
        hand.replace_certificates(rows)

    return by_hand


def _lose_one(hand: Hand) -> None:
    rows = sorted(hand.certificates(), key=lambda one: one["first_index"])
    hand.replace_certificates([*rows[:3], *rows[4:]])


MISSING, DOUBLED = frozenset({"TABLE_ROW_MISSING"}), frozenset({"TABLE_ROW_DOUBLED"})
CHANGED, FOREIGN = frozenset({"TABLE_ROW_CHANGED"}), frozenset({"TABLE_ROW_FOREIGN"})
DIFFERS, CERTIFICATE = frozenset({"TABLE_DIFFERS"}), frozenset({"TABLE_CERTIFICATE"})
UNPROVEN = frozenset({"TABLE_UNPROVEN"})

CHANGES = (
    Change("row dropped", _delete(WHERE), MISSING, MISSING),
    Change("first row of a queue dropped", _delete("queue = 0 and offset = 0"), MISSING, DIFFERS),
    Change("last rows dropped", _delete("log_index > 290"), MISSING, DIFFERS),
    Change("row with a key dropped", _delete("keys = 'k6'"), MISSING, MISSING),
    Change("rows with a tag dropped", _delete("tags = 'B'"), MISSING, MISSING | DIFFERS),
    Change("rows without a tag dropped", _delete("tags is null"), MISSING, DIFFERS),
    Change("a queue dropped", _delete("queue = 2"), MISSING, DIFFERS),
    Change("all rows dropped", _delete("offset >= 0"), MISSING, DIFFERS),
    Change("a batch dropped", _file, MISSING, DIFFERS),
    Change("rolled back", lambda hand: hand.go_back(2), MISSING, DIFFERS),
    Change("row doubled", _again(), DOUBLED, DOUBLED),
    Change("row tripled", _all(_again(), lambda hand: _once_more(hand)), DOUBLED, DOUBLED),
    Change("table doubled", lambda hand: _table_again(hand), DOUBLED, DOUBLED),
    Change("body changed", _set(body=b"x"), CHANGED, DIFFERS),
    Change("a bit of a body changed", _set(body=lambda old: bytes([old[0] ^ 1]) + old[1:]), CHANGED, DIFFERS),
    Change("body empty", _set(body=b""), CHANGED, DIFFERS),
    Change("body null", _set(body=None), CHANGED, DIFFERS),
    Change("keys changed", _set(keys="other"), CHANGED, DIFFERS),
    Change("keys null", _set(keys=None), CHANGED, DIFFERS),
    Change("tags changed", _set(tags="Z"), CHANGED, DIFFERS),
    Change("tags empty", _set(tags=""), CHANGED, DIFFERS),
    Change("flag changed", _set(flag=7), CHANGED, DIFFERS),
    Change("keys and tags swapped", _set(keys="B", tags="k30"), CHANGED, DIFFERS),
    Change("store time moved", _set(store_time=lambda old: old + MILLISECOND), CHANGED, DIFFERS),
    Change("born time moved", _set(born_time=lambda old: old - timedelta(days=1)), CHANGED, DIFFERS),
    Change("queue changed", _set(queue=9), CHANGED, MISSING),
    Change("offset changed", _set(offset=lambda old: old + 1000), CHANGED, MISSING),
    Change("offset of another row", _set(offset=lambda old: old + 1), CHANGED, DOUBLED | MISSING),
    Change("term changed", _set(log_term=lambda old: old + 1), CHANGED, DIFFERS),
    Change("group changed", _set(broker_group="other"), CHANGED, DIFFERS),
    Change("topic changed", _set(topic="other"), CHANGED, MISSING),
    Change("day changed", _set(day=lambda old: old + timedelta(days=1)), CHANGED, DIFFERS),
    Change("life changed", _set(life="c0.99"), CHANGED, MISSING),
    Change("life null", _set(life=None), MISSING | FOREIGN, MISSING | FOREIGN),
    Change("life of another log", _set(life="c1.0"), MISSING | FOREIGN, MISSING | FOREIGN),
    Change("index changed", _set(log_index=lambda old: old + 10**6), MISSING | FOREIGN, FOREIGN | DIFFERS),
    Change("index null", _set(log_index=None), MISSING | FOREIGN, FOREIGN | DIFFERS),
    Change("index of another topic's message", _set(log_index=7), MISSING | FOREIGN, DIFFERS),
    Change("property changed", _set(properties=[("KEYS", "k"), ("TAGS", "B")]), CHANGED, DIFFERS),
    Change("property added", _set(properties=lambda old: [*old, ("a", "b")]), CHANGED, DIFFERS),
    Change("properties joined into one", _set(properties=[("KEYS", "k30\x02TAGS\x01A")]), CHANGED, DIFFERS),
    Change("a property null", _set(properties=lambda old: [(old[0][0], None), *old[1:]]), CHANGED, DIFFERS),
    Change("the oldest rows with their certificates", lambda hand: _forget_oldest(hand), UNPROVEN, UNPROVEN),
    Change("all rows and certificates", lambda hand: _forget_all(hand), UNPROVEN, UNPROVEN),
    Change("a living topic left out", lambda hand: _leave_out(hand), CERTIFICATE, CERTIFICATE),
    Change("properties null", _set(properties=None), CHANGED, DIFFERS),
    Change("a row of nobody", _again(log_index=7), FOREIGN, DIFFERS),
    Change("a row of the future", _again(log_index=1 << 40), FOREIGN, FOREIGN),
    Change("a changed copy beside the row", _again(body=b"x"), DOUBLED, DOUBLED),
    Change("dropped and another doubled", _all(_again(), _delete("queue = 1 and offset = 8")),
           MISSING | DOUBLED, MISSING | DOUBLED),
    Change("certificates removed", lambda hand: hand.lose_certificates(), UNPROVEN, UNPROVEN),
    Change("a certificate removed", _lose_one, UNPROVEN | FOREIGN, UNPROVEN | FOREIGN),
    Change("digest of a certificate changed", _certificate(digest="00"), CERTIFICATE, DIFFERS),
    Change("count of a certificate changed", _certificate(rows=1), CERTIFICATE, DIFFERS),
    Change("chain of a certificate changed", _certificate(chain_last=1), CERTIFICATE, CERTIFICATE),
    Change("births of a certificate changed", _certificate(births='{"orders": 5}'),
           CERTIFICATE | CHANGED, CERTIFICATE),
)  # fmt: skip


def _table_again(hand: Hand) -> None:
    hand.append(pa.Table.from_pylist(hand.rows(), SCHEMA))


def _forget_oldest(hand: Hand) -> None:
    rows = sorted(hand.certificates(), key=lambda one: one["first_index"])
    hand.delete(f"log_index < {rows[4]['first_index']}")
    hand.replace_certificates(rows[4:])


def _forget_all(hand: Hand) -> None:
    hand.delete("offset >= 0")
    hand.lose_certificates()


def _leave_out(hand: Hand) -> None:
    """The rows of a life, and the certificates say that it was left out on purpose."""
    life = hand.rows()[0]["life"]
    hand.delete("offset >= 0")
    gone = {"rows": 0, "digest": "0", "dropped": json.dumps([["orders", life]])}
    hand.replace_certificates([one | gone for one in hand.certificates()])


def _once_more(hand: Hand) -> None:
    row = next(row for row in hand.rows() if _is_it(row))
    hand.append(pa.Table.from_pylist([row], SCHEMA))


@pytest.fixture(scope="module", params=["delta", "iceberg"])
def filled(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Group:
    group = Group(tmp_path_factory.mktemp("lake"), format=request.param)
    group.writer().catch_up()
    return group


@pytest.mark.parametrize("changed", CHANGES, ids=str)
def test_what_was_changed_by_hand_is_named(filled: Group, tmp_path: Path, changed: Change) -> None:
    with copied(filled, tmp_path) as hand:
        changed.by_hand(hand)
        table = open_table(Place("", hand.place, {}))
        assert {found.code for found in audit_table(table, [filled.write()]).findings} == changed.codes
        assert {found.code for found in audit_table(table).findings} == changed.alone


def test_an_honest_table_has_no_finding(filled: Group) -> None:
    table = filled.table()
    for logs, word in (([filled.write()], "log"), ([], "itself")):
        report = audit_table(table, logs)
        assert not report.findings and report.rows == table.count()
        assert {one.compared_with for one in report.ranges} == {word}


def test_rows_keep_their_proof_when_others_compact_files(filled: Group, tmp_path: Path) -> None:
    with copied(filled, tmp_path) as hand:
        if isinstance(hand, DeltaHand):
            raw = DeltaTable(hand.place)
            raw.optimize.compact()
            raw.optimize.z_order(["queue", "offset"])
            raw.vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False, full=True)
            raw.create_checkpoint()
        elif isinstance(hand, IcebergHand):
            raw_table = hand.table()
            raw_table.overwrite(raw_table.scan().to_arrow().sort_by("offset"))
        assert not audit_table(open_table(Place("", hand.place, {})), [filled.write()]).findings


def test_a_row_that_is_named_says_where_it_was(filled: Group, tmp_path: Path) -> None:
    with copied(filled, tmp_path) as hand:
        life = hand.rows()[0]["life"]
        _delete(WHERE)(hand)
        (found,) = audit_table(open_table(Place("", hand.place, {})), [filled.write()]).findings
    text = f"the table lacks orders queue {QUEUE} offset {OFFSET} of life {life}, entry {found.first_index}"
    assert found.detail == text


def test_topics_of_one_table_are_audited_together(tmp_path: Path, format: str) -> None:
    group = Group(tmp_path, about=About(("orders", "payments")), format=format)
    table = group.fill()
    assert not audit_table(table, [group.write()]).findings
    hand = (
        DeltaHand(group.place) if format == "delta" else IcebergHand(group.place, "dledger.orders_payments")
    )
    hand.delete("topic = 'payments' and offset = 3")
    findings = audit_table(open_table(Place("", group.place, {})), [group.write()]).findings
    assert findings and all("the table lacks payments queue" in found.detail for found in findings)
