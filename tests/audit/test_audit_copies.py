"""Copies of stores that were taken one after the other while the group was written to."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from dledger.audit.findings import ReplicaRow, Row
from dledger.audit.local import audit_sources
from dledger.audit.replicas import Look, StoreReplica, StoreSource
from dledger.audit.report import Report
from dledger.formats.store_files import Checkpoint, encode_checkpoint
from dledger.runtime.env import production_env
from tests.audit.engine import audit
from tests.audit.store_builder import Log, cut_after, flip, sample_log, write_group


@pytest.fixture(scope="module")
def log() -> Log:
    return sample_log()


@pytest.fixture
def copies(log: Log, tmp_path: Path) -> list[Path]:
    """The first two were copied when the log ended earlier."""
    stores = write_group(log, tmp_path)
    cut_after(stores[0], log, 1500, committed=1499)
    cut_after(stores[1], log, 2000, committed=1999)
    return stores


def said(report: Report) -> list[tuple[str, str, int, int]]:
    return [(f.code, f.replica, f.first_index, f.last_index) for f in report.ordered()]


def test_what_the_first_copies_could_not_have_is_not_lost(copies: list[Path], log: Log) -> None:
    last = log.entries[-1].index
    report = audit(copies)
    assert said(report) == [
        ("COPIES_APART", "", 2001, last),
        ("LAGGING", "n0", 1501, last),
        ("LAGGING", "n1", 2001, last),
    ]
    assert "n0, n1 may have been copied before it was written" in report.ordered()[0].detail
    assert report.exit_code == 0
    together = audit(copies, same_time=True)
    assert said(together)[0] == ("BELOW_QUORUM", "", 2001, last)
    assert together.exit_code == 3


def test_a_copy_whose_checkpoint_is_newer_than_its_segments_lacks_entries_of_its_own(
    copies: list[Path], log: Log
) -> None:
    for store, end in ((copies[0], 1500), (copies[1], 2000)):
        cut_after(store, log, end)
        (checkpoint,) = store.glob("dledger-*/checkpoint")
        checkpoint.write_bytes(encode_checkpoint(Checkpoint(end + 100, end + 100)))
    report = audit(copies)
    last = log.entries[-1].index
    assert [found for found in said(report) if found[0] != "LAGGING"] == [
        ("ENDS_EARLY", "n0", 1501, 1600),
        ("ENDS_EARLY", "n1", 2001, 2100),
        ("COPIES_APART", "", 2001, last),
    ]
    assert report.exit_code == 1


def test_a_backup_beside_stores_lacks_no_queues(copies: list[Path], log: Log) -> None:
    """`dledger backup` copies the log alone: no ConsumeQueues, no state, no pool."""
    shutil.rmtree(copies[0] / "consumequeue")
    (copies[0] / "dledger-n0" / "pool").rmdir()
    assert {code for code, *_ in said(audit(copies))} == {"COPIES_APART", "LAGGING"}


def test_rot_below_what_all_can_have_counts(copies: list[Path], log: Log) -> None:
    for store in copies[:2]:
        flip(store, log.entries[700], 60)
    assert said(audit(copies))[0] == ("BELOW_QUORUM", "", 700, 700)


@dataclass(frozen=True)
class Answering(StoreReplica):
    """A replica that tells of itself now, as a running broker does."""

    def row(self) -> ReplicaRow:
        return super().row()._replace(live=1)

    def side(self) -> Iterator[Row]:
        for row in super().side():
            yield row._replace(live=1) if isinstance(row, ReplicaRow) else row


class Answers(StoreSource):
    def look(self) -> Look:
        look = super().look()
        return Look(
            tuple(
                Answering(each.replica, each.files)
                for each in look.replicas
                if isinstance(each, StoreReplica)
            )
        )


def test_a_running_node_lacks_what_it_does_not_hold(copies: list[Path], log: Log) -> None:
    """Beside a backup that is older: of that one nothing follows, two that run are of one time."""
    env = production_env("test")

    def audited(*kinds: type[StoreSource]) -> list[tuple[str, str, int, int]]:
        sources = [kind.at(str(store)) for kind, store in zip(kinds, copies, strict=True)]
        return said(asyncio.run(audit_sources(env, sources)))

    last = log.entries[-1].index
    assert audited(StoreSource, Answers, Answers)[0] == ("COPIES_APART", "", 2001, last)
    assert audited(Answers, Answers, Answers)[0] == ("BELOW_QUORUM", "", 2001, last)
    env.workers.close()
