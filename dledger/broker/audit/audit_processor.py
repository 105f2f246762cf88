"""Requests 28001 to 28008, by which an auditor checks this broker's replica over the network
(`remoting.audit_headers`).

Any node answers, leader or follower, because the auditor compares the answers of all nodes. An answer shows
what is on the disk, up to the commit index that was durable when the replica described itself (28001). The
scans use the same code as an audit of a directory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from dledger.broker.audit.audit_jobs import AuditJobs, Job
from dledger.broker.auth import required
from dledger.broker.core import Core, Members
from dledger.broker.requests import Call, Needs, handles
from dledger.formats.entry import HEADER_SIZE, INDEX_UNIT_SIZE
from dledger.formats.store_files import INDEX_DIR
from dledger.remoting.audit_headers import (
    AuditDescribeHeader,
    AuditDrillHeader,
    AuditPageHeader,
    AuditSegmentHeader,
    AuditSideHeader,
    AuditStampHeader,
    AuditUnitsHeader,
)
from dledger.remoting.codes import RequestCode, ResponseCode
from dledger.remoting.errors import RemotingError
from dledger.runtime.files import Files

if TYPE_CHECKING:
    from dledger.audit.findings import QueueRow
    from dledger.audit.row_codec import AnyRow
    from dledger.audit.store_directory import Replica, SegmentTask

DISK = (
    "the answering node's disk, bounded by its durable commit index at the time of its description; "
    "entries above that are marked as uncommitted"
)
MAX_DESCRIPTIONS = 16
"""Largest number of kept descriptions of the replica; beyond it the least recently used one is dropped."""
MAX_DRILLED_ENTRIES = 1 << 20
"""Largest number of log entries that one drill request (a request for single entries with their CRCs) may ask
for; a request for more is refused."""
MAX_RANGES = 256 * 1024
"""Limit, in bytes, of the list of index ranges in a request; a longer list is refused."""
MAX_QUEUE_ROWS = 1024 * 1024
"""Limit, in bytes, of a request that lists the queues of a segment (about 25,000 queues); a longer one is
refused."""
MAX_UNITS = 1 << 18
"""Largest number of units of the log's index files that one request can ask for (8 MiB); a request for more
is refused."""
_ROW_UNITS = 1 << 14

Read = Callable[["SegmentTask", list[tuple[int, int]], Files], Iterator["AnyRow"]]
"""A function that reads ranges of log indexes from a segment and yields rows."""


class Described:
    """The description of the replica that one auditor has received. It has the files of the replica and one
    scan task for each segment. A worker thread fills this object before the job that makes the description is
    done."""

    def __init__(self, version: int) -> None:
        self.version = version
        self.replica: Replica | None = None
        self.tasks: dict[int, SegmentTask] = {}


class AuditProcessor:
    """Handlers of the requests that an auditor sends."""

    def __init__(self, core: Core, audit_jobs: AuditJobs, members: Members) -> None:
        self._settings = core.settings
        self._jobs = audit_jobs
        self._members = members
        self._described: dict[str, Described] = {}  # least recently used first

    @handles(RequestCode.AUDIT_DESCRIBE, AuditDescribeHeader, needs=Needs.ANY, reads=DISK, may=required.ADMIN)
    def describe(self, call: Call[AuditDescribeHeader]) -> None:
        """Describe the replica. The description is always made anew, because all later requests of the audit
        read only the files that it names."""
        version = call.header.version
        described = Described(version)
        root, node, members = self._settings.now.store_root, self._settings.now.self_id, dict(self._members())
        job = self._jobs.start(None, lambda files: describe(files, root, node, members, described))
        if len(self._described) >= MAX_DESCRIPTIONS:
            del self._described[next(iter(self._described))]
        self._described[job.id] = described
        self._answer(call, job)

    @handles(RequestCode.AUDIT_SEGMENT, AuditSegmentHeader, needs=Needs.ANY, reads=DISK, may=required.ADMIN)
    def segment(self, call: Call[AuditSegmentHeader]) -> None:
        """Scan one segment and return the rows."""
        header = call.header
        if header.blockEntries < 1:
            raise RemotingError(ResponseCode.INVALID_PARAMETER, "blockEntries must be at least 1")
        task = settled(self._task(header.description, header.start))
        key = ("segment", task, header.blockEntries)
        work = partial(_scan, task, header.blockEntries)
        self._answer(call, self._jobs.start(key, work, header.maxAgeMs / 1000))

    @handles(RequestCode.AUDIT_SIDE, AuditSideHeader, needs=Needs.ANY, reads=DISK, may=required.ADMIN)
    def side(self, call: Call[AuditSideHeader]) -> None:
        """Check the files of the replica that belong to no segment."""
        self._answer(call, self._jobs.start(None, partial(_side, self._replica(call.header.description))))

    @handles(
        RequestCode.AUDIT_DRILL,
        AuditDrillHeader,
        needs=Needs.ANY,
        reads=DISK,
        max_body=MAX_RANGES,
        may=required.ADMIN,
    )
    def drill(self, call: Call[AuditDrillHeader]) -> None:
        """Return the entries in some ranges of log indexes as rows, each entry with its CRCs."""
        self._read(call, _drill)

    @handles(
        RequestCode.AUDIT_ENTRIES,
        AuditDrillHeader,
        needs=Needs.ANY,
        reads=DISK,
        max_body=MAX_RANGES,
        may=required.ADMIN,
    )
    def entries(self, call: Call[AuditDrillHeader]) -> None:
        """Return the entries in some ranges of log indexes as columns."""
        self._read(call, _entries)

    def _read(self, call: Call[AuditDrillHeader], read: Read) -> None:
        task = self._task(call.header.description, call.header.start)
        work = partial(read, task, parse_ranges(call.request.body))
        self._answer(call, self._jobs.start(None, work))

    @handles(RequestCode.AUDIT_PAGE, AuditPageHeader, needs=Needs.ANY, reads=DISK, may=required.ADMIN)
    def page(self, call: Call[AuditPageHeader]) -> None:
        """Return one page of the answer that a job has prepared."""
        self._answer(call, self._jobs.find(call.header.job), call.header.page)

    @handles(
        RequestCode.AUDIT_STAMP,
        AuditStampHeader,
        needs=Needs.ANY,
        reads=DISK,
        max_body=MAX_QUEUE_ROWS,
        may=required.ADMIN,
    )
    def stamp(self, call: Call[AuditStampHeader]) -> None:
        """Return the stamp of a segment. By comparing stamps, an auditor sees whether the segment changed."""
        task = self._task(call.header.description, call.header.start)
        work = partial(_stamp, task, call.request.body, self._jobs.now_ms())
        self._answer(call, self._jobs.start(None, work))

    @handles(RequestCode.AUDIT_UNITS, AuditUnitsHeader, needs=Needs.ANY, reads=DISK, may=required.ADMIN)
    def units(self, call: Call[AuditUnitsHeader]) -> None:
        """Return units (fixed-size records) of the log's index files."""
        header = call.header
        if header.first < 0 or not 1 <= header.count <= MAX_UNITS:
            text = (
                f"{header.count} units from unit {header.first} on: ask for 1 to {MAX_UNITS} "
                "units, from unit 0 or above"
            )
            raise RemotingError(ResponseCode.INVALID_PARAMETER, text)
        work = partial(_units, self._replica(header.description), header.first, header.count)
        self._answer(call, self._jobs.start(None, work))

    def _answer(self, call: Call[Any], job: Job, page: int = 0) -> None:
        self._jobs.wait(job, partial(respond, call, job, page))

    def _known(self, description: str) -> Described:
        described = self._described.pop(description, None)
        if described is None:
            text = (
                "the description of the replica is gone (the broker was restarted, or too many "
                "audits run): describe the replica again"
            )
            raise RemotingError(ResponseCode.QUERY_NOT_FOUND, text)
        self._described[description] = described  # now it is the most recently used
        return described

    def _replica(self, description: str) -> Replica:
        replica = self._known(description).replica
        if replica is None:
            raise RemotingError(ResponseCode.SYSTEM_BUSY, "the replica is still being described")
        return replica

    def _task(self, description: str, start: int) -> SegmentTask:
        task = self._known(description).tasks.get(start)
        if task is None:
            raise RemotingError(ResponseCode.INVALID_PARAMETER, f"no segment was described at {start}")
        return task


