"""A message that has no acknowledgement yet, the queue it goes to, and the lane of that broker group."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, cast

from dledger.client.broker_group import BrokerGroup
from dledger.client.encoding import RESEND_TEXT, SendHeader
from dledger.client.errors import ClientError
from dledger.client.message import MessageQueue, SendResult
from dledger.remoting.codes import RequestCode
from dledger.remoting.commands import Response
from dledger.remoting.errors import RemotingError
from dledger.remoting.frames import Fields

OnSent = Callable[[SendResult | ClientError], None]
"""Called once, on the loop, with the result of a message. It must be short; what it raises is logged."""

Outcome = Response | RemotingError
"""How one attempt ended."""

SEND = int(RequestCode.SEND_MESSAGE_V2)
SEND_BATCH = int(RequestCode.SEND_BATCH_MESSAGE)
SEND_REPLY = int(RequestCode.SEND_REPLY_MESSAGE_V2)


class Lane:
    """The messages in flight to one broker group."""

    def __init__(self, group: BrokerGroup) -> None:
        self.group = group
        self.searching = False
        """Whether a task is looking for the leader or waiting for its connection. Messages are parked
        meanwhile."""
        self.crowded = False
        """Whether the leader's connection accepts no more for the moment."""
        self.parked: dict[int, PendingSend] = {}
        """Messages that wait for that task, by serial number; not necessarily in order."""
        self.probe: PendingSend | None = None
        """The message with which the search is asking a broker."""
        self.in_flight: dict[int, PendingSend] = {}
        """Messages that were sent and have no answer yet, by serial number; nearly in the order of their
        latest attempt."""
        self.closed = False
        """Whether the producer is ending. Then no broker is asked any more."""
        self.resent = 0
        """Attempts that were repeated because the outcome of an earlier one is unknown."""

    @property
    def usable(self) -> bool:
        """Whether a message would be sent at once."""
        return self.group.leader is not None and not self.searching


class Target:
    """A queue to send to: its lane, and its header encoded once."""

    __slots__ = ("header", "lane", "queue")

    def __init__(self, queue: MessageQueue, lane: Lane, header: SendHeader) -> None:
        self.queue: MessageQueue = queue
        self.lane: Lane = lane
        self.header: SendHeader = header


class FirstAttempts(Protocol):
    """Receives the results of first attempts (implemented by the send kernel)."""

    def answered(self, send: PendingSend, attempt: int, outcome: Outcome) -> None:
        """Handle the end of an attempt."""


class PendingSend:
    """One message (or one batch) without an acknowledgement yet. Times are loop times in seconds.

    Fields that change only after a failure, or for few messages, have their default in the class: that makes
    an instance cheap to create.
    """

    code = SEND
    attempt = 0
    """Number of attempts that have ended."""
    tries = 0
    """Number of failed attempts that count against retry_times."""
    hints = 0
    unknown: bool = False
    """Whether some attempt may have been executed without our knowing."""
    finished = False
    pinned = False
    """Whether the application chose the queue, so that no other queue may take the message."""
    ordered = False
    """Whether it has to wait for the previous message of its queue."""
    batch: Callable[[str], bytes] | None = None
    """For a batch: encodes its body with additional properties for each message."""
    addr = ""
    """Address that the latest attempt was sent to."""
    last_error = ""

    def __init__(
        self,
        kernel: FirstAttempts,
        target: Target,
        body: bytes,
        properties: str,
        sys_flag: int,
        flag: int,
        unique_id: str,
        on_done: OnSent,
    ) -> None:
        self.kernel = kernel
        self.target = target
        self.body: bytes = body
        self.properties: str = properties
        self.sys_flag = sys_flag
        self.flag = flag
        self.unique_id = unique_id
        self.on_done = on_done
        self.serial = 0
        """Position in the order of sending. It is set, with the times, when the kernel takes the message
        over."""
        self.sent_at: float = 0.0
        self.deadline: float = 0.0
        self.born_ms = 0

    def header(self) -> Fields:
        """The header of the next attempt."""
        raw = self.target.header.encode(
            self.properties, self.sys_flag, self.flag, self.born_ms, self.batch is not None
        )
        # remoting hands headers to msgspec's encoder, for which a piece of ready JSON is the cheapest.
        return cast(Fields, cast(object, raw))

    def answered(self, outcome: Outcome) -> None:
        """Report the result of the first attempt."""
        self.kernel.answered(self, 0, outcome)

    def mark_unknown(self) -> None:
        """Note that an attempt may have been executed: from now on the message is marked as a copy."""
        if self.unknown:
            return
        self.unknown = True
        if self.batch is not None:
            self.body = self.batch(RESEND_TEXT)
        else:
            self.properties += RESEND_TEXT


def by_serial(send: PendingSend) -> int:
    """Sort key: the order in which the application sent the messages."""
    return send.serial
