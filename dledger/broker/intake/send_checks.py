"""Reasons to refuse a send. They are in one list, which applies to all ways in which a send can arrive.

There are four ways: a message alone or a batch, each on the fast path (compiled code, or `plain_sends`) or on
the general path. While a check is `active`, the fast paths leave every send to the general path, which calls
all checks. So to add a reason to refuse, write a `SendCheck` and add it to `send_checks` in the `feature.py`
of its folder.

Which messages are checked:

* A message or a batch that a producer sends, also one that another broker forwarded: yes.
* A half message: yes, but not a second time when its transaction ends.
* A message that is sent again and therefore looked up: before the search, and also after it unless `once` is
  set.
* A retry or a dead letter that a client sends itself: yes, unless `lets_retries` is set.
* A message that a consumer sends back (request 36 CONSUMER_SEND_MSG_BACK): no, because it is stored already
  and must be delivered.
* A message that the broker itself delivers, for example after a delay: no, because it was accepted before.

Some conditions are not in this list: room in the log, the size of a body, the permission of a topic and the
kind of a message. The fast paths test them too, and leave a send that would be refused to the general path.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from dledger.broker.topic.topic_names import DLQ_PREFIX, RETRY_PREFIX


class Offered(NamedTuple):
    """The properties of a send that are known before its messages are parsed."""

    topic: str
    group: str
    """The producer group that the client names."""
    version: int
    """Version of the client, as a number of RocketMQ's protocol."""
    size: int
    """Size of the body in bytes. For a batch it is the size of the whole batch as it was sent."""


class SendCheck:
    """One reason to refuse a send. A subclass overrides the methods that it needs. Each method runs on the
    event loop, so it must be short."""

    once: bool = False
    """Whether the check is skipped after the search for a first copy (`resends`). The send has passed the
    check before the search already."""
    lets_retries: bool = False
    """Whether the check is skipped for sends to retry topics and dead letter topics."""

    @property
    def active(self) -> bool:
        """Whether the check may refuse a send now. While it is active, no send takes the fast path."""
        raise NotImplementedError

    def check(self, send: Offered) -> None:
        """Raises RemotingError if this send is refused. Then nothing of the send is stored."""

    def check_message(self, send: Offered, body_size: int, properties: bytes) -> None:
        """Check one message of a send, alone or in a batch. Raises RemotingError if the message is refused;
        then nothing of the send is stored. `properties` are encoded as they would be stored."""

    def stored(self, send: Offered, messages: int) -> None:
        """Note that the send has passed all checks and is about to be stored as this many messages."""


class SendChecks:
    """All checks of one broker, in the order in which they are called."""

    def __init__(self) -> None:
        self._checks: tuple[SendCheck, ...] = ()
        self._of_messages: tuple[SendCheck, ...] = ()

    def ask(self, checks: Sequence[SendCheck]) -> None:
        """Set the checks of all features. Called once, before the broker answers requests."""
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
        """Whether any active check overrides `check_message`, so that each message of a batch must be
        parsed."""
        return any(check.active for check in self._of_messages)

    def check(self, send: Offered, again: bool = False) -> None:
        """Raises the RemotingError of the first check that refuses the send. `again` says that the same send
        continues after a search for a first copy."""
        for check in self._checks:
            if check.active and not (again and check.once) and not _passes(check, send):
                check.check(send)

    def check_message(self, send: Offered, body_size: int, properties: bytes, again: bool = False) -> None:
        """Raises the RemotingError of the first check that refuses this message of a send. `again` has the
        same meaning as in `check`."""
        for check in self._of_messages:
            if check.active and not (again and check.once) and not _passes(check, send):
                check.check_message(send, body_size, properties)

    def stored(self, send: Offered, messages: int) -> None:
        """Tell the active checks that a send is about to be stored."""
        for check in self._checks:
            if check.active and not _passes(check, send):
                check.stored(send, messages)


def _passes(check: SendCheck, send: Offered) -> bool:
    return check.lets_retries and send.topic.startswith((RETRY_PREFIX, DLQ_PREFIX))
