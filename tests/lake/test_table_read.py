"""`dledger.read` of a table alone, without brokers."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("deltalake")
pytest.importorskip("pyiceberg")

import dledger
from dledger.lake.opening import Place, make_table
from dledger.lake.tables import About, TableError
from dledger.spark.option_values import BadOption
from tests.audit.store_builder import sample_log
from tests.lake.lake_kit import Group, rows_of
from tests.lake.test_table_care import with_lives


def test_a_table_is_read_without_brokers(tmp_path: Path, format: str) -> None:
    group = Group(tmp_path, format=format)
    rows = rows_of(group.fill())
    found = dledger.read(table=group.place).read_all()
    assert {"key", "value", "offset", "logIndex"} < set(found.column_names)
    assert sorted(found["logIndex"].to_pylist()) == [row["log_index"] for row in rows]
    some = dledger.read(
        table=group.place, columns=["offset", "group"], endingTimestamp="2001-01-01"
    ).read_all()
    assert some.column_names == ["offset", "group"] and some.num_rows == 0


def test_messages_of_deleted_topics_are_left_out(tmp_path: Path, format: str) -> None:
    group, _ = with_lives(tmp_path, format)
    assert len(rows_of(group.fill())) == 150
    found = dledger.read(table=group.place, columns="value").read_all()
    assert found.num_rows == 60, "those of the topic that exists"


def test_one_of_two_tables_in_a_directory(tmp_path: Path) -> None:
    place = str(tmp_path / "catalog")
    for topic in ("orders", "payments"):
        about = About((topic,))
        table = make_table(Place("iceberg", place, {"table": f"shop.{topic}"}), about)
        Group(tmp_path / topic, sample_log(300), about).writer(table).catch_up()
    with pytest.raises(TableError, match=r"shop\.orders, shop\.payments: .*NAMESPACE\.TABLE .*table_options"):
        dledger.read(table=place)
    found = dledger.read(table=place, table_options={"table": "shop.payments"}, columns=["topic"])
    assert set(found.read_all()["topic"].to_pylist()) == {"payments"}


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"path": "n0", "table": "t"}, "path and table exclude each other"),
        ({"path": "n0", "table_options": {"table": "a"}}, "table_options has no effect without table"),
        ({"table": "t", "startingOffsets": "earliest"}, "startingOffsets cannot be given with table"),
    ],
)
def test_what_does_not_fit_is_refused(given: dict[str, object], text: str) -> None:
    with pytest.raises(BadOption, match=text):
        dledger.read(**given)  # type: ignore[arg-type]
