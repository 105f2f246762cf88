"""Every fault is found, with its severity, and nothing else is."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path

import msgpack
import pytest

from dledger.audit.findings import Severity
from dledger.audit.local import audit_sources
from dledger.audit.replicas import Look, StoreSource
from dledger.audit.report import Report
from dledger.formats.entry import Kind
from dledger.formats.store_files import encode_json
from dledger.runtime.env import production_env
from tests.audit.engine import audit
from tests.audit.faults import FAULTS, NOT_FILES, SWAPS, Fault, message_index
from tests.audit.store_builder import (
    SEGMENT_SIZE,
    Log,
    cut_after,
    flip,
    rewrite,
    sample_log,
    segment_path,
    write_group,
    write_store,
)


@pytest.fixture(scope="module")
def log() -> Log:
    return sample_log()


def codes(report: Report, *, info: bool) -> tuple[str, ...]:
    """Distinct codes, of information or of everything worse."""
    return tuple(sorted({f.code for f in report.findings if (f.severity == Severity.INFO) == info}))


@pytest.mark.parametrize("fault", [*FAULTS, *SWAPS, *NOT_FILES], ids=str)
def test_fault_is_found_and_nothing_else(fault: Fault, log: Log, tmp_path: Path) -> None:
    stores = write_group(log, tmp_path)
    fault.inject(stores, log)
    report = audit(stores)
    assert codes(report, info=False) == fault.codes, report.ordered()
    assert codes(report, info=True) == fault.notes, report.ordered()
    assert report.exit_code == fault.exit_code


def only(report: Report, code: str) -> tuple[str, int, int]:
    """Replica and range of the one finding with this code."""
    (found,) = [found for found in report.findings if found.code == code]
    return found.replica, found.first_index, found.last_index


def test_findings_name_replica_and_index(log: Log, tmp_path: Path) -> None:
    stores = write_group(log, tmp_path)
    target = message_index(log, 1300)
    rewrite(stores[2], log, target)
    flip(stores[0], log.entries[400], 60)
    report = audit(stores)
    assert only(report, "DIVERGENT_COMMITTED") == ("n2", target, target)
    assert only(report, "CHAIN_BREAK") == ("n2", target + 1, target + 1)
    assert only(report, "BIT_ROT") == ("n0", 400, 400)


def test_lost_entries_are_counted_from_the_segment_before(log: Log, tmp_path: Path) -> None:
    stores = write_group(log, tmp_path)
    head = next(entry for entry in log.entries if entry.pos == 2 * SEGMENT_SIZE)
    flip(stores[1], head, 3)
    assert only(audit(stores), "BIT_ROT") == ("n1", head.index, head.index)


def test_missing_segment_is_reported_with_the_entries_it_held(log: Log, tmp_path: Path) -> None:
    stores = write_group(log, tmp_path)
    held = [entry.index for entry in log.entries if entry.pos // SEGMENT_SIZE == 3]
    segment_path(stores[1], 3 * SEGMENT_SIZE).unlink()
    assert only(audit(stores), "MISSING_SEGMENT") == ("n1", held[0], held[-1])


def test_runs_of_damage_are_one_finding(log: Log, tmp_path: Path) -> None:
    stores = write_group(log, tmp_path)
    for index in range(1000, 1030):
        flip(stores[0], log.entries[index], 70)
    assert only(audit(stores), "BIT_ROT") == ("n0", 1000, 1029)


def test_without_a_majority_the_copies_are_named_together(log: Log, tmp_path: Path) -> None:
    stores = write_group(log, tmp_path)[:2]
    target = message_index(log, 1300)
    rewrite(stores[1], log, target)
    assert only(audit(stores), "DIVERGENT_COMMITTED") == ("n0,n1", target, target)


def test_a_member_whose_store_was_not_given_may_hold_a_copy(log: Log, tmp_path: Path) -> None:
    stores = write_group(log, tmp_path)[:2]
    flip(stores[0], log.entries[700], 60)
    assert codes(audit(stores), info=False) == ("BIT_ROT",)


def test_far_behind_is_a_warning(log: Log, tmp_path: Path) -> None:
    from tests.audit.store_builder import cut_after

    stores = write_group(log, tmp_path)
    cut_after(stores[1], log, 1500)
    assert audit(stores, lag_warning=500).exit_code == 1
    assert audit(stores, lag_warning=5000).exit_code == 0


def test_a_stale_checkpoint_does_not_hide_what_others_know(log: Log, tmp_path: Path) -> None:
    """A node killed with -9 has an old checkpoint: its newer entries still count as copies."""
    last = log.entries[-1].index
    stores = [write_store(log, tmp_path / f"n{n}", f"n{n}", committed=last - 50 * n) for n in range(3)]
    report = audit(stores)
    assert report.findings == []
    assert report.compared_up_to == last - 100


def test_rows_of_head_deleted_by_retention_are_information(log: Log, tmp_path: Path) -> None:
    stores = write_group(log, tmp_path)
    segment_path(stores[1], 0).unlink()
    first = next(entry for entry in log.entries if entry.pos == SEGMENT_SIZE)
    index = stores[1] / "dledger-n1" / "index" / f"{0:020d}"
    data = index.read_bytes()
    index.write_bytes(data[: first.index * 0].ljust(first.index * 32, b"\0") + data[first.index * 32 :])
    report = audit(stores)
    assert codes(report, info=False) == ()
    assert codes(report, info=True) == ("RETENTION",)


class Growing:
    """A source of a group that grows after its first so many looks at any of its replicas."""

    looks = 0

    def __init__(self, before: Path, after: Path, turn: int) -> None:
        self.place = str(before)
        self._stores = [StoreSource.at(str(store)) for store in (before, after)]
        self._turn = turn

    def look(self) -> Look:
        type(self).looks += 1
        return self._stores[type(self).looks > self._turn].look()

    claim = look


@pytest.mark.parametrize("turn", range(6))
def test_what_is_listed_while_a_group_grows_lacks_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, turn: int
) -> None:
    """Between two lists of segments of a live group another segment may begin."""
    monkeypatch.setattr(Growing, "looks", 0)
    log = sample_log()
    after = write_group(log, tmp_path / "after")
    before = write_group(log, tmp_path / "before")
    for store in before:
        cut_after(store, log, 1500, committed=1500)
    sources = [Growing(*stores, turn) for stores in zip(before, after, strict=True)]
    env = production_env("audit")
    report = asyncio.run(audit_sources(env, sources))
    env.workers.close()
    assert [found.code for found in report.findings if found.severity > Severity.INFO] == []


def test_members_that_were_not_given_are_named(log: Log, tmp_path: Path) -> None:
    stores = write_group(log, tmp_path)
    report = audit(stores[:2])
    assert [(found.code, found.replica) for found in report.findings] == [("NOT_AUDITED", "n2")]
    assert (report.exit_code, report.members, report.scope) == (0, 3, "2 of 3 members")
    assert "checked 2 of 3 members, without n2" in list(report.lines())
    page = report.page("now")
    assert "Every committed entry was read on 2 of 3 members, and these agree; n2 was not checked." in page
    assert "every replica" not in page
    flip(stores[0], log.entries[700], 60)
    assert "(of 2 of 3 members)" in audit(stores[:2]).page("now")
    assert "not at n2" not in "\n".join(audit(stores[:1]).lines()), "one store is not compared"


CHANGED = {
    "n0": {"role": "voter"},
    "n1": {"role": "voter"},
    "n5": {"role": "voter"},
    "n6": {"role": "learner"},
}


@pytest.mark.parametrize(
    ("members", "absent"),
    [(CHANGED, ["n5"]), (dict.fromkeys(("n0", "n1"), "i"), []), (dict.fromkeys("abc", "i"), ["a", "b", "c"])],
)
def test_the_newest_committed_configuration_says_who_belongs_to_the_group(
    members: dict[str, object], absent: list[str], log: Log, tmp_path: Path
) -> None:
    log = log.copy()
    values = [{"members": each} for each in ({"y": "i"}, members, {"z": "i"})]
    indexes = [log.system(value, Kind.CONFIG) for value in values]
    last = indexes[1]
    committed = partial(write_store, log, committed=last)
    stores = [committed(tmp_path / f"n{number}", f"n{number}") for number in (0, 1)]
    copies = [
        (index, log.term, msgpack.packb(value).hex()) for index, value in zip(indexes, values, strict=True)
    ]
    path = stores[1] / "dledger-n1" / "members"  # the other one does not know it yet
    path.write_bytes(encode_json({"copies": copies, "indexes": []}))
    report = audit(stores)
    assert report.not_audited == absent
    assert report.exit_code == 0


@pytest.mark.parametrize("value", [{"copies": [[1, 1, "zz"]]}, {"copies": [[1, 1, "c0"]]}, {"copies": 5}])
def test_a_members_file_that_cannot_be_believed(value: dict[str, object], log: Log, tmp_path: Path) -> None:
    stores = write_group(log, tmp_path)
    (stores[1] / "dledger-n1" / "members").write_bytes(encode_json(value))
    assert [(found.code, found.replica) for found in audit(stores).findings] == [("IDENTITY", "n1")]
