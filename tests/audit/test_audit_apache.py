"""Stores of Apache RocketMQ's DLedger brokers (D8): every layout is clean, and what can be found is."""

from __future__ import annotations

from pathlib import Path

import pytest

from dledger.audit.findings import Severity
from dledger.audit.report import Report
from dledger.formats.entry import HEADER_SIZE
from dledger.formats.index_file import key_hash
from dledger.formats.store_files import segment_name
from tests.audit.apache_store import (
    ApacheLog,
    apache_log,
    key_files,
    old_commit_log,
    write_apache_group,
    write_apache_store,
)
from tests.audit.engine import audit
from tests.audit.store_builder import SEGMENT_SIZE, read_entry, segment_path


@pytest.fixture(scope="module")
def log() -> ApacheLog:
    return apache_log()


def worse(report: Report) -> list[tuple[str, str]]:
    return [(found.code, found.replica) for found in report.ordered() if found.severity > Severity.INFO]


def flip(store: Path, log: ApacheLog, index: int, offset: int) -> None:
    entry = log.entries[index]
    path = segment_path(store, entry.pos // SEGMENT_SIZE * SEGMENT_SIZE)
    data = bytearray(path.read_bytes())
    data[entry.pos % SEGMENT_SIZE + offset] ^= 0x10
    path.write_bytes(data)


@pytest.mark.parametrize("beside", [False, True])
@pytest.mark.parametrize("noops", [False, True])
def test_every_layout_is_clean(beside: bool, noops: bool, tmp_path: Path) -> None:
    log = apache_log(600, noops=noops)
    stores = write_apache_group(log, tmp_path, beside=beside)
    report = audit(stores)
    assert report.findings == []
    assert report.compared_up_to == log.entries[-1].index
    assert report.entries == 3 * len(log.entries)
    again = audit([next(store.glob("dledger-*")) for store in stores])
    assert (again.findings, again.entries) == ([], report.entries)


def test_an_upgraded_broker_keeps_its_old_commit_log(tmp_path: Path) -> None:
    """dividedCommitlogOffset: entries begin at index 0 and a position above 0."""
    log = apache_log(600, begin=3 * SEGMENT_SIZE)
    stores = write_apache_group(log, tmp_path)
    for store in stores:
        old_commit_log(store, 3 * SEGMENT_SIZE)
    assert audit(stores).findings == []


def test_a_commit_log_without_dledger_is_no_store(tmp_path: Path) -> None:
    (tmp_path / "dledger-n0" / "index").mkdir(parents=True)
    old_commit_log(tmp_path, SEGMENT_SIZE)
    report = audit([tmp_path])
    assert report.exit_code == 4


def test_a_head_that_retention_took_is_no_fault(log: ApacheLog, tmp_path: Path) -> None:
    stores = write_apache_group(log, tmp_path)
    for store in stores:
        segment_path(store, 0).unlink()
    assert worse(audit(stores)) == []


def test_rot_is_found_by_the_crc_of_the_message(log: ApacheLog, tmp_path: Path) -> None:
    stores = write_apache_group(log, tmp_path)
    flip(stores[1], log, 700, HEADER_SIZE + 95)
    assert worse(audit(stores)) == [("BIT_ROT", "n1")]


@pytest.mark.parametrize("offset", [1, 6, 13, 22, 29, 33, 37, 41, 45])
def test_damaged_headers_are_found(offset: int, log: ApacheLog, tmp_path: Path) -> None:
    """Magic, size, index, term, pos, channel, both unused CRCs, body size."""
    stores = write_apache_group(log, tmp_path)
    flip(stores[1], log, 700, offset)
    report = audit(stores)
    assert {code for code, _ in worse(report)} <= {"BIT_ROT", "BATCH_BROKEN", "CHAIN_BREAK", "INDEX_FILE"}
    assert {replica for _, replica in worse(report)} == {"n1"}
    assert ("BIT_ROT", "n1") in worse(report)


def test_a_rewritten_entry_is_found_by_comparing(log: ApacheLog, tmp_path: Path) -> None:
    """Nothing in the replica itself can tell: there is no chain."""
    stores = write_apache_group(log, tmp_path)
    entry = log.entries[700]
    raw = bytearray(read_entry(stores[2], entry))
    raw[HEADER_SIZE + 16 + 3] ^= 1  # flag: in no CRC at all
    path = segment_path(stores[2], entry.pos // SEGMENT_SIZE * SEGMENT_SIZE)
    data = bytearray(path.read_bytes())
    data[entry.pos % SEGMENT_SIZE :][: len(raw)] = raw
    data[entry.pos % SEGMENT_SIZE : entry.pos % SEGMENT_SIZE + len(raw)] = raw
    path.write_bytes(data)
    report = audit(stores)
    assert worse(report) == [("DIVERGENT_COMMITTED", "n2")]
    assert report.exit_code == 3


def test_missing_and_lagging_segments(log: ApacheLog, tmp_path: Path) -> None:
    stores = write_apache_group(log, tmp_path)
    segment_path(stores[0], 2 * SEGMENT_SIZE).unlink()
    segment_path(stores[1], max(log.segments)).unlink()
    assert worse(audit(stores)) == [("MISSING_SEGMENT", "n0"), ("MISSING_ENTRIES", "n1")]


def test_index_and_queue_units_are_checked(log: ApacheLog, tmp_path: Path) -> None:
    stores = write_apache_group(log, tmp_path)
    for path, at in (
        (stores[0] / "dledger-n0" / "index" / segment_name(0), 32 * 800 + 11),
        (stores[1] / "consumequeue" / "payments" / "1" / segment_name(0), 20 * 30 + 7),
    ):
        data = bytearray(path.read_bytes())
        data[at] ^= 1
        path.write_bytes(data)
    assert worse(audit(stores)) == [("INDEX_FILE", "n0"), ("QUEUE_MISMATCH", "n1")]


def test_delivery_times_of_delayed_messages_are_not_compared(tmp_path: Path) -> None:
    log = apache_log(300)
    stores = write_apache_group(log, tmp_path)
    path = stores[0] / "consumequeue" / "SCHEDULE_TOPIC_XXXX" / "2" / segment_name(0)
    data = bytearray(path.read_bytes())
    data[20 * 3 + 15] ^= 1
    path.write_bytes(data)
    assert worse(audit(stores)) == []
    data[20 * 3 + 9] ^= 1
    path.write_bytes(data)
    assert worse(audit(stores)) == [("QUEUE_MISMATCH", "n0")]


def test_nodes_that_share_a_directory_are_told_apart(log: ApacheLog, tmp_path: Path) -> None:
    """Three brokers of one machine with one storePathRootDir: the queues belong to nobody in particular."""
    for number in range(3):
        write_apache_store(log, tmp_path / f"s{number}", f"n{number}", keys=[])
        (tmp_path / f"s{number}" / f"dledger-n{number}").rename(tmp_path / f"dledger-n{number}")
    report = audit([tmp_path])
    assert (report.findings, len(report.replicas)) == ([], 3)


def test_key_files_are_read_with_any_number_of_slots(tmp_path: Path) -> None:
    log = apache_log(400)
    for slots, units in ((500, 2000), (97, 2000), (1000, 300), (13, 40_000)):
        root = tmp_path / f"{slots}-{units}"
        store = write_apache_store(log, root, keys=key_files(log, slots, units))
        assert audit([store]).findings == [], (slots, units)


def test_tags_may_be_indexed_like_keys(tmp_path: Path) -> None:
    """RocketMQ 5.4 does; a unit that names another tag is still found, also beside a record that is odd."""
    log = apache_log(400)
    files = key_files(log, tags=True)
    assert b"".join(files) != b"".join(key_files(log))
    store = write_apache_store(log, tmp_path, keys=files)
    assert audit([store]).findings == []
    flip(store, log, 300, HEADER_SIZE + 95)
    assert worse(audit([store])) == [("BIT_ROT", "n0")]
    path = store / "index" / "20240305101112000"
    data = bytearray(path.read_bytes())
    tag_hash = key_hash("orders", "T#tag0").to_bytes(4, "big")
    at = data.index(tag_hash, 40 + 4 * 500)
    assert (at - 40 - 4 * 500) % 20 == 0
    data[at : at + 4] = key_hash("orders", "T#tag3").to_bytes(4, "big")
    path.write_bytes(data)
    assert ("KEY_DANGLING", "n0") in worse(audit([store]))
