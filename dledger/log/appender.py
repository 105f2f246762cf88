"""Sealing by the leader: an entry gets its index, pos and CRCs. This is synchronous and cannot fail
(safety.md S12).

Every check that may refuse an entry is made before the entry is sealed. Entries added in one turn of the
event loop go out as one batch: one write, one push per follower, one fsync.
"""

from __future__ import annotations

from collections.abc import Callable

from dledger.errors import InvariantBroken
from dledger.formats.checksum import crc32
from dledger.formats.entry import (
    CHAIN,
    COVERED,
    HEADER,
    HEADER_SIZE,
    MAGIC,
    MAX_ENTRY_SIZE,
    MIN_BLANK_SIZE,
    Kind,
)
from dledger.formats.record import system_record, system_record_size
from dledger.log.hot_tail import Batch
from dledger.log.store import LogStore
from dledger.messages import Code


class Run:
    """A run of entries which are sealed one after the other without a call for each. `Appender.open_run`
    returns it.

    The caller advances `index`, `pos` and `chain`, and adds the bytes of the entries to `parts` and their
    sizes to `sizes`. It must close the run in the same turn of the loop, before anything else is added.
    """

    __slots__ = (
        "chain",
        "covered",
        "first",
        "index",
        "max_entry",
        "now_ms",
        "parts",
        "pos",
        "room_index",
        "room_pos",
        "sizes",
        "stop_pos",
        "term",
    )

    def __init__(
        self,
        index: int,
        pos: int,
        chain: int,
        term: int,
        covered: int,
        now_ms: int,
        parts: list[bytes],
        sizes: list[int],
        room_index: int,
        room_pos: int,
        stop_pos: int,
        max_entry: int,
    ) -> None:
        self.first: int = index
        self.index: int = index
        """Index of the next entry."""
        self.pos: int = pos
        """Position of the next entry in the log."""
        self.chain: int = chain
        """Chain value of the entry before the next one."""
        self.term: int = term
        self.covered: int = covered
        """The bit COVERED for the `channel` of the entries. It is 0 as long as the program of some voter does
        not know this bit."""
        self.now_ms: int = now_ms
        """Store time of the entries, in ms."""
        self.parts: list[bytes] = parts
        self.sizes: list[int] = sizes
        self.room_index: int = room_index
        """No entry of the run may have a higher index."""
        self.room_pos: int = room_pos
        """No entry of the run may begin at or above this position (`Appender.refusal`)."""
        self.stop_pos: int = stop_pos
        """No entry of the run may end above this position (`Appender.reserve`)."""
        self.max_entry: int = max_entry
        """Largest size of an entry in bytes."""

    def __len__(self) -> int:
        return self.index - self.first


