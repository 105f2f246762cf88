"""Interfaces between the replicated log of a node and the state machine above it (a broker, or a list in
tests)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Protocol

import msgspec


class Role(Enum):
    """Raft role (MemberState.Role). A LEARNER receives entries, but it does not vote, and its disk does not
    count for a majority."""

    LEADER = "LEADER"
    FOLLOWER = "FOLLOWER"
    CANDIDATE = "CANDIDATE"
    LEARNER = "LEARNER"


class Chunk(msgspec.Struct, frozen=True):
    """Entries that follow one another in the log; all of them are committed, durable on this node, and
    intact. `data[0]` is at log offset `pos`.

    `data` may be a view of a mapped file. It is valid only during the call.
    """

    first_index: int
    count: int
    pos: int
    data: memoryview


class LogReader(Protocol):
    """Read access to the log."""

    @property
    def first_index(self) -> int:
        """Index of the first entry in the log."""

    @property
    def last_index(self) -> int:
        """Index of the last entry, -1 for an empty log."""

    @property
    def begin_pos(self) -> int:
        """Log offset of the first byte in the log."""

    @property
    def end_pos(self) -> int:
        """Log offset directly after the last entry."""

    @property
    def durable_pos(self) -> int:
        """Log offset directly after the last entry that is durable on this node's disk."""

    @property
    def segment_size(self) -> int:
        """Size of a segment in bytes. A range of bytes that is read must not cross a multiple of it."""

    def term_of(self, index: int) -> int | None:
        """Term of an entry, which may also be the entry before the first one in the log. -1 for index -1;
        None if the term is not known."""

    async def find(self, index: int) -> tuple[int, int]:
        """Returns (log offset, size) of an entry. Raises KeyError if the log does not hold the entry, or if
        its record in the index files is lost."""

    def view(self, pos: int, size: int) -> memoryview | None:
        """These bytes of the log, if they lie in its newest part, which is expected to be in memory
        (`is_hot`); None otherwise."""

    def is_hot(self, pos: int) -> bool:
        """Whether log offset `pos` lies in the newest part of the log, which is expected to be in memory."""

    async def read(self, pos: int, size: int) -> bytes:
        """Return these bytes of the log. If they are not in memory, a worker thread reads them. Raises
        ValueError if the log does not hold them."""


async def misfit(log: LogReader, index: int, term: int | None, end_pos: int | None) -> str:
    """Return why a state that was saved after entry `index` does not belong to this log; empty if it can be
    used.

    `term` and `end_pos` are the saved values of that entry, None where none were saved. A state does not
    belong to the log in three cases: the log lost the entry and got another one at this index (`recover
    --cut-damage`), the log was replaced, or it ends before the entry. If corruption in the log prevents a
    check, the state counts as usable.
    """
    if index > log.last_index:
        return f"it ends with entry {index}, and the log ends with {log.last_index}"
    if index < log.first_index - 1:
        return f"it ends with entry {index}, and the log begins with {log.first_index}"
    known = log.term_of(index)
    if term is not None and known is not None and term != known:
        return f"it has entry {index} with term {term}, and the log has it with term {known}"
    if end_pos is not None and not await _may_end(log, index, end_pos):
        return f"it has entry {index} ending at byte {end_pos}, and in the log it ends elsewhere"
    return ""


async def _may_end(log: LogReader, index: int, end_pos: int) -> bool:
    if index < log.first_index:
        return end_pos <= log.begin_pos
    try:
        pos, size = await log.find(index)
    except KeyError:
        return True
    # A state that came with a boundary snapshot ends where the next segment begins.
    return end_pos == pos + size or end_pos == pos - pos % log.segment_size + log.segment_size


class Host(Protocol):
    """The replicated state machine. Calls come on the event loop, in order, and must be short."""

    async def open(self, log: LogReader) -> int:
        """Load the state that was saved for this log (`misfit` tells whether it belongs to it). Return the
        index of the last entry that the state includes, -1 for none.

        If entries between that index and the first entry of the log are missing, `restore` is called next.
        """

    def snapshot(self) -> Iterable[tuple[str, bytes]]:
        """Return the state after the last applied entry, as pairs of a part's name and the next bytes of this
        part. A part is named like a file.

        The state depends on the log alone, and is equal on all replicas, byte for byte (safety.md S20). More
        entries are applied while the caller iterates. So this call takes a copy, and the slow packing happens
        during the iteration.
        """

    async def restore(self, parts: Mapping[str, bytes], index: int, pos: int) -> None:
        """Replace the whole state by the one that `snapshot` returned after entry `index`, which ends
        directly before log offset `pos`. After a crash during the call, it is called again. No entry is
        applied during the call."""

    async def log_begins(self, parts: Mapping[str, bytes], index: int, pos: int) -> None:
        """Note that the log begins at log offset `pos`: entries up to `index` have been removed from it, or
        are about to be. `parts` is the snapshot of the state after entry `index`. Also called at every start
        with such a log."""

    async def kept_from(self) -> int | None:
        """Log offset of the first entry that the state machine still needs; None if it needs none. Retention
        keeps this entry and all later ones, except where it has to delete by force."""

    def apply(self, chunk: Chunk) -> None:
        """Apply entries in order. It never fails, because it skips unknown content in the same way on every
        node (safety.md S13)."""

    def on_role(self, role: Role, term: int, leader_id: str | None) -> None:
        """Called when the role, the term or the known leader has changed."""

    def on_serving(self, term: int) -> None:
        """Called when this node leads, and the entry that opens its term is committed and applied.
        `Node.appender` is then set."""

    def on_commit(self, commit_index: int) -> None:
        """Called when the commit index has moved. The host completes requests that wait for entries up to
        it."""

    def on_stopped_serving(self, term: int) -> None:
        """Called when this node stopped leading. The outcome of every request that still waits is unknown."""
