"""Headers of the audit requests (28001 to 28008), which RocketMQ does not have.

An auditor first asks a broker to describe its replica, then for rows of its segments and of its other files,
and, where replicas differ, for single entries. All of these are scans of files: a request starts a *job*, and
an answer says how far it is. Its rows come in pages (`audit.row_codec`) in the answers' bodies.
"""

from __future__ import annotations

from dledger.remoting.response_headers import I32, I64, Header


class AuditDescribeHeader(Header):
    """28001: what the replica says of itself, one row per segment, and the members it knows.

    `version`: of the digests that the auditor can compare.
    """

    version: I32


class AuditSegmentHeader(Header):
    """28002: scan one segment. `description`: job of the 28001; `start`: log offset of its first byte.

    `maxAgeMs`: rows of a scan that began no longer ago will do.
    """

    description: str
    start: I64
    blockEntries: I32
    maxAgeMs: I64 = 0


class AuditSideHeader(Header):
    """28003: what belongs to the replica and to no segment of it."""

    description: str


class AuditDrillHeader(Header):
    """28004, 28007: entries of one segment. The body is JSON: `[[first, last], ...]`, inclusive, ascending.

    28004 gives what replicas are compared by, 28007 whole headers, in bulk; brokers of older releases do not
    know it.
    """

    description: str
    start: I64


class AuditPageHeader(Header):
    """28005: a page of a job, or, while it runs, how far it is."""

    job: str
    page: I32 = 0


class AuditStampHeader(Header):
    """28006: what tells one segment, and what its rows were made of, from another one.

    The body is JSON: `[[topic, queue id, first offset, last offset], ...]` of its messages, inclusive, or
    empty for the segment's file alone.
    """

    description: str
    start: I64


class AuditUnitsHeader(Header):
    """28008: units [first, first + count) of the index files, those that were written.

    Brokers of older releases do not know it.
    """

    description: str
    first: I64
    count: I32


class AuditAnswerHeader(Header):
    """Answer to all of them. `pages` is 0 while the job waits or runs: then the body is empty, ask again."""

    job: str
    pages: I32