class Appender:
    """Seals entries during one leadership. `schedule_pump` is called once in each turn of the loop in which
    an entry is added. The pump, which writes and sends batches, then takes the sealed ones (`take`)."""

    def __init__(
        self,
        log: LogStore,
        term: int,
        *,
        pending_bytes: int,
        pending_entries: int,
        schedule_pump: Callable[[], None],
        max_entry_bytes: int = MAX_ENTRY_SIZE,
        known_kinds: frozenset[int] = frozenset(Kind),
        may_write: Callable[[int], bool] = lambda kind: False,
        may_cover: Callable[[], bool] = lambda: True,
        state_version: Callable[[], int] = lambda: 1,
    ) -> None:
        """Make an appender for the leadership of this term.

        * `known_kinds`: the kinds of entries that every program knows. Others are refused until `may_write`
          allows them.
        * `may_cover`: whether all voters know CRCs that cover the channel. It is asked once in each turn of
          the loop. A log whose last entry has such a CRC keeps using them, because all its readers must know
          them already (decision 0014).
        * `state_version`: the version of the state machine's operations that all voters can read.
        """
        if log.last_chain is None:
            raise InvariantBroken(f"the last entry of this leader, {log.last_index}, is corrupt")
        self.term = term
        self.paused = False
        """Whether leadership is being handed over; then no entry is accepted."""
        self.disk_full = False
        """Whether the use of the disk is above its limit; then no entry of a client is accepted."""
        self._log = log
        self._max_entry = max_entry_bytes
        self._known_kinds = known_kinds
        self._may_write = may_write
        self._may_cover = may_cover
        self._state_version = state_version
        self._covered = COVERED if log.covered else 0
        self._pending_bytes = pending_bytes
        self._pending_entries = pending_entries
        self._schedule = schedule_pump
        self._next_index = log.last_index + 1
        self._next_pos = log.end_pos
        self._chain = log.last_chain
        self._committed_index = self._next_index - 1
        self._committed_pos = self._next_pos
        self._start_pos = self._next_pos
        self._first = self._next_index
        self._parts: list[bytes] = []
        self._sizes: list[int] = []
        self._remaining: list[int] = []
        self._batched = False
        self._sealed: list[Batch] = []
        self._scheduled = False
        self._now_ms = -1

    @property
    def room(self) -> bool:
        """Whether an entry can be accepted now; see `refusal`."""
        return self.refusal is None

    @property
    def refusal(self) -> Code | None:
        """Why an entry must be refused before it is sealed (S12): DISK_FULL, LEADER_PENDING_FULL, or None.

        Pending entries are those not committed *or* not on this disk. Followers may commit without this disk,
        but until then the entries are in this node's memory and cannot be read by anybody.
        """
        log = self._log
        if self.disk_full or (
            log.short_of_space and not log.can_seal(self._next_pos, self._next_index, self._max_entry)
        ):
            return Code.DISK_FULL
        if (
            self._next_pos - min(self._committed_pos, log.durable_pos) < self._pending_bytes
            and self._next_index - min(self._committed_index, log.durable_mark) <= self._pending_entries
            and not self.paused
        ):
            return None
        return Code.LEADER_PENDING_FULL

    @property
    def disk_lag(self) -> float:
        """How far this disk is behind the commit index, as a share of the entries or bytes that may be
        pending. 1.0 is the limit."""
        log = self._log
        return max(
            (self._committed_pos - log.durable_pos) / self._pending_bytes,
            (self._committed_index - log.durable_mark) / self._pending_entries,
        )

    @property
    def next_index(self) -> int:
        """Index that the next `add` returns."""
        return self._next_index

    @property
    def max_batch(self) -> int:
        """Largest size, in bytes, that `reserve` accepts."""
        return min(self._max_entry, self._log.segment_size - 8)

    def reserve(self, total_size: int) -> int:
        """Return the position for the first of some entries with `total_size` bytes (headers and bodies). If
        they do not fit into the segment, the log continues in a new one."""
        size = self._log.segment_size
        if total_size > self._max_entry:
            raise ValueError(f"the entry or batch has {total_size} bytes; the limit is {self._max_entry}")
        start = self._next_pos - self._next_pos % size
        if self._next_pos - start + total_size + 8 > size:
            if total_size + 8 > size:
                raise ValueError(f"{total_size} bytes do not fit one segment of {size}")
            self._seal()
            self._next_pos = self._start_pos = start + size
        return self._next_pos

    def add(
        self, parts: tuple[bytes, ...], size: int, kind: int = Kind.MESSAGE, batch_remaining: int = 0
    ) -> int:
        """Seal one entry, at the position that `reserve` returned, and return its index. The body is `parts`
        joined (`size` bytes).

        Raises ValueError for a kind that some voter's program does not know (`Node.may_write`).
        """
        if kind not in self._known_kinds and not self._may_write(kind):
            raise ValueError(
                f"entries of kind {kind} cannot be written yet, as a voter runs a "
                "version that does not know them"
            )
        if not self._scheduled:
            self._begin_turn()
        channel = self._covered | kind << 24 | batch_remaining
        body_crc = channel if self._covered else 0
        for part in parts:
            body_crc = crc32(part, body_crc)
        index = self._next_index
        term = self.term
        chain = self._chain = crc32(CHAIN.pack(index, term, body_crc), self._chain)
        entry_size = size + HEADER_SIZE
        self._parts.append(
            HEADER.pack(
                MAGIC,
                entry_size,
                index,
                term,
                self._next_pos,
                channel,
                chain,
                body_crc,
                size,
            )
        )
        self._parts += parts
        self._sizes.append(entry_size)
        self._remaining.append(batch_remaining)
        if batch_remaining:
            self._batched = True
        self._next_pos += entry_size
        self._next_index = index + 1
        return index

    def open_run(self) -> Run | None:
        """Begin a run of entries with messages. The caller keeps to the limits in the run. None if an entry
        would be refused now, or little space is left on the disk."""
        if self._log.short_of_space or self.refusal is not None:
            return None
        return self._run()

    def close_run(self, run: Run) -> None:
        """End the run. Its entries are sealed then."""
        self._close(run, [0] * len(run))

    def open_batch(self, total_size: int) -> Run:
        """Begin a run of entries that are part of a batch of `total_size` bytes. The caller has checked that
        there is room. In each entry it records how many entries of the batch follow."""
        self.reserve(total_size)
        return self._run()

    def close_batch(self, run: Run, following: int) -> None:
        """End the run. Its entries are sealed then. `following` is the number of entries of its batch that
        are still to be added."""
        self._close(run, list(range(len(run) - 1 + following, following - 1, -1)))
        if len(run):
            self._batched = True

    def _run(self) -> Run:
        log = self._log
        now = self.now_ms()
        size = log.segment_size
        return Run(
            self._next_index,
            self._next_pos,
            self._chain,
            self.term,
            self._covered,
            now,
            self._parts,
            self._sizes,
            min(self._committed_index, log.durable_mark) + self._pending_entries,
            min(self._committed_pos, log.durable_pos) + self._pending_bytes,
            self._next_pos - self._next_pos % size + size - MIN_BLANK_SIZE,
            self._max_entry,
        )

    def _close(self, run: Run, remaining: list[int]) -> None:
        self._remaining += remaining
        self._next_index = run.index
        self._next_pos = run.pos
        self._chain = run.chain

    def add_system(self, body: bytes, kind: int = Kind.SYSTEM) -> int:
        """Seal a system entry; `body` becomes the body of a CommitLog record of the reserved topic (S10)."""
        self.reserve(HEADER_SIZE + system_record_size(len(body)))
        return self.add_reserved(body, kind)

    def add_reserved(self, body: bytes, kind: int = Kind.SYSTEM, batch_remaining: int = 0) -> int:
        """Seal a system entry (`add_system`) at the position that `reserve` returned, as part of a batch."""
        size = system_record_size(len(body))
        record = system_record(body, self._next_pos + HEADER_SIZE, self.now_ms())
        return self.add((record,), size, kind, batch_remaining)

    @property
    def state_version(self) -> int:
        """Version of the state machine's operations that all voters can read. Newer operations must not be
        written yet."""
        return self._state_version()

    def now_ms(self) -> int:
        """Store time of the entries added in this turn of the loop, in ms. It is never before that of the
        newest record."""
        if not self._scheduled:
            self._begin_turn()
        if self._now_ms < 0:
            self._now_ms = self._log.store_time_now()
        return self._now_ms

    def clock_ms(self) -> int:
        """The current time in ms (`StoreClock`); unlike store time it may go back.

        It is never later than the store time of the entries that are added in this turn of the loop. So what
        is due by this clock is not stored with an earlier time.
        """
        clock = self._log.look_at_clock()
        return clock if self._now_ms < 0 else min(clock, self._now_ms)

    def take(self) -> list[Batch]:
        """Return the batches sealed since the last call, in order; called by the pump."""
        self._scheduled = False
        self._now_ms = -1
        self._seal()
        sealed, self._sealed = self._sealed, []
        return sealed

    def _begin_turn(self) -> None:
        if not self._covered and self._may_cover():
            self._covered = COVERED
        self._scheduled = True
        self._schedule()

    def committed(self, index: int, pos: int) -> None:
        """Note that entries up to `index`, whose entry ends at `pos`, are committed. Entries behind it count
        as pending (see `refusal`)."""
        self._committed_index = index
        self._committed_pos = pos

    def _seal(self) -> None:
        if not self._sizes:
            return
        self._sealed.append(
            Batch(
                self._first,
                self._next_index - 1,
                self.term,
                self._start_pos,
                self._next_pos,
                b"".join(self._parts),
                self._sizes,
                self._remaining if self._batched else None,
                self._chain,
            )
        )
        self._parts = []
        self._sizes = []
        self._remaining = []
        self._batched = False
        self._first = self._next_index
        self._start_pos = self._next_pos
