"""Defines which messages are plain: they need no special handling, so sends of them may take the fast path.

This is the only definition. It is used by the loop over the sends in one read of a connection
(`dledger.broker.intake.plain_sends`), by sends of batches (`dledger.broker.intake.send_processor`), and by
the compiled twins of both (`dledger._fast`), which are given these values when they are loaded. When
`dledger.broker.intake.disposition` gives a meaning to another property name, add that name to `MARKS`; no
other place has to change.
"""

from __future__ import annotations

from dledger.formats.properties import CLUSTER, MSG_REGION, POP_CK, RESEND, TRACE_ON, TRAN_MSG, UNIQ_KEY
from dledger.formats.record import BORN_HOST_V6, STORE_HOST_V6, TRANSACTION_MASK

WIDE_HOSTS = BORN_HOST_V6 | STORE_HOST_V6
SPECIAL_FLAGS = TRANSACTION_MASK | WIDE_HOSTS
"""Bits of sysFlag that no plain message has. The bits for compression are not among them, because a
compressed body is stored unchanged."""

WAITS = ("DELAY", "DELIVER", TRAN_MSG)
"""Parts of property names. The name of every property that makes a message wait (for a time, or for the end
of a transaction) contains one of them. If one occurs elsewhere, the message takes the slow path, which finds
nothing special."""
SENT_ON = (f"{CLUSTER}\x01".encode(), f"{POP_CK}\x01".encode())
"""Properties that a broker adds when it stores or delivers a message, in encoded form. So a sent message that
contains one of them was stored or delivered before."""
MARKS = (*(text.encode() for text in WAITS), *SENT_ON, RESEND.encode())
"""A message whose properties contain none of these texts is plain."""

OF_A_BROKER = (CLUSTER, MSG_REGION, TRACE_ON, POP_CK)
"""Properties that brokers add to a message. A program that sends a received message again leaves them out."""
_KEY = f"{UNIQ_KEY}\x01".encode()


def may_wait(properties: str) -> bool:
    """Whether one of `WAITS` occurs, so that the message may have to wait. Searching for whole names would
    cost ten times as much."""
    for text in WAITS:  # noqa: SIM110  # `any` makes a generator: slower
        if text in properties:
            return True
    return False


def is_plain(properties: bytes) -> bool:
    """Whether none of `MARKS` occurs in these encoded properties."""
    for mark in MARKS:  # noqa: SIM110  # `any` makes a generator: slower
        if mark in properties:
            return False
    return True


def was_sent_on(properties: bytes) -> bool:
    """Whether a broker stored or delivered this message before (`SENT_ON`)."""
    return SENT_ON[0] in properties or SENT_ON[1] in properties


def unique_key_at(properties: bytes) -> int:
    """Where the value of `UNIQ_KEY` begins in encoded properties; -1 if the message has no such property."""
    at = properties.find(_KEY)
    return at + len(_KEY) if at == 0 or (at > 0 and properties[at - 1] == 2) else -1
