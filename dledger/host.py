"""What the state machine above the log offers to the node (the broker, or a test's list)."""

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
        """Of the first entry held."""

    @property
    def last_index(self) -> int:
        """Of the last entry, -1 when there is none."""

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
        """(pos, size) of an entry; KeyError when the log does not hold it, or its index unit is lost."""

    def view(self, pos: int, size: int) -> memoryview | None:
        """Bytes of the hot window, None when they are cold."""

    def is_hot(self, pos: int) -> bool:
        """Whether `pos` lies in the newest part of the log, which is expected in memory."""

    async def read(self, pos: int, size: int) -> bytes:
        """The same bytes, by a worker when cold; ValueError when the log does not hold them."""


async def misfit(log: LogReader, index: int, term: int | None, end_pos: int | None) -> str:
    """Why a state that was saved after entry `index` does not belong to this log; empty when it may go on.

    `term` and `end_pos` are what was saved of that entry, None what was not. The log may have lost the entry
    and got another in its place (`recover --cut-damage`), or have been replaced: then the state is of no use,
    as when the log ends before it. What the log cannot tell because of rot says nothing against a state.
    """
    if index > log.last_index:
        return f"it ends with entry {index}, the log with {log.last_index}"
    if index < log.first_index - 1:
        return f"it ends with entry {index}, the log begins with {log.first_index}"
    known = log.term_of(index)
    if term is not None and known is not None and term != known:
        return f"entry {index} was of term {term}, in the log it is of {known}"
    if end_pos is not None and not await _may_end(log, index, end_pos):
        return f"entry {index} ended at {end_pos}, in the log it does not"
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
        """Load derived state that belongs to this log (`misfit`); the last index that it holds, -1 for none.

        When that is before the entry in front of the log's first one, `restore` follows.
        """

    def snapshot(self) -> Iterable[tuple[str, bytes]]:
        """The state after the last entry applied: (part, next piece of it), each part under a file name.

        A function of the log alone: equal on all replicas, byte for byte (safety.md S20). Entries are applied
        while it is read, so the call takes a copy; packing it, which is slow, is left to the iteration.
        """

    async def restore(self, parts: Mapping[str, bytes], index: int, pos: int) -> None:
        """Become what `snapshot` told after entry `index`, which ends before log offset `pos`; whatever was
        there goes. May come again after a crash in the middle. No entry is applied meanwhile."""

    async def log_begins(self, parts: Mapping[str, bytes], index: int, pos: int) -> None:
        """Entries up to `index` are gone from the log, or will be in a moment: it begins at `pos`, and these
        are the parts of the snapshot there. Also called at every start of such a log."""

    async def kept_from(self) -> int | None:
        """Log offset of the first entry that the state machine still needs: retention leaves it, and what is
        behind it, but where it has to delete by force. None: it needs none."""

    def apply(self, chunk: Chunk) -> None:
        """Apply entries in order. Total: unknown content is skipped alike everywhere (safety.md S13)."""

    def on_role(self, role: Role, term: int, leader_id: str | None) -> None:
        """Role, term or known leader changed."""

    def on_serving(self, term: int) -> None:
        """This node leads, its term is open and applied: `Node.appender` is set."""

    def on_commit(self, commit_index: int) -> None:
        """The commit index moved: complete what waits for entries up to it."""

    def on_stopped_serving(self, term: int) -> None:
        """Leadership ended: of what still waits, the outcome is unknown."""
