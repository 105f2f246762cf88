"""Headers of the audit requests (codes 28001 to 28009), which RocketMQ does not have.

An auditor compares the replicas of a broker group. It first asks each broker to describe its replica, then
for *rows* (checksums and counts) of the segments and of the other files, and, where replicas differ, for
single entries. These requests scan files. So a request starts a *job* at the broker, and an answer reports
how far the job is. The rows come in pages (`audit.row_codec`) in the bodies of the answers. Only 28009, which
copies the log, is answered at once.
"""

from __future__ import annotations

from dledger.remoting.response_headers import I32, I64, Header


class AuditDescribeHeader(Header):
    """Request 28001 AUDIT_DESCRIBE: describe the replica, with one row per segment, and list the members that
    it knows.

    `version` is the version of the digests that the auditor can compare.
    """

    version: I32


class AuditSegmentHeader(Header):
    """Request 28002 AUDIT_SEGMENT: scan one segment.

    `description` is the job that request 28001 started. `start` is the log offset of the segment's first
    byte. `maxAgeMs`: rows of an earlier scan are accepted if that scan began at most this long ago.
    """

    description: str
    start: I64
    blockEntries: I32
    maxAgeMs: I64 = 0


class AuditSideHeader(Header):
    """Request 28003 AUDIT_SIDE: scan the files of the replica that are not segments of its log."""

    description: str


class AuditDrillHeader(Header):
    """Requests 28004 AUDIT_DRILL and 28007 AUDIT_ENTRIES: read some entries of one segment. The body is JSON:
    `[[first, last], ...]`, inclusive, ascending.

    28004 returns what is compared between replicas. 28007 returns whole headers of many entries; brokers of
    older releases do not know it.
    """

    description: str
    start: I64


class AuditPageHeader(Header):
    """Request 28005 AUDIT_PAGE: return one page of a job's rows, or the job's progress while it runs."""

    job: str
    page: I32 = 0


class AuditStampHeader(Header):
    """Request 28006 AUDIT_STAMP: return data that changes when the segment, or the files from which its rows
    were made, are replaced by others.

    The body is JSON: `[[topic, queue id, first offset, last offset], ...]` of the segment's messages,
    inclusive. If the body is empty, only the segment's own file is considered.
    """

    description: str
    start: I64


class AuditUnitsHeader(Header):
    """Request 28008 AUDIT_UNITS: return the units (one per entry) `first` to `first + count - 1` of the index
    files, as far as they were written.

    Brokers of older releases do not know it.
    """

    description: str
    first: I64
    count: I32


class AuditLogHeader(Header):
    """Request 28009 AUDIT_LOG: return bytes of the log as they are stored, from entry `first` on.

    There are at most `maxBytes` bytes, unless the first entry alone is larger. They may end within an entry,
    and at the end of a segment with its blank tail. No job is started. Brokers of older releases do not know
    this request.
    """

    first: I64
    maxBytes: I32


class AuditLogAnswer(Header):
    """Header of the answer to 28009 AUDIT_LOG.

    `position` is the log offset of the body's first byte. It is -1, and the body is empty, if entry `first`
    is not in the log (`begin` is the index of the log's first entry) or not applied yet (`applied` is the
    index of the last applied entry). `cluster` is the id of the log, empty while the broker does not know
    it.
    """

    begin: I64
    applied: I64
    position: I64
    cluster: str
    group: str
    node: str


class AuditAnswerHeader(Header):
    """Header of the answer to each audit request but 28009. While the job waits or runs, `pages` is 0 and the
    body is empty; the auditor then repeats the request."""

    job: str
    pages: I32
