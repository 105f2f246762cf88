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
"""Told how a message ended; called once, on the loop. It must be short; what it raises is logged."""

Outcome = Response | RemotingError
"""How one attempt ended."""

SEND = int(RequestCode.SEND_MESSAGE_V2)
SEND_BATCH = int(RequestCode.SEND_BATCH_MESSAGE)
SEND_REPLY = int(RequestCode.SEND_REPLY_MESSAGE_V2)


class Lane:
    """Messages under way to one broker group."""

    def __init__(self, group: BrokerGroup) -> None:
        self.group = group
        self.searching = False
        """Whether a task looks for the leader, or waits for its connection; messages park meanwhile."""
        self.crowded = False
        """Whether the leader's connection takes no more for the moment."""
        self.parked: dict[int, PendingSend] = {}
        """Wait for that task, by serial number, not necessarily in order."""
        self.probe: PendingSend | None = None
        """The message that the search is asking a broker with."""
        self.in_flight: dict[int, PendingSend] = {}
        """By serial number; nearly in the order of their latest attempt."""
        self.closed = False
        """Whether the producer ends: nobody is asked any more."""
        self.resent = 0
        """Attempts that went out because the outcome of one before is unknown."""

    @property
    def usable(self) -> bool:
        """Whether a message would go out at once."""
        return self.group.leader is not None and not self.searching


class Target:
    """A queue to send to: its lane, and its header encoded once."""

    __slots__ = ("header", "lane", "queue")

    def __init__(self, queue: MessageQueue, lane: Lane, header: SendHeader) -> None:
        self.queue: MessageQueue = queue
        self.lane: Lane = lane
        self.header: SendHeader = header


class FirstAttempts(Protocol):
    """Who hears how first attempts end (the send kernel)."""

    def answered(self, send: PendingSend, attempt: int, outcome: Outcome) -> None:
        """An attempt ended."""


class PendingSend:
    """One message (or one batch) without its acknowledgement yet. Times are loop times in seconds.

    What differs only after a failure, or for few messages, has its default in the class: that keeps the
    making of one cheap.
    """

    code = SEND
    attempt = 0
    """Attempts that have ended."""
    tries = 0
    """Failed attempts that count against retry_times."""
    hints = 0
    unknown: bool = False
    """Whether some attempt may have been executed."""
    finished = False
    pinned = False
    """Whether the application chose the queue: no other one may take the message."""
    ordered = False
    """Whether it waits for the message before it in its queue."""
    batch: Callable[[str], bytes] | None = None
    """For a batch: encodes its body with further properties text for each message."""
    addr = ""
    """Where the latest attempt went."""
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
        """Its number in the order of sending; set, with the times, when the kernel takes it over."""
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
        """The first attempt ended."""
        self.kernel.answered(self, 0, outcome)

    def mark_unknown(self) -> None:
        """An attempt may have been executed: from now on the message says that it is a copy."""
        if self.unknown:
            return
        self.unknown = True
        if self.batch is not None:
            self.body = self.batch(RESEND_TEXT)
        else:
            self.properties += RESEND_TEXT


def by_serial(send: PendingSend) -> int:
    """Sorts messages as the application sent them."""
    return send.serial
