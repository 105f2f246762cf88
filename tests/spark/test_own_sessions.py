"""Sessions that the user made, and older releases of Spark: what the source itself can do. No session is
started."""

from __future__ import annotations

import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("pyarrow")

from pyspark.sql.datasource import DataSourceReader, EqualTo
from pyspark.sql.types import StructType

from dledger.spark import streaming
from dledger.spark.option_values import BadOption
from dledger.spark.source import DledgerSource, PushingReader, ViewReader, WillingReader
from dledger.spark.versions import HAS_PUSHDOWN
from pyspark_dledger import DefaultSource
from tests.audit.store_builder import sample_log, write_store

needs_pushdown = pytest.mark.skipif(not HAS_PUSHDOWN, reason="this release of Spark cannot push filters down")
PLANNER = "plan_data_source_read.py"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_store(sample_log(300), tmp_path_factory.mktemp("store") / "n0")


def reader_of(store: Path, enable_pushdown: bool | None = None, **options: str) -> DataSourceReader:
    """The reader as Spark's planner asks for it, whose variable has the session's setting."""
    source = DefaultSource({"path": str(store), **options})
    code = compile("found = source.reader(None)", f"/x/{PLANNER}", "exec")
    known: dict[str, Any] = {"source": source}
    if enable_pushdown is not None:
        known["enable_pushdown"] = enable_pushdown
    exec(code, known)
    found = known["found"]
    assert isinstance(found, DataSourceReader)
    return found


@needs_pushdown
def test_filters_are_pushed_if_the_session_pushes_them(store: Path) -> None:
    reader = reader_of(store, True)
    assert isinstance(reader, WillingReader)
    assert list(reader.pushFilters([EqualTo(("partition",), 1)])) == []
    rows = [row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]
    assert {row["partition"] for row in rows} == {1}


@needs_pushdown
def test_a_session_that_pushes_nothing_accepts_the_reader_and_says_so(store: Path) -> None:
    with pytest.warns(UserWarning, match="does not push filters down .*filterPushdown.enabled to true"):
        reader = reader_of(store, False)
    # What Spark compares, before it refuses a reader.
    assert getattr(reader.pushFilters, "__func__", None) is DataSourceReader.pushFilters


@needs_pushdown
def test_a_session_is_told_once(store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_LOCAL_DIRS", f"{tmp_path},/other")
    with pytest.warns(UserWarning, match="does not push filters down"):
        reader_of(store, False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        reader_of(store, False)
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path / "of another session"))
    with pytest.warns(UserWarning, match="does not push filters down"):
        reader_of(store, False)


@needs_pushdown
@pytest.mark.parametrize(("options", "kind"), [({"pushdown": "false"}, ViewReader), ({}, WillingReader)])
def test_nothing_is_said_where_nothing_is_known_or_asked(
    options: dict[str, str], kind: type, store: Path
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert type(reader_of(store, **options)) is kind
        assert type(reader_of(store, True, pushdown="true")) is PushingReader


@needs_pushdown
def test_such_a_reader_can_be_sent_to_executors(store: Path) -> None:
    from pyspark import cloudpickle

    reader = reader_of(store, True)
    reader.pushFilters([EqualTo(("partition",), 1)])
    copy = cloudpickle.loads(cloudpickle.dumps(reader))
    assert [part.pieces for part in copy.partitions()] == [part.pieces for part in reader.partitions()]


@pytest.mark.parametrize("option", ["maxOffsetsPerTrigger", "maxBytesPerTrigger"])
def test_what_the_release_cannot_do_is_an_error_of_load(
    option: str, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streaming, "HAS_READ_LIMITS", False)
    source = DledgerSource({"path": str(store), option: "10"})
    with pytest.raises(BadOption, match=rf"option {option}: Spark limits .* since 4\.2"):
        source.schema()
    with pytest.raises(BadOption, match=r"since 4\.2"):
        source.streamReader(StructType()).initialOffset()


def test_spark_finds_the_source_by_itself() -> None:
    """Also in an editable installation: from another directory, as Spark looks."""
    look = "import pkgutil; print([one.name for one in pkgutil.iter_modules() if one.name[:8] == 'pyspark_'])"
    done = subprocess.run(
        [sys.executable, "-c", look], cwd="/", capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "['pyspark_dledger']"


QUIET = """
from dledger.spark.quiet_daemon import print_exc
try:
    raise {error}("x")
except Exception:
    print_exc()
"""


@pytest.mark.parametrize(("error", "lines"), [("BrokenPipeError", 0), ("ValueError", 1)])
def test_only_a_query_that_ended_early_is_not_reported(error: str, lines: int) -> None:
    done = subprocess.run(
        [sys.executable, "-c", QUIET.format(error=error)],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert ("Traceback" in done.stderr) == bool(lines)
