"""Whatever file of a replica cannot be read: that is said, nothing else is said of it, and all the rest is
looked at."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path

import pytest

from dledger.audit.findings import Severity
from dledger.audit.local import audit_sources
from dledger.audit.replicas import StoreSource
from dledger.audit.report import Report
from dledger.bench.big_store import write_big_group
from dledger.runtime import File
from dledger.runtime.env import production_env
from dledger.runtime.files import OsFiles
from dledger.spark.stores import open_replicas
from tests.audit.apache_store import apache_log, write_apache_store
from tests.audit.faults import by_names
from tests.audit.store_builder import sample_log, write_group

SEGMENT = 1 << 18


class BadSector(OsFiles):
    """A disk on which one file cannot be read."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = str(path)
        self.hits = 0

    def open_read(self, path: str) -> File:
        if path == self.path:
            self.hits += 1
            raise OSError(errno.EIO, "Input/output error")
        return super().open_read(path)


def audit_with(stores: list[Path], bad: OsFiles) -> Report:
    env = production_env("test")
    try:
        return asyncio.run(audit_sources(env, [StoreSource(str(store), bad) for store in stores]))
    finally:
        env.workers.close()


def kind(path: Path, store: Path) -> str:
    """Files of one kind are alike."""
    parts = path.relative_to(store).parts
    known = ("data", "snapshots", "consumequeue", "index")
    place = next((part for part in parts[:-1] if part in known), "")
    return f"{place}/{path.name}" if place in ("", "snapshots") else place + str(len(parts))


def test_each_file_in_turn(tmp_path: Path) -> None:
    stores, _ = write_big_group(tmp_path, 4_000_000, segment_size=SEGMENT, body=300)
    one_of_each = {kind(path, stores[0]): path for path in stores[0].rglob("*") if path.is_file()}
    assert len(one_of_each) > 12, one_of_each
    entries = audit_with(stores, OsFiles()).entries
    for name, path in sorted(one_of_each.items()):
        disk = BadSector(path)
        report = audit_with(stores, disk)
        if not disk.hits:
            assert report.exit_code == 0, f"{name} is not read"
            continue
        worse = {(found.code, found.replica) for found in report.findings if found.severity > Severity.INFO}
        assert worse == {("UNREADABLE", "n0")}, name
        assert report.exit_code == 4, name
        own = [replica for replica in report.replicas if replica["replica"] == "n0"]
        whole = entries // 3 if own and not name.startswith("data") else 0
        assert report.entries >= entries * 2 // 3 + whole, f"{name}: not all that could be read was"


@pytest.mark.parametrize("name", ["hardstate", "checkpoint"])
def test_the_file_is_named(name: str, tmp_path: Path) -> None:
    """Also where the system does not name it: opened well, and not readable."""
    stores = write_group(sample_log(50), tmp_path)
    path = stores[0] / "dledger-n0" / name
    path.unlink()
    path.mkdir()
    (found,) = audit_with(stores, OsFiles()).findings
    assert found.code == "UNREADABLE" and str(path) in found.detail


@pytest.mark.parametrize("name", ["checkpoint", "identity"])
def test_a_replica_that_cannot_be_looked_at_hides_nothing_of_the_others(name: str, tmp_path: Path) -> None:
    log = sample_log()
    stores = write_group(log, tmp_path)
    (fault,) = by_names("flipped body byte")
    fault.inject(stores, log)
    disk = BadSector(stores[1] / "dledger-n1" / name)
    report = audit_with(stores, disk)
    found = {(found.code, found.replica) for found in report.findings}
    assert found == {("BIT_ROT", "n0"), ("UNREADABLE", "n1")}
    assert (report.exit_code, len(report.replicas)) == (4, 2)
    alone = audit_with(stores[1:2], disk)
    assert (alone.exit_code, [found.code for found in alone.findings]) == (4, ["UNREADABLE"])


def test_it_counts_as_a_member_where_stores_do_not_say_who_belongs_to_the_group(tmp_path: Path) -> None:
    """With two of three one good copy is too few, with one that nobody could read it may be enough."""
    log = apache_log()
    stores = [write_apache_store(log, tmp_path / f"n{number}", f"n{number}") for number in range(3)]
    sorted((stores[0] / "dledger-n0" / "data").iterdir())[1].unlink()
    report = audit_with(stores, BadSector(stores[1] / "dledger-n1" / "checkpoint"))
    worse = {found.code for found in report.findings if found.severity > Severity.INFO}
    assert worse == {"MISSING_SEGMENT", "UNREADABLE"}


def test_messages_are_not_read_from_the_others_in_silence(tmp_path: Path) -> None:
    """The store that cannot be read may be the one that knows most."""
    stores = write_group(sample_log(50), tmp_path)
    checkpoint = stores[2] / "dledger-n2" / "checkpoint"
    checkpoint.unlink()
    checkpoint.mkdir()
    with pytest.raises(Exception, match=r"n2.*directory"):
        open_replicas([str(store) for store in stores])
