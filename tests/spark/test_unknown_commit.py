"""A replica that cannot say what is committed is refused: it must not pass for an empty log."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("pyarrow")

from dledger.spark.jobs.errors import JobError
from dledger.spark.jobs.log_source import best_replicas
from tests.audit.store_builder import Log, sample_log, write_group
from tests.spark.views_kit import places_of, rows_of, view

MESSAGES = 300


@pytest.fixture(scope="module")
def log() -> Log:
    return sample_log(MESSAGES)


def forget(store: Path) -> None:
    next(store.glob("dledger-*/checkpoint")).unlink()


def rot(store: Path) -> None:
    next(store.glob("dledger-*/checkpoint")).write_bytes(b"\x01" * 128)


@pytest.mark.parametrize("damage", [forget, rot])
def test_nothing_is_read_as_if_nothing_were_there(
    damage: Callable[[Path], None], log: Log, tmp_path: Path
) -> None:
    stores = write_group(log, tmp_path)
    damage(stores[0])
    for name in ("messages", "queues", "entries", "state"):
        with pytest.raises(Exception, match="not known which entries are committed"):
            rows_of(view(stores[0], view=name))
    with pytest.raises(JobError, match="not known which entries are committed"):
        list(best_replicas((str(stores[0]),)))


def test_another_replica_or_the_whole_log_will_do(log: Log, tmp_path: Path) -> None:
    stores = write_group(log, tmp_path)
    rot(stores[0])
    assert len(rows_of(view(stores[0], isolation="all"))) == len(places_of(log))
    assert len(rows_of(view(",".join(map(str, stores))))) == len(places_of(log))
    (best,) = best_replicas(tuple(map(str, stores)))
    assert best.name == "n1"


def test_a_store_without_a_segment(log: Log, tmp_path: Path) -> None:
    """Lost, or of a node that has not begun."""
    (store,) = write_group(log, tmp_path, 1)
    for segment in store.glob("dledger-*/data/*"):
        segment.unlink()
    with pytest.raises(Exception, match="there is no segment"):
        rows_of(view(store))
    forget(store)
    assert rows_of(view(store)) == []
