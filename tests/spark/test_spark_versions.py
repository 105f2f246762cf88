"""Releases of Spark that lack what newer ones have; and how Spark finds the data source by itself."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from dledger.spark.versions import HAS_ARROW_STREAM_SINK

ROOT = Path(__file__).resolve().parents[2]
SINCE_4_1 = (
    "Filter EqualTo GreaterThan GreaterThanOrEqual In IsNotNull LessThan LessThanOrEqual "
    "DataSourceStreamArrowWriter"
)
HIDE = """
import sys
import pyspark.sql.datasource as datasource

for name in {names!r}.split():
    vars(datasource).pop(name, None)
sys.modules["pyspark.sql.streaming.datasource"] = None
"""
STREAM = """
from dledger.spark import sink_options, source, versions
from dledger.spark.option_values import BadOption
from dledger.spark.sink import stream_writer
from dledger.spark.streaming import PlainStreamReader

made = source.PushingSource({"path": "/nowhere"})
assert type(made.streamReader(None)) is PlainStreamReader
limited = source.DledgerSource({"path": "/nowhere", "maxOffsetsPerTrigger": "5"})
try:
    limited.streamReader(None).initialOffset()
except BadOption as error:
    print(error)
assert type(made.reader(None)) is (source.PushingReader if versions.HAS_PUSHDOWN else source.ViewReader)
print(type(stream_writer(sink_options.SinkOptions("127.0.0.1:1", "T"), ("value",))).__name__)
"""


def run(program: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(("names", "writer"), [(SINCE_4_1, "RowStreamWriter"), ("", "StreamWriter")])
def test_what_a_release_lacks_is_done_without_or_refused(names: str, writer: str) -> None:
    """4.0 and 4.1, by hiding what they do not have."""
    if not names and not HAS_ARROW_STREAM_SINK:
        pytest.skip("this Spark has no such sink to hide nothing of")
    first, second = run(HIDE.format(names=names) + STREAM).splitlines()
    assert first.startswith(
        "option maxOffsetsPerTrigger: Spark limits the batches of a stream only since 4.2"
    )
    assert second == writer


LOOKUP = """
from pkgutil import iter_modules
from importlib import import_module
from pyspark.sql.datasource import DataSource

found = [import_module(each.name) for each in iter_modules() if each.name == "pyspark_dledger"]
(module,) = found
assert issubclass(module.DefaultSource, DataSource)
print(module.DefaultSource.name(), module.DefaultSource.__module__)
"""


def test_spark_finds_the_data_source_as_it_looks_for_others() -> None:
    """Workers need our own package alone: the class is named by where it is defined."""
    assert run(LOOKUP).split() == ["dledger", "dledger.spark.source"]


UNREGISTERED = """
import os
import sys

from dledger.spark.java import cache_dir, find_java
from dledger.spark.session import Place, prepare_environment, register, settings

prepare_environment(find_java(os.environ, cache_dir(os.environ)))
from pyspark.sql import SparkSession

builder = SparkSession.builder.master("local[1]")
for key, value in settings(Place.LOCAL, cache_dir(os.environ), short=True).items():
    builder = builder.config(key, value)
spark = builder.getOrCreate()


def count():
    frame = spark.read.format("dledger").option("view", "queues").option("path", sys.argv[1]).load()
    return frame.where("topic = 'orders'").count()


alone = count()
register(spark)
print("counted", alone, count())
spark.stop()
"""


@pytest.mark.spark
def test_a_session_of_anybodys_reads_without_register(tmp_path: Path) -> None:
    from tests.audit.store_builder import sample_log, write_store

    store = write_store(sample_log(200), tmp_path / "n0")
    done = subprocess.run(
        [sys.executable, "-c", UNREGISTERED, str(store)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[-3:] == ["counted", "4", "4"]
