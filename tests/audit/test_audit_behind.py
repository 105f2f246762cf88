"""What one replica's ConsumeQueues and IndexFiles lack and another one's have."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from dledger.audit.derived import judge_derived
from dledger.audit.findings import Severity
from dledger.audit.report import Report
from dledger.bench.big_store import add_key_file, write_big_group
from dledger.formats.consume_queue import FILE_SIZE, UNIT_SIZE
from dledger.formats.index_file import HEADER, unpack_index_header
from dledger.formats.store_files import segment_name
from tests.audit.apache_store import ApacheLog, apache_log, key_files, write_apache_group, write_apache_store
from tests.audit.engine import audit
from tests.audit.store_builder import Log, cut_after, sample_log, write_group


@pytest.fixture(scope="module")
def log() -> ApacheLog:
    return apache_log()


@pytest.fixture(scope="module")
def ours() -> Log:
    return sample_log()


def said(report: Report) -> list[tuple[str, str]]:
    return [(found.code, found.replica) for found in report.ordered()]


def remove_keys(store: Path) -> None:
    shutil.rmtree(store / "index")


def remove_newest_keys(store: Path) -> None:
    max((store / "index").iterdir()).unlink()


def remove_queues(store: Path) -> None:
    shutil.rmtree(store / "consumequeue")


def remove_a_queue(store: Path) -> None:
    shutil.rmtree(store / "consumequeue" / "payments" / "1")


def blank_a_queue(store: Path, units: int = 3) -> None:
    """Its last units: those of a preallocated file are zeros."""
    path = store / "consumequeue" / "orders" / "0" / segment_name(0)
    data = path.read_bytes().rstrip(b"\0")
    end = -(-len(data) // UNIT_SIZE) * UNIT_SIZE - units * UNIT_SIZE
    path.write_bytes(data[:end].ljust(FILE_SIZE, b"\0"))


FAULTS: list[tuple[Callable[[Path], None], str]] = [
    (remove_keys, "KEY_BEHIND"),
    (remove_newest_keys, "KEY_BEHIND"),
    (remove_queues, "QUEUE_BEHIND"),
    (remove_a_queue, "QUEUE_BEHIND"),
    (blank_a_queue, "QUEUE_BEHIND"),
]


@pytest.mark.parametrize(("fault", "code"), FAULTS, ids=[each[0].__name__ for each in FAULTS])
@pytest.mark.parametrize("one_segment", [False, True])
def test_what_another_replica_has_is_told(
    fault: Callable[[Path], None], code: str, one_segment: bool, log: ApacheLog, tmp_path: Path
) -> None:
    written = apache_log(200) if one_segment else log
    keys = key_files(written, 100, 400) if one_segment else key_files(written)
    assert (len(written.segments) == 1) is one_segment
    assert len(keys) > 1
    stores = [
        write_apache_store(written, tmp_path / f"n{number}", f"n{number}", keys=keys) for number in range(3)
    ]
    fault(stores[1])
    report = audit(stores)
    assert said(report) == [(code, "n1")]
    assert report.exit_code == 1
    (found,) = report.findings
    assert "n0" in found.detail
    assert "n2" in found.detail or code == "QUEUE_BEHIND"


def test_what_nobody_has_is_lag(log: ApacheLog, tmp_path: Path) -> None:
    stores = write_apache_group(log, tmp_path)
    for store in stores:
        remove_newest_keys(store)
        remove_queues(store)
    report = audit(stores)
    assert {code for code, _ in said(report)} == {"KEY_LAG", "QUEUE_LAG"}
    assert report.exit_code == 0


def test_several_that_lack_it_are_told_each(log: ApacheLog, tmp_path: Path) -> None:
    stores = write_apache_group(log, tmp_path)
    for store in stores[:2]:
        remove_keys(store)
        remove_queues(store)
    assert said(audit(stores)) == [
        ("KEY_BEHIND", "n0"),
        ("QUEUE_BEHIND", "n0"),
        ("KEY_BEHIND", "n1"),
        ("QUEUE_BEHIND", "n1"),
    ]


def test_a_replica_that_lags_lacks_nothing_of_what_it_never_got(log: ApacheLog, tmp_path: Path) -> None:
    short = apache_log(1000)
    stores = write_apache_group(log, tmp_path)
    shutil.rmtree(stores[1])
    write_apache_store(short, stores[1], "n1")
    assert said(audit(stores)) == [("LAGGING", "n1")]


def test_a_replica_with_damaged_files_is_no_witness(tmp_path: Path) -> None:
    log = apache_log(1497)  # the last message has no key: the ConsumeQueues reach beyond the IndexFiles
    stores = write_apache_group(log, tmp_path)
    path = max((stores[0] / "index").iterdir())
    data = bytearray(path.read_bytes())
    header = unpack_index_header(data)
    HEADER.pack_into(data, 0, *header._replace(end_position=header.end_position + 8))
    path.write_bytes(data)
    assert said(audit(stores)) == [("KEY_INDEX", "n0")]


def test_nodes_that_share_a_directory_are_not_judged(log: ApacheLog, tmp_path: Path) -> None:
    """Whose the derived files are is not known."""
    shared = tmp_path / "shared"
    shared.mkdir()
    for number in range(2):
        write_apache_store(log, tmp_path / f"s{number}", f"n{number}", keys=[])
        (tmp_path / f"s{number}" / f"dledger-n{number}").rename(shared / f"dledger-n{number}")
    write_apache_store(log, tmp_path / "n2", "n2")
    assert audit([shared, tmp_path / "n2"]).findings == []


# --- stores of ours: no state file, so that nothing was promised ---------------------------------------


def test_queues_of_ours_that_are_gone(ours: Log, tmp_path: Path) -> None:
    stores = write_group(ours, tmp_path)
    queues = sorted(path for topic in (stores[2] / "consumequeue").iterdir() for path in topic.iterdir())
    shutil.rmtree(queues[0])
    report = audit(stores)
    assert said(report) == [("QUEUE_BEHIND", "n2")]
    assert "/".join(queues[0].parts[-2:]) in report.findings[0].detail
    remove_queues(stores[2])
    report = audit(stores)
    assert said(report) == [("QUEUE_BEHIND", "n2")]
    assert "no ConsumeQueue here at all" in report.findings[0].detail


def test_queues_of_ours_that_follow_are_lag_up_to_a_number(ours: Log, tmp_path: Path) -> None:
    stores = write_group(ours, tmp_path)
    path = min((stores[2] / "consumequeue").glob("*/*/*"))
    path.write_bytes(path.read_bytes()[: -60 * UNIT_SIZE])
    assert said(audit(stores, lag_warning=60)) == [("QUEUE_LAG", "n2")]
    report = audit(stores, lag_warning=59)
    assert said(report) == [("QUEUE_BEHIND", "n2")]
    assert report.findings[0].detail.startswith("60 messages of 1 queue ")


def test_a_node_of_ours_that_is_behind_lacks_no_queues(ours: Log, tmp_path: Path) -> None:
    stores = write_group(ours, tmp_path)
    cut_after(stores[1], ours, 1500)
    assert said(audit(stores, lag_warning=5000)) == [("LAGGING", "n1")]


def test_one_of_ours_needs_no_index_file_unless_all_others_have_one(tmp_path: Path) -> None:
    stores, log = write_big_group(tmp_path, 3_000_000, segment_size=1 << 18, body=300)
    add_key_file(stores[1], log)
    assert audit(stores, lag_warning=10).findings == []
    add_key_file(stores[0], log)
    assert audit(stores).findings == []  # one that was just started builds them
    report = audit(stores, lag_warning=1000)
    assert said(report) == [("KEY_BEHIND", "n2")]
    assert "there is no IndexFile" in report.findings[0].detail
    assert report.severity == Severity.WARNING


def test_nothing_is_told_of_nothing() -> None:
    assert judge_derived([], [], 0) == []
