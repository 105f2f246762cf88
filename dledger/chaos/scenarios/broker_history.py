"""What the producers, consumers and the operator of a run with brokers observed. These are plain facts
without conclusions, for the judge."""

from __future__ import annotations

from dataclasses import dataclass, field

from dledger.chaos.scenarios.deletion_history import DeletionHistory
from dledger.chaos.scenarios.history import RUNNING, History
from dledger.chaos.scenarios.oracle import Queue
from dledger.chaos.scenarios.ordered_history import ORDERED_GROUP, Ordered, OrderedHistory
from dledger.chaos.scenarios.pop_history import PopHistory
from dledger.chaos.scenarios.reset_judge import Reset
from dledger.chaos.scenarios.timer_history import TimerHistory
from dledger.chaos.scenarios.transaction_history import TransactionHistory
from dledger.chaos.scenarios.user_history import UserHistory


@dataclass
class Send:
    """One send of one message, or of several messages as one batch. Times are world time in ns; `end` is -1
    while the send runs."""

    client: str
    topic: str
    values: list[bytes]
    begin: int
    batch: bool = False
    end: int = -1
    outcome: str = RUNNING
    queue: int = -1
    offset: int = -1
    """Queue offset of the first message, from the acknowledgement."""
    ids: tuple[str, ...] = ()
    """Offset message ids, from the acknowledgement."""
    text: str = ""
    begun: int = -1
    """The latest position at which the log of any broker began when the send ended. Messages before it may
    have been removed. -1 while the send runs."""


@dataclass
class Receipt:
    """A message that a consumer program received. `life` is a number for each start of the program."""

    group: str
    consumer: str
    life: int
    queue: Queue
    offset: int
    value: bytes
    position: int
    store_ms: int
    term: int = 0
    """The leader's term when the message was received."""
    begun: int = 0
    """The latest position at which the log of any broker began when the message was received. The group may
    skip messages before it."""
    at: int = -1
    """When the message was received, as world time in ns."""


@dataclass
class Turn:
    """One call of the listener of an orderly consumer.

    Times are world time in ns. `end` is -1 if the consumer was killed during the call. `term` is the leader's
    term when the call began, and `last_term` its term when the call ended.
    """

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
    """One commit of a consumer offset, with its outcome."""

    group: str
    queue: Queue
    offset: int
    begin: int
    end: int = -1
    outcome: str = RUNNING
    term: int = 0


@dataclass
class Position:
    """The consumer offset at which a group continues, from an answer of the leader."""

    group: str
    queue: Queue
    offset: int
    begin: int
    end: int = -1


@dataclass
class QueueEnd:
    """The offset of the next message of a queue, from an answer of the leader. Times are world time in ns."""

    client: str
    queue: Queue
    offset: int
    begin: int
    end: int


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
    """Whether an attempt of this request got no answer, so that the attempt may still be executed."""


@dataclass
class Stood:
    """The answer that a pull got over another connection, because the broker at which it waited was lost."""

    queue: Queue
    offset: int
    """The queue offset in the pull request."""
    code: int
    next_offset: int


@dataclass
class BrokerHistory:
    """All observations of one run. Each list is in the order in which the operations began."""

    sends: list[Send] = field(default_factory=list)
    receipts: list[Receipt] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)
    commits: list[Commit] = field(default_factory=list)
    positions: list[Position] = field(default_factory=list)
    ends: list[QueueEnd] = field(default_factory=list)
    changes: list[TopicChange] = field(default_factory=list)
    deletions: DeletionHistory = field(default_factory=DeletionHistory)
    users: UserHistory = field(default_factory=UserHistory)
    stood: list[Stood] = field(default_factory=list)
    resets: list[Reset] = field(default_factory=list)
    pops: PopHistory = field(default_factory=PopHistory)
    ordered: OrderedHistory = field(default_factory=OrderedHistory)
    transactions: TransactionHistory = field(default_factory=TransactionHistory)
    timers: TimerHistory = field(default_factory=TimerHistory)
    log: History = field(default_factory=History)
    """Reads of the log itself, without the brokers."""
    reached: dict[str, dict[Queue, int]] = field(default_factory=dict)
    """Maps a group, and then a queue, to the offset after the furthest message that the group has received.
    """

    def received(self, receipt: Receipt) -> None:
        """Note that a consumer received a message."""
        self.receipts.append(receipt)
        self._reach(receipt.group, receipt.queue, receipt.offset)
        for reset in self.resets:
            if reset.group == receipt.group:
                reset.handed(receipt.queue, receipt.offset)

    def popped_in_order(self, message: Ordered) -> None:
        """Note that a consumer received a message that it popped in order."""
        self.ordered.handed.append(message)
        self._reach(ORDERED_GROUP, message.batch[0], message.offset)

    def _reach(self, group: str, queue: Queue, offset: int) -> None:
        reached = self.reached.setdefault(group, {})
        reached[queue] = max(reached.get(queue, 0), offset + 1)

    @property
    def operations(self) -> int:
        """How many operations the clients made: messages sent, commits, requests for an offset, and changes
        of topics. Pulls are not counted."""
        sent = sum(len(send.values) for send in self.sends)
        return sent + len(self.commits) + len(self.positions) + len(self.changes)
