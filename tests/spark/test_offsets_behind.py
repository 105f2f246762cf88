"""The figures of Kafka's source about how far a stream is behind."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("pyarrow")

from dledger.spark.behind import offsets_behind_latest
from dledger.spark.versions import HAS_READ_LIMITS
from tests.audit.store_builder import sample_log, write_store

END = {"orders/0": 3, "orders/1": 4, "orders": "c0.17"}
LATEST = {"orders/0": 13, "orders/1": 4, "orders/2": 2, "orders": "c0.17"}
FIGURES = {"avgOffsetsBehindLatest": 4.0, "maxOffsetsBehindLatest": 10, "minOffsetsBehindLatest": 0}


@pytest.mark.parametrize(
    "source",
    [
        SimpleNamespace(endOffset=json.dumps(END), latestOffset=json.dumps(LATEST)),
        {"endOffset": json.dumps(END), "latestOffset": json.dumps(LATEST)},
        {"endOffset": END, "latestOffset": LATEST},
    ],
)
def test_each_queue_counts_once(source: Any) -> None:
    assert offsets_behind_latest(source) == FIGURES


@pytest.mark.parametrize("latest", [None, "null", "{}"])
def test_a_progress_without_offsets_has_no_figures(latest: str | None) -> None:
    assert offsets_behind_latest({"endOffset": json.dumps(END), "latestOffset": latest}) == {}
    assert offsets_behind_latest({"endOffset": latest, "latestOffset": json.dumps(END)}) == {}


@pytest.mark.spark
@pytest.mark.skipif(not HAS_READ_LIMITS, reason="needs Spark 4.2")
def test_the_progress_of_a_query(spark: Any, tmp_path: Path) -> None:
    store = write_store(sample_log(400), tmp_path / "n0")
    query = (
        spark.readStream.format("dledger")
        .options(path=str(store), subscribe="payments", startingOffsets="earliest", maxOffsetsPerTrigger="50")
        .load()
        .writeStream.format("noop")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    found = [offsets_behind_latest(progress.sources[0]) for progress in query.recentProgress]
    most = [figures["maxOffsetsBehindLatest"] for figures in found if figures]
    assert len(most) >= 2 and most == sorted(most, reverse=True)
    assert most[0] > 0 and most[-1] == 0
