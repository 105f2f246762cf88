"""A message that has no acknowledgement yet, the queue it goes to, and the *lane*: everything in flight to
one broker group."""

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
    """The messages that have no acknowledgement yet and go to one broker group."""

    def __init__(self, group: BrokerGroup) -> None:
        self.group = group
        self.searching = False
        """Whether a task is looking for the leader, or waiting until the leader's connection has room. During
        this time messages are parked."""
        self.crowded = False
        """Whether the leader's connection accepts no more messages at the moment."""
        self.parked: dict[int, PendingSend] = {}
        """Maps a serial number to a message that waits until the leader is found or has room (`searching`).
        The dict is not necessarily in order."""
        self.probe: PendingSend | None = None
        """The message that the search for the leader has sent to a broker, as a test whether it is the
        leader."""
        self.in_flight: dict[int, PendingSend] = {}
        """Maps a serial number to a message that was sent and has no answer yet. The dict is nearly in the
        order of the messages' latest attempts."""
        self.closed = False
        """Whether the producer is ending. Then no broker is asked any more."""
        self.resent = 0
        """How many attempts were repeated because the outcome of an earlier one was unknown."""

    @property
    def usable(self) -> bool:
        """Whether a message to this broker group would be sent at once."""
        return self.group.leader is not None and not self.searching


class Target:
    """A queue to send to, with the lane of its broker group and its encoded header."""

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

    Fields that change only after a failure, or for few messages, have their default in the class, because
    that makes an instance cheap to create.
    """

    code = SEND
    attempt = 0
    """Number of attempts that have ended."""
    tries = 0
    """Number of failed attempts that count against retry_times."""
    hints = 0
    unknown: bool = False
    """Whether an attempt may have been carried out although its outcome is not known."""
    finished = False
    pinned = False
    """Whether the application chose the queue, so that no other queue may take the message."""
    ordered = False
    """Whether the message has to wait until the previous message of its queue has ended."""
    batch: Callable[[str], bytes] | None = None
    """Only for a batch: a function that encodes its body with additional properties for each message."""
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
        """Number of the message in the order of sending. The kernel sets it, together with the times, when it
        takes the message over."""
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
        """Note that an attempt may have been carried out. From now on the message is marked as a copy."""
        if self.unknown:
            return
        self.unknown = True
        if self.batch is not None:
            self.body = self.batch(RESEND_TEXT)
        else:
            self.properties += RESEND_TEXT


def by_serial(send: PendingSend) -> int:
    """Sort key that gives the order in which the application sent the messages."""
    return send.serial
