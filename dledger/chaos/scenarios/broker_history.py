"""The observations of producers, consumers and the operator of a run with brokers: plain facts, for the
judge."""

from __future__ import annotations

from dataclasses import dataclass, field

from dledger.chaos.scenarios.deletion_history import DeletionHistory
from dledger.chaos.scenarios.history import RUNNING
from dledger.chaos.scenarios.oracle import Queue
from dledger.chaos.scenarios.ordered_history import ORDERED_GROUP, Ordered, OrderedHistory
from dledger.chaos.scenarios.pop_history import PopHistory
from dledger.chaos.scenarios.reset_judge import Reset
from dledger.chaos.scenarios.timer_history import TimerHistory
from dledger.chaos.scenarios.transaction_history import TransactionHistory
from dledger.chaos.scenarios.user_history import UserHistory


@dataclass
class Send:
    """One send: a message, or several as one batch. Times in ns of the world; `end` is -1 while the send
    runs."""

    client: str
    topic: str
    values: list[bytes]
    begin: int
    batch: bool = False
    end: int = -1
    outcome: str = RUNNING
    queue: int = -1
    offset: int = -1
    """Queue offset of the first message, as acknowledged."""
    ids: tuple[str, ...] = ()
    """Offset message ids, as acknowledged."""
    text: str = ""
    begun: int = -1
    """The latest position at which the log of a broker began when the send ended: earlier messages may be
    forgotten. -1 while the send runs."""


@dataclass
class Receipt:
    """A message that was handed to a consumer. `life`: a number for each start of the consumer's program."""

    group: str
    consumer: str
    life: int
    queue: Queue
    offset: int
    value: bytes
    position: int
    store_ms: int
    term: int = 0
    """The leader's term at that time."""
    begun: int = 0
    """The latest position at which the log of a broker began at that time: messages before it may be
    skipped."""


@dataclass
class Turn:
    """A call of the listener of a consumer that works in order. Times in ns of the world. `end` is -1 if the
    consumer was killed during the call. `term` and `last_term` are the leader's at the beginning and the end
    of the call."""

    group: str
    consumer: str
    life: int
    queue: Queue
    offset: int
    begin: int
    term: int
    end: int = -1
    last_term: int = -1


@dataclass
class Commit:
    """A consumer offset that was reported to the leader, and whether the leader acknowledged it."""

    group: str
    queue: Queue
    offset: int
    begin: int
    end: int = -1
    outcome: str = RUNNING
    term: int = 0


@dataclass
class Position:
    """The offset from which a group continues, as the leader answered to a question or to a consumer that
    begins."""

    group: str
    queue: Queue
    offset: int
    begin: int


@dataclass
class TopicChange:
    """A request to create a topic, or to give it more queues."""

    topic: str
    queues: int
    begin: int
    end: int = -1
    outcome: str = RUNNING
    text: str = ""
    unanswered: bool = False
    """Whether an attempt of this request got no answer, so that it may still arrive."""


@dataclass
class Stood:
    """A pull that was answered over another connection, because its broker was lost."""

    queue: Queue
    offset: int
    """The offset in the request."""
    code: int
    next_offset: int


@dataclass
class BrokerHistory:
    """All observations, each list in the order in which the operations began."""

    sends: list[Send] = field(default_factory=list)
    receipts: list[Receipt] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)
    commits: list[Commit] = field(default_factory=list)
    positions: list[Position] = field(default_factory=list)
    changes: list[TopicChange] = field(default_factory=list)
    deletions: DeletionHistory = field(default_factory=DeletionHistory)
    users: UserHistory = field(default_factory=UserHistory)
    stood: list[Stood] = field(default_factory=list)
    resets: list[Reset] = field(default_factory=list)
    pops: PopHistory = field(default_factory=PopHistory)
    ordered: OrderedHistory = field(default_factory=OrderedHistory)
    transactions: TransactionHistory = field(default_factory=TransactionHistory)
    timers: TimerHistory = field(default_factory=TimerHistory)
    reached: dict[str, dict[Queue, int]] = field(default_factory=dict)
    """Group -> queue -> the offset behind the furthest message that the group was handed."""

    def received(self, receipt: Receipt) -> None:
        """Note that a consumer was handed a message."""
        self.receipts.append(receipt)
        self._reach(receipt.group, receipt.queue, receipt.offset)
        for reset in self.resets:
            if reset.group == receipt.group:
                reset.handed(receipt.queue, receipt.offset)

    def popped_in_order(self, message: Ordered) -> None:
        """Note that a consumer popped a message in order."""
        self.ordered.handed.append(message)
        self._reach(ORDERED_GROUP, message.batch[0], message.offset)

    def _reach(self, group: str, queue: Queue, offset: int) -> None:
        reached = self.reached.setdefault(group, {})
        reached[queue] = max(reached.get(queue, 0), offset + 1)

    @property
    def operations(self) -> int:
        """How many operations the clients asked for: messages, commits, questions, topics. Pulls are not
        counted."""
        sent = sum(len(send.values) for send in self.sends)
        return sent + len(self.commits) + len(self.positions) + len(self.changes)
