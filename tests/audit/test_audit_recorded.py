"""Stores that brokers of Apache RocketMQ wrote: nothing is found, and every message is what was sent."""

from __future__ import annotations

from pathlib import Path
from zlib import crc32

import pytest

from dledger.audit.records import has_record
from dledger.audit.scan import make_walker, windows
from dledger.audit.store_directory import open_stores, segment_tasks
from dledger.client.compression import decompress
from dledger.formats.entry import HEADER_SIZE
from dledger.formats.properties import KEYS, TAGS, decode_properties
from dledger.formats.record import decode_record
from dledger.runtime.files import OsFiles
from tests.audit.engine import audit
from tests.audit.recorded import VERSIONS, Sent, restore

SCHEDULED = "SCHEDULE_TOPIC_XXXX"


@pytest.mark.parametrize("version", VERSIONS)
def test_a_recorded_group_is_clean(version: str, tmp_path: Path) -> None:
    stores, killed, sent = restore(version, tmp_path)
    report = audit(stores)
    assert {(found.code, found.replica) for found in report.findings} <= {("KEY_MISSING", killed)}
    assert report.entries == 3 * (report.compared_up_to + 1) > 3 * len(sent)
    replicas = open_stores(OsFiles(), [str(store) for store in stores])
    assert all(replica.key_root and replica.queue_root and len(replica.segments) > 2 for replica in replicas)
    assert [int(str(replica["last_term"])) > 1 for replica in report.replicas] == [True] * 3


@pytest.mark.parametrize("version", VERSIONS)
def test_a_recorded_log_holds_what_was_acknowledged(version: str, tmp_path: Path) -> None:
    stores, _, sent = restore(version, tmp_path)
    for store in stores:
        found = messages(store)
        assert {place: found[place] for place in sent} == sent
        assert {place[0] for place in found} == {place[0] for place in sent} | {SCHEDULED}


def messages(store: Path) -> Sent:
    """Every record of a log."""
    files = OsFiles()
    (replica,) = open_stores(files, [str(store)])
    found: Sent = {}
    for task in segment_tasks(replica):
        for window in windows(files, task.path, make_walker(files, task)):
            for entry in window.columns[has_record(window.columns)].entries():
                at = entry.pos - window.base
                record = decode_record(window.data[at + HEADER_SIZE : at + entry.size])
                named = decode_properties(record.properties)
                body = decompress(record.body, record.sys_flag) if record.sys_flag & 1 else record.body
                place = (record.topic, record.queue_id, record.queue_offset)
                assert place not in found
                found[place] = (crc32(body), named.get(TAGS), named.get(KEYS))
    return found
