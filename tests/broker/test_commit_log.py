"""Operations in the log: not before every voter knows them, and together with their message or not at all."""

from __future__ import annotations

import pytest

from dledger.broker.commit_log import CommitLogWriter
from dledger.broker.stats.stats_item import Puts
from dledger.chaos.scenarios.newer import NEWER_TABLES, NOTES, Note
from dledger.formats.entry import Kind, unpack_header
from dledger.formats.state import ReplicatedState, TopicConfig, state_version
from dledger.remoting.errors import RemotingError
from tests.broker.fake_node import FakeAppender, FakeLog

T = TopicConfig("T", 2, 2, 6)
PUTS = Puts()
NEWER = state_version(NEWER_TABLES)


def writer(version: int) -> tuple[FakeLog, CommitLogWriter]:
    log = FakeLog()
    appender = FakeAppender(log, 1, lambda: None, lambda: 1000)
    appender.state_version = version
    state = ReplicatedState(NEWER_TABLES)
    return log, CommitLogWriter(appender, state, {}, b"\x7f\0\0\1\0\0\0\0", 0, lambda topic: PUTS)


def test_a_newer_operation_waits_until_every_voter_knows_it() -> None:
    log, made = writer(NEWER - 1)
    made.put_topic(T)
    before = len(log.entries)
    with pytest.raises(RemotingError, match="note needs state version") as refused:
        made.append_op(Note("n").op())
    assert refused.value.code == 14 and len(log.entries) == before, "certainly not executed"
    log, made = writer(NEWER)
    made.append_op(Note("n").op())
    assert len(log.entries) == 1


def test_a_message_and_its_operations_are_one_batch() -> None:
    log, made = writer(NEWER)
    made.put_topic(T)
    slot = made.slot("T")
    assert slot is not None
    before = len(log.entries)
    ops = [Note("a").op(), NOTES.removal("b")]
    made.check_versions("note", "unnote")
    index, offset, position = made.add_message(slot, 0, 0, 0, 5, b"\x7f\0\0\1\0\0\0\0", 0, b"body", b"", ops)
    assert (index, offset) == (before + 2, 0) and position == log.entries[before][0] + 48
    headers = [unpack_header(bytes(log.data), pos) for pos, _ in log.entries]
    assert [(one.kind, one.batch_remaining) for one in headers[before:]] == [
        (Kind.MESSAGE, 2),
        (Kind.SYSTEM, 1),
        (Kind.SYSTEM, 0),
    ]
    assert made.pending[NOTES].rows.get("a") == Note("a")
