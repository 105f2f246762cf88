"""What a trial leaves: the history of its clients, and the log of a node, which the judges replay.

The log is read from the files of a store (`dledger.files.offline`), by the rules of recovery. No broker is
asked, so a broker cannot hide a fault from the judges.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from dledger.chaos.invariants import InvariantViolated
from dledger.chaos.scenarios.broker_history import BrokerHistory
from dledger.chaos.scenarios.broker_replay import SCHEDULE, TIMERS, BrokerReplay
from dledger.chaos.scenarios.oracle import Delays, Timers, Transactions
from dledger.chaos.scenarios.ordered_judge import OrderedJudge
from dledger.chaos.scenarios.pop_judge import PopJudge
from dledger.chaos.scenarios.reset_judge import ResetJudge
from dledger.chaos.scenarios.timer_judge import waiting
from dledger.chaos.scenarios.transaction_judge import TransactionJudge
from dledger.chaos.trials.injected import Flight, Injected, Served
from dledger.files.offline import Found, node_directory, walk
from dledger.formats.entry import HEADER_SIZE, EntryHeader, Kind
from dledger.formats.record import CorruptRecord
from dledger.log.base import ORIGIN, LogBase
from dledger.runtime.files import OsFiles

UNREADABLE = (LookupError, ValueError, TypeError, CorruptRecord)
"""Errors of a judge that reads something which no rule of it expects."""


def read_entries(
    store: str,
    segment_size: int,
    until: int | None,
    apply: Callable[[EntryHeader, bytes], None],
    behind: LogBase = ORIGIN,
) -> LogBase:
    """Call `apply` with each entry of a store up to index `until` (None: to the end of the log), in order.
    The store may be in use.

    Returns the place behind the last entry. If it is given as `behind`, a later call goes on from there. All
    stores of a group have the same committed entries, so it may read another store. Raises StoreUnreadable,
    InstallUnfinished and OSError.
    """
    files = OsFiles()
    last = behind
    if until is not None and until <= behind.index:
        return last

    def found(piece: Found) -> None:
        nonlocal last
        for header in piece.headers:
            if until is not None and header.index > until:
                return
            at = header.pos - piece.start - piece.offset
            apply(header, bytes(piece.data[at + HEADER_SIZE : at + header.size]))
            last = LogBase(header.index, header.term, header.pos + header.size, header.chain_crc)

    begin = None if behind is ORIGIN else behind
    walk(files, node_directory(files, store), segment_size, until, found, begin)
    return last


@dataclass
class Evidence:
    """Everything that the checkers need."""

    history: BrokerHistory
    clocks_are_right: bool = True
    """Whether no fault changed a clock."""
    stale_ns: int = 0
    """How long a leader that was cut off may have answered from an old state, in ns."""
    clients: tuple[str, ...] = ()
    checked_topics: tuple[str, ...] = ()
    """Topics in which the brokers recognise messages that clients of other projects send again."""
    replay: BrokerReplay = field(default_factory=BrokerReplay)
    broken: dict[str, str] = field(default_factory=dict)
    """Maps a judge that reads the log to the rule that the log breaks."""
    planned: tuple[str, ...] = ()
    """The kinds of faults of the plan."""
    injected: Sequence[Injected] = ()
    """The faults that were injected, or were to be."""
    ends: Sequence[str] = ()
    """The processes that ended though no fault ended them, as texts."""
    flights: Sequence[Flight] = ()
    """The replayed flight recordings."""
    served: Sequence[Served] = ()
    """The beginning of each leadership that was seen."""
    first_index: int = -1
    """Index of the first entry that was read."""
    begin: int = 0
    """Index of the first entry that must be there."""
    left_out: Mapping[str, str] = field(default_factory=dict)
    """Maps the rules that are not judged to the reason."""
    replicas: tuple[int, str] = (-1, "the stores were not compared")
    """Exit code and report of the audit of all stores. 0 means: clean."""
    load: tuple[int, int] = (0, 0)
    """How many messages of the load process were acknowledged, and how many of these were lost."""
    delay: str = ""
    """What did not happen in time in the end phase; empty if everything did."""

    entries: dict[int, bytes] = field(default_factory=dict)
    """Entries of the log for whose index a client asked."""

    def __post_init__(self) -> None:
        self._asked: dict[int, None] = {}
        self.resets: ResetJudge = ResetJudge()
        self.pops: PopJudge = PopJudge(0, clocks_are_right=self.clocks_are_right)
        self.ordered: OrderedJudge = OrderedJudge(0, clocks_are_right=self.clocks_are_right)
        self.transactions: TransactionJudge = TransactionJudge()
        self.openings: dict[int, int] = {}
        """Maps a term to the index of the entry that opened it."""

    @property
    def entry_count(self) -> int:
        """How many entries of the log were read."""
        return self.replay.index + 1 - max(self.first_index, 0)

    def apply(self, header: EntryHeader, record: bytes) -> None:
        """Let every judge read one entry. A judge that finds a broken rule reads no further."""
        if self.first_index < 0:
            self.first_index = header.index
            self._asked = {call.index: None for call in self.history.log.calls}
        if header.index in self._asked:
            self.entries[header.index] = record
        if header.kind == Kind.TERM_OPENING:
            self.openings[header.term] = header.index
        judges = (
            ("log", self.replay.apply),
            ("resets", self.resets.apply),
            ("pops", self.pops.apply),
            ("pops-in-order", self.ordered.apply),
            ("transactions", self.transactions.apply),
        )
        for name, judge in judges:
            if name not in self.broken:
                try:
                    judge(header, record)
                except InvariantViolated as error:
                    self.broken[name] = str(error)
                except UNREADABLE as error:
                    self.broken[name] = f"the judge cannot follow entry {header.index}: {error!r}"


def what_waits(replay: BrokerReplay) -> str:
    """What a group still has to deliver or to end, as a text; empty if nothing."""
    delays = replay.table(Delays).rows
    late = [
        f"{end - delays.get(queue[1] + 1, 0)} delayed messages of level {queue[1] + 1}"
        for queue, end in replay.ends.items()
        if queue[0] == SCHEDULE and delays.get(queue[1] + 1, 0) != end
    ]
    timers = waiting(replay.messages.get((TIMERS, 0), ()), replay.table(Timers).rows)
    late += [f"{timers} timer messages"] if timers else []
    halves = len(replay.table(Transactions).rows)
    late += [f"{halves} transactions"] if halves else []
    return ", ".join(late)
