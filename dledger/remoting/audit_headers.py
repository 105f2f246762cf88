"""Headers of the audit requests (28001 to 28008), which RocketMQ does not have.

An auditor first asks a broker to describe its replica, then for rows of its segments and of its other files,
and, where replicas differ, for single entries. All of these scan files: a request starts a *job*, and an
answer reports its progress. Its rows come in pages (`audit.row_codec`) in the bodies of the answers.
"""

from __future__ import annotations

from dledger.remoting.response_headers import I32, I64, Header


class AuditDescribeHeader(Header):
    """28001: describe the replica, with one row per segment, and the members that it knows.

    `version` is that of the digests that the auditor can compare.
    """

    version: I32


class AuditSegmentHeader(Header):
    """28002: scan one segment. `description`: job of the 28001; `start`: log offset of its first byte.

    `maxAgeMs`: rows of an earlier scan are accepted if it began at most this long ago.
    """

    description: str
    start: I64
    blockEntries: I32
    maxAgeMs: I64 = 0


class AuditSideHeader(Header):
    """28003: scan what belongs to the replica but to none of its segments."""

    description: str


class AuditDrillHeader(Header):
    """28004, 28007: entries of one segment. The body is JSON: `[[first, last], ...]`, inclusive, ascending.

    28004 returns what replicas are compared by. 28007 returns whole headers, in bulk; brokers of older
    releases do not know it.
    """

    description: str
    start: I64


class AuditPageHeader(Header):
    """28005: a page of a job, or its progress while it runs."""

    job: str
    page: I32 = 0


class AuditStampHeader(Header):
    """28006: data that distinguishes one segment, and what its rows were made of, from another one.

    The body is JSON: `[[topic, queue id, first offset, last offset], ...]` of its messages, inclusive, or
    empty for the segment's file alone.
    """

    description: str
    start: I64


class AuditUnitsHeader(Header):
    """28008: units [first, first + count) of the index files, as far as they were written.

    Brokers of older releases do not know it.
    """

    description: str
    first: I64
    count: I32


class AuditAnswerHeader(Header):
    """Answer to all of them. `pages` is 0 while the job waits or runs: then the body is empty, and the
    request is to be repeated."""

    job: str
    pages: I32
