"""Damage in stores that brokers of Apache's wrote is found: all kinds of `apache_damage`, in recorded groups.

Stores that are spread over several directories are sound, and found damaged, in the same way.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from dledger.audit.store_directory import StoreError, open_store
from dledger.runtime.files import OsFiles
from tests.audit.apache_damage import DAMAGE, Damage, Target, judge
from tests.audit.engine import audit
from tests.audit.recorded import VERSIONS, Recorded, restore


@pytest.fixture(scope="module", params=VERSIONS)
def recorded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    return restore(request.param, tmp_path_factory.mktemp("recorded"))


@pytest.mark.sample(60)
@pytest.mark.parametrize("damage", DAMAGE, ids=lambda damage: damage.name)
def test_damage_is_found(damage: Damage, recorded: Recorded, tmp_path: Path) -> None:
    """In a node that was not killed: what its restart left would hide some of it."""
    sound = [store for store in recorded.stores if store.name != recorded.killed]
    damaged = tmp_path / sound[0].name
    subprocess.run(["cp", "-r", "--sparse=always", sound[0], damaged], check=True)
    damage.plant(Target(damaged))
    report = audit([damaged if store is sound[0] else store for store in recorded.stores])
    judge(report, damage, damaged.name, known={("KEY_MISSING", recorded.killed)})


def spread(store: Path, to: Path) -> Path:
    """Move the segments of a store to two directories in turn, and return its broker.conf."""
    node = store.name
    (data,) = store.glob("dledger-*/data")
    for directory in (to / "disk1", to / "disk2"):
        directory.mkdir(parents=True)
    for number, path in enumerate(sorted(data.iterdir())):
        path.rename(to / f"disk{1 + number % 2}" / path.name)
    data.rmdir()
    conf = to / f"{node}.conf"
    conf.write_text(
        f"storePathRootDir={store}\ndLegerSelfId={node}\n"
        "storePathDLedgerCommitLog=disk1\nreadOnlyCommitLogStorePaths=disk2\n"
    )
    return conf


@pytest.fixture
def with_spread(recorded: Recorded, tmp_path: Path) -> list[Path]:
    """The recorded group with one store over several paths: its broker.conf, and the other two."""
    subprocess.run(["cp", "-r", "--sparse=always", *recorded.stores, tmp_path], check=True)
    return [spread(tmp_path / "n0", tmp_path / "paths"), tmp_path / "n1", tmp_path / "n2"]


def codes(stores: list[Path]) -> set[str]:
    return {one.code for one in audit(stores).findings}


def test_a_spread_store_is_sound_by_its_broker_conf(recorded: Recorded, with_spread: list[Path]) -> None:
    report = audit(with_spread)
    assert codes(recorded.stores) == {one.code for one in report.findings} <= {"KEY_MISSING"}
    assert report.entries == 3 * (report.compared_up_to + 1)
    assert len(open_store(OsFiles(), str(with_spread[0]))[0].places.directories) == 2


def test_directories_below_the_store_are_found(recorded: Recorded, with_spread: list[Path]) -> None:
    store = with_spread[1].with_name("n0")
    for number in (1, 2):
        (with_spread[0].parent / f"disk{number}").rename(store / f"log{number}")
    assert codes([store, *with_spread[1:]]) == codes(recorded.stores)
    (replica,) = open_store(OsFiles(), str(store))
    assert [Path(one).name for one in replica.places.directories] == ["log1", "log2"]


def test_a_lost_disk_is_found(with_spread: list[Path]) -> None:
    for path in sorted((with_spread[0].parent / "disk1").iterdir())[1:]:
        path.unlink()
    assert "MISSING_SEGMENT" in codes(with_spread)


def test_a_segment_in_two_directories_is_found(with_spread: list[Path]) -> None:
    disk1, disk2 = (with_spread[0].parent / f"disk{number}" for number in (1, 2))
    path = sorted(disk2.iterdir())[0]
    (disk1 / path.name).write_bytes(bytes(path.stat().st_size))
    assert "SEGMENT_TWICE" in codes(with_spread)


def test_a_copy_of_the_segments_beside_them_is_no_fault(recorded: Recorded, tmp_path: Path) -> None:
    subprocess.run(["cp", "-r", "--sparse=always", *recorded.stores, tmp_path], check=True)
    stores = [tmp_path / store.name for store in recorded.stores]
    (data,) = stores[1].glob("dledger-*/data")
    subprocess.run(["cp", "-r", data, stores[1] / "saved"], check=True)
    assert codes(stores) == codes(recorded.stores)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("brokerName=a\n", "storePathRootDir"),
        ("storePathRootDir=nowhere\n", "nowhere: no such directory"),
        ("storePathRootDir=n0\nstorePathDLedgerCommitLog=n0,elsewhere\n", "elsewhere: no such directory"),
        ("storePathRootDir=n0\ndLegerSelfId=n7\n", "dLegerSelfId"),
    ],
)
def test_a_conf_that_names_no_store_is_refused(text: str, said: str, tmp_path: Path) -> None:
    restore(VERSIONS[0], tmp_path)
    (tmp_path / "broker.conf").write_text(text)
    with pytest.raises(StoreError, match=said):
        open_store(OsFiles(), str(tmp_path / "broker.conf"))
