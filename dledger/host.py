"""Interfaces between the replicated log of a node and the state machine above it (a broker, or a list in
tests)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Protocol

import msgspec


class Role(Enum):
    """Raft role (MemberState.Role). LEARNER receives entries but neither votes nor counts."""

    LEADER = "LEADER"
    FOLLOWER = "FOLLOWER"
    CANDIDATE = "CANDIDATE"
    LEARNER = "LEARNER"


class Chunk(msgspec.Struct, frozen=True):
    """Committed, locally durable, whole entries back to back: `data[0]` is at log offset `pos`.

    `data` may be a view of a mapped file: valid only during the call.
    """

    first_index: int
    count: int
    pos: int
    data: memoryview


class LogReader(Protocol):
    """Read access to the log."""

    @property
    def first_index(self) -> int:
        """Index of the first entry held."""

    @property
    def last_index(self) -> int:
        """Index of the last entry, -1 for an empty log."""

    @property
    def begin_pos(self) -> int:
        """Offset of the first byte held."""

    @property
    def end_pos(self) -> int:
        """Offset behind the last entry."""

    @property
    def durable_pos(self) -> int:
        """Offset behind the last entry that is on this node's disk."""

    @property
    def segment_size(self) -> int:
        """Bytes of a segment: no range that is read may cross a multiple of it."""

    def term_of(self, index: int) -> int | None:
        """Term of an entry, also of the one before the first; -1 for index -1; None when it is not known."""

    async def find(self, index: int) -> tuple[int, int]:
        """(pos, size) of an entry; raises KeyError if the log does not hold it, or its index unit is lost."""

    def view(self, pos: int, size: int) -> memoryview | None:
        """Bytes of the hot window; None when they are cold."""

    def is_hot(self, pos: int) -> bool:
        """Whether `pos` lies in the newest part of the log, which is expected in memory."""

    async def read(self, pos: int, size: int) -> bytes:
        """Return these bytes; a worker reads them when they are cold. Raises ValueError if the log does not
        hold them."""


async def misfit(log: LogReader, index: int, term: int | None, end_pos: int | None) -> str:
    """Return why a state that was saved after entry `index` does not belong to this log; empty if it can be
    used.

    `term` and `end_pos` are the saved values of that entry, None where none were saved. A state does not fit
    when the log lost the entry and got another one in its place (`recover --cut-damage`), when the log was
    replaced, or when the log ends before the entry. What the log cannot say because of corruption does not
    count against a state.
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
        """Load the derived state that belongs to this log (`misfit`). Return the last index that it includes,
        -1 for none.

        If that index is before the entry in front of the log's first one, `restore` is called next.
        """

    def snapshot(self) -> Iterable[tuple[str, bytes]]:
        """Return the state after the last entry applied as (part, next piece of the part); a part is named
        like a file.

        It depends on the log alone and is equal on all replicas, byte for byte (safety.md S20). Entries are
        applied while it is read, so this call takes a copy; the slow packing happens during the iteration.
        """

    async def restore(self, parts: Mapping[str, bytes], index: int, pos: int) -> None:
        """Replace the whole state by the one that `snapshot` returned after entry `index`, which ends before
        log offset `pos`. May be called again after a crash in the middle. No entry is applied during the
        call."""

    async def log_begins(self, parts: Mapping[str, bytes], index: int, pos: int) -> None:
        """Entries up to `index` have been removed from the log, or are about to be: it begins at `pos`, and
        `parts` is the snapshot there. Also called at every start with such a log."""

    async def kept_from(self) -> int | None:
        """Log offset of the first entry that the state machine still needs; None when it needs none.
        Retention keeps this entry and all behind it, except where it has to delete by force."""

    def apply(self, chunk: Chunk) -> None:
        """Apply entries in order. Never fails: unknown content is skipped in the same way on every node
        (safety.md S13)."""

    def on_role(self, role: Role, term: int, leader_id: str | None) -> None:
        """Called when role, term or known leader changed."""

    def on_serving(self, term: int) -> None:
        """Called when this node leads and its term is open and applied: `Node.appender` is set."""

    def on_commit(self, commit_index: int) -> None:
        """Called when the commit index moved: complete what waits for entries up to it."""

    def on_stopped_serving(self, term: int) -> None:
        """Called when leadership ended: the outcome of everything that still waits is unknown."""
