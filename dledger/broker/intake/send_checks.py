"""Reasons to refuse what producers send, in one list: what is in it holds on every way in.

A send comes in four ways: alone or in a batch, and each of them by the fast path (plain sends of a read, by
the compiled twins or by Python) or by the way of all requests. While a check is `active`, the fast paths
leave every send to the way of all requests, which asks all checks. So a new reason to refuse is a
`SendCheck`, and a place in `send_checks` of the `feature.py` of its folder, and nothing else.

What a check must let through:

| what comes in                                        | is asked                                          |
|------------------------------------------------------|---------------------------------------------------|
| a message or a batch, also one that was forwarded    | yes                                               |
| a half message                                       | yes; not again when its transaction ends          |
| a message that is sent again, and is looked for      | before the search; after it unless `once` is set  |
| a retry or a dead letter that a client sends itself  | yes, unless `lets_retries` is set                 |
| a message that a consumer gives back (request 36)    | no: it is stored already, and must come again     |
| what the broker itself delivers: timers, delays, ... | no: it was accepted before                        |

Room in the log, the size of a body, the permission of a topic and the kind of a message are no checks of
this kind: the fast paths know them, and leave what would be refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from dledger.broker.topic.topic_names import DLQ_PREFIX, RETRY_PREFIX


class Offered(NamedTuple):
    """What is known of a send before it is looked at closely."""

    topic: str
    group: str
    """Of the producer, as it says."""
    version: int
    """Of the client."""
    size: int
    """Bytes of the body: of one message, or of a whole batch as it was sent."""


class SendCheck:
    """One reason to refuse. A subclass overrides what it needs; every method is short, and on the loop."""

    once: bool = False
    """Whether a send that went by before a search for its first copy is not asked again after it."""
    lets_retries: bool = False
    """Whether sends to topics of retries and dead letters are not asked."""

    @property
    def active(self) -> bool:
        """Whether it may refuse anything now. While it may, no send takes the fast path."""
        raise NotImplementedError

    def check(self, send: Offered) -> None:
        """RemotingError if this send is refused: nothing of it is stored."""

    def check_message(self, send: Offered, body_size: int, properties: bytes) -> None:
        """RemotingError if one message of the send, alone or in a batch, is refused. `properties`: encoded as
        they will be stored."""

    def stored(self, send: Offered, messages: int) -> None:
        """It was not refused, and becomes that many messages now."""


class SendChecks:
    """All checks of one broker, asked in their order."""

    def __init__(self) -> None:
        self._checks: tuple[SendCheck, ...] = ()
        self._of_messages: tuple[SendCheck, ...] = ()

    def ask(self, checks: Sequence[SendCheck]) -> None:
        """These are the checks of all features. Called once, before the broker answers anything."""
        self._checks = tuple(checks)
        self._of_messages = tuple(
            check for check in checks if type(check).check_message is not SendCheck.check_message
        )

    @property
    def active(self) -> bool:
        """Whether one may refuse anything now."""
        for check in self._checks:  # noqa: SIM110  # `any` with a generator takes twice as long
            if check.active:
                return True
        return False

    @property
    def looks_at_messages(self) -> bool:
        """Whether one wants to see each message of a batch now."""
        return any(check.active for check in self._of_messages)

    def check(self, send: Offered, again: bool = False) -> None:
        """RemotingError of the first that refuses. `again`: the same send goes on after a search."""
        for check in self._checks:
            if check.active and not (again and check.once) and not _passes(check, send):
                check.check(send)

    def check_message(self, send: Offered, body_size: int, properties: bytes, again: bool = False) -> None:
        """RemotingError of the first that refuses one message of a send. `again`: as in `check`."""
        for check in self._of_messages:
            if check.active and not (again and check.once) and not _passes(check, send):
                check.check_message(send, body_size, properties)

    def stored(self, send: Offered, messages: int) -> None:
        """Tell those that count."""
        for check in self._checks:
            if check.active and not _passes(check, send):
                check.stored(send, messages)


def _passes(check: SendCheck, send: Offered) -> bool:
    return check.lets_retries and send.topic.startswith((RETRY_PREFIX, DLQ_PREFIX))