def respond(call: Call[Any], job: Job, page: int) -> None:
    """Answer the request with one page of the job, or say that the job is not done."""
    if job.error:
        call.respond(job.code, remark=job.error)
        return
    ext = {"job": job.id, "pages": str(len(job.pages))}
    if not job.done:
        call.respond(ext=ext)
    elif not 0 <= page < len(job.pages):
        call.respond(ResponseCode.INVALID_PARAMETER, remark=f"page {page} of {ext['pages']}")
    else:
        call.respond(ext=ext, body=job.pages[page])


def parse_ranges(body: bytes) -> list[tuple[int, int]]:
    """Return the ranges of log indexes in a request. Raises RemotingError if they are malformed, overlap, or
    contain more than MAX_DRILLED_ENTRIES entries."""
    try:
        ranges = msgspec.json.decode(body, type=list[tuple[int, int]])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RemotingError(ResponseCode.INVALID_PARAMETER, f"index ranges: {error}") from error
    before = -1
    for first, last in ranges:
        if not before < first <= last:
            raise RemotingError(ResponseCode.INVALID_PARAMETER, f"index range {first} to {last}")
        before = last
    if sum(last - first + 1 for first, last in ranges) > MAX_DRILLED_ENTRIES:
        raise RemotingError(ResponseCode.INVALID_PARAMETER, f"more than {MAX_DRILLED_ENTRIES} indexes")
    return ranges


