"""Reasons to refuse a send, in one list that applies to every way in which a send can arrive.

There are four ways: alone or in a batch, and each of these by the fast path (plain sends of a read, in
compiled code or in Python) or by the general path. While a check is `active`, the fast paths leave every send
to the general path, which asks all checks. So a new reason to refuse needs only a `SendCheck`, and an entry
in `send_checks` of the `feature.py` of its folder.

What a check must let through:

| what arrives                                         | is checked                                        |
|------------------------------------------------------|---------------------------------------------------|
| a message or a batch, also one that was forwarded    | yes                                               |
| a half message                                       | yes; not again when its transaction ends          |
| a message that is sent again, and is looked up       | before the search; after it unless `once` is set  |
| a retry or a dead letter that a client sends itself  | yes, unless `lets_retries` is set                 |
| a message that a consumer sends back (request 36)    | no: it is stored already, and must be delivered   |
| what the broker itself delivers: timers, delays, ... | no: it was accepted before                        |

Some conditions are not checks of this kind: room in the log, the size of a body, the permission of a topic
and the kind of a message. The fast paths test these themselves, and leave a send that would be refused to the
general path.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from dledger.broker.topic.topic_names import DLQ_PREFIX, RETRY_PREFIX


class Offered(NamedTuple):
    """What is known about a send before its messages are parsed."""

    topic: str
    group: str
    """The producer group, as the client names it."""
    version: int
    """Version of the client."""
    size: int
    """Bytes of the body of one message, or of a whole batch as it was sent."""


class SendCheck:
    """One reason to refuse a send. A subclass overrides what it needs. Every method runs on the loop, so it
    must be short."""

    once: bool = False
    """Whether `check` is skipped after a search for a first copy, because it was passed before the search."""
    lets_retries: bool = False
    """Whether sends to retry and dead letter topics are not checked."""

    @property
    def active(self) -> bool:
        """Whether it may refuse anything now. While it is active, no send takes the fast path."""
        raise NotImplementedError

    def check(self, send: Offered) -> None:
        """RemotingError if this send is refused: nothing of it is stored."""

    def check_message(self, send: Offered, body_size: int, properties: bytes) -> None:
        """RemotingError if one message of the send, alone or in a batch, is refused. `properties`: encoded as
        they will be stored."""

    def stored(self, send: Offered, messages: int) -> None:
        """The send passed all checks and is about to be stored as this many messages."""


class SendChecks:
    """All checks of one broker, in their order."""

    def __init__(self) -> None:
        self._checks: tuple[SendCheck, ...] = ()
        self._of_messages: tuple[SendCheck, ...] = ()

    def ask(self, checks: Sequence[SendCheck]) -> None:
        """Set the checks of all features. Called once, before the broker answers anything."""
        self._checks = tuple(checks)
        self._of_messages = tuple(
            check for check in checks if type(check).check_message is not SendCheck.check_message
        )

    @property
    def active(self) -> bool:
        """Whether any check is active."""
        for check in self._checks:  # noqa: SIM110  # `any` makes a generator: slower
            if check.active:
                return True
        return False

    @property
    def looks_at_messages(self) -> bool:
        """Whether any active check must see each message of a batch."""
        return any(check.active for check in self._of_messages)

    def check(self, send: Offered, again: bool = False) -> None:
        """RemotingError of the first check that refuses. `again`: the same send continues after a search."""
        for check in self._checks:
            if check.active and not (again and check.once) and not _passes(check, send):
                check.check(send)

    def check_message(self, send: Offered, body_size: int, properties: bytes, again: bool = False) -> None:
        """RemotingError of the first check that refuses one message of a send. `again`: as in `check`."""
        for check in self._of_messages:
            if check.active and not (again and check.once) and not _passes(check, send):
                check.check_message(send, body_size, properties)

    def stored(self, send: Offered, messages: int) -> None:
        """Notify the active checks that a send is about to be stored."""
        for check in self._checks:
            if check.active and not _passes(check, send):
                check.stored(send, messages)


def _passes(check: SendCheck, send: Offered) -> bool:
    return check.lets_retries and send.topic.startswith((RETRY_PREFIX, DLQ_PREFIX))