def parse_queues(body: bytes, task: SegmentTask) -> list[QueueRow]:
    """Parse the list of a segment's messages by queue. Raises RemotingError if it is malformed, or lists more
    messages than the segment has room for."""
    from dledger.audit.findings import QueueRow

    try:
        queues = msgspec.json.decode(body, type=list[tuple[str, int, int, int]])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RemotingError(ResponseCode.INVALID_PARAMETER, f"queues: {error}") from error
    room = task.size // HEADER_SIZE
    for topic, queue_id, first, last in queues:
        room -= last - first + 1
        if "/" in topic or topic in ("", ".", "..") or queue_id < 0 or not 0 <= first <= last or room < 0:
            raise RemotingError(
                ResponseCode.INVALID_PARAMETER, f"offsets {first} to {last} of {topic!r}/{queue_id}"
            )
    return [QueueRow(task.replica, task.start, *queue) for queue in queues]


def settled(task: SegmentTask) -> SegmentTask:
    """Return the task in a form that no longer changes once the segment is full, committed and indexed.

    The rows of such a segment do not change either, so auditors that ask at different times share one job.
    """
    if task.next_first is None or task.committed < task.next_first - 1 or task.index_end < task.next_first:
        return task
    last = task.next_first - 1
    return replace(task, committed=last, index_end=task.next_first, applied=min(task.applied, last))


# --- in a thread ------------------------------------------------------------------------------------------


def describe(
    files: Files, root: str, node: str, members: Mapping[str, str], described: Described
) -> Iterator[AnyRow]:
    """Yield the rows that describe the replica, its segments and its members. Raises StoreError if the store
    has no replica of this node, or if the auditor uses another digest version."""
    from dledger.audit.digests import DIGEST_VERSION
    from dledger.audit.row_codec import MemberRow, as_task_row
    from dledger.audit.store_directory import StoreError, open_store, segment_tasks

    if described.version != DIGEST_VERSION:
        text = f"digests of version {DIGEST_VERSION} here, {described.version} at the auditor"
        raise StoreError(f"{text}: use one release for both")
    replicas = [replica for replica in open_store(files, root) if replica.name == node]
    if not replicas:
        raise StoreError(f"{root}: no replica of {node}")
    described.replica = replicas[0]
    described.tasks = {task.start: task for task in segment_tasks(replicas[0])}
    yield replicas[0].row()
    for task in described.tasks.values():
        yield as_task_row(task)
    for member, address in members.items():
        yield MemberRow(member, address)


def _scan(task: SegmentTask, block_entries: int, files: Files) -> Iterator[AnyRow]:
    from dledger.audit.scan import scan_segment

    yield from scan_segment(files, task, block_entries)


def _side(replica: Replica, files: Files) -> Iterator[AnyRow]:
    from dledger.audit.scan import scan_side

    yield from scan_side(files, replica)


def _drill(task: SegmentTask, ranges: list[tuple[int, int]], files: Files) -> Iterator[AnyRow]:
    from dledger.audit.scan import drill_segment

    yield from drill_segment(files, task, task.first_index, ranges)


def _stamp(task: SegmentTask, body: bytes, now_ms: int, files: Files) -> Iterator[AnyRow]:
    """Yield the row with the stamp. `body` lists the messages of the segment by queue and may be empty. It is
    parsed in the worker, because the list can be long."""
    from dledger.audit.segment_stamp import stamp

    queues = parse_queues(body, task) if body else None
    found = stamp(files, task, queues, now_ms)
    if found is not None:
        yield found


def _entries(task: SegmentTask, ranges: list[tuple[int, int]], files: Files) -> Iterator[AnyRow]:
    """Yield the entries as rows. If reading fails, yield a finding that reports the failure after the rows
    that were read before it."""
    from dledger.audit.findings import finding
    from dledger.audit.row_codec import as_entries_rows
    from dledger.audit.scan import read_entries

    try:
        for window in read_entries(files, task, task.first_index, ranges):
            yield from as_entries_rows(task.replica, window.columns)
    except OSError as error:
        yield finding("UNREADABLE", task.replica, f"{task.path}: {error}", segment=task.start)


def _units(replica: Replica, first: int, count: int, files: Files) -> Iterator[AnyRow]:
    """Yield index units as rows. If reading fails, yield a finding that reports it after the rows that were
    read before."""
    from dledger.audit.findings import finding
    from dledger.audit.row_codec import UnitsRow
    from dledger.audit.unit_files import UnitFiles

    directory = f"{replica.directory}/{INDEX_DIR}"
    try:
        units = UnitFiles(files, directory, INDEX_UNIT_SIZE)
        try:
            for at in range(first, first + count, _ROW_UNITS):
                data = units.read(at, min(_ROW_UNITS, first + count - at))
                if data.strip(b"\0"):
                    yield UnitsRow(replica.name, at, data)
        finally:
            units.close()
    except OSError as error:
        yield finding("UNREADABLE", replica.name, f"{directory}: {error}")
