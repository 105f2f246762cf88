"""Defines which messages are plain: they need no special handling, so sends of them may take the fast path.

This is the only definition. It is used by the loop over the sends of a read
(`dledger.broker.intake.plain_sends`), by a batch (`dledger.broker.intake.send_processor`), and by the
compiled twins of both (`dledger._fast`), which are given these values when they are loaded. When a name gets
a meaning in `dledger.broker.intake.disposition`, add it to `MARKS`; no other place has to change.
"""

from __future__ import annotations

from dledger.formats.properties import CLUSTER, MSG_REGION, POP_CK, RESEND, TRACE_ON, TRAN_MSG, UNIQ_KEY
from dledger.formats.record import BORN_HOST_V6, STORE_HOST_V6, TRANSACTION_MASK

WIDE_HOSTS = BORN_HOST_V6 | STORE_HOST_V6
SPECIAL_FLAGS = TRANSACTION_MASK | WIDE_HOSTS
"""Bits of sysFlag that no plain message has. A compressed body is stored unchanged, and is not special."""

WAITS = ("DELAY", "DELIVER", TRAN_MSG)
"""The name of every property that makes a message wait (for a time, or for the end of a transaction) contains
one of these texts. They may also occur elsewhere; then the slow path finds that nothing is special."""
SENT_ON = (f"{CLUSTER}\x01".encode(), f"{POP_CK}\x01".encode())
"""Every message that a broker stored or delivered before contains one of these texts."""
MARKS = (*(text.encode() for text in WAITS), *SENT_ON, RESEND.encode())
"""A message whose properties contain none of these texts is plain."""

OF_A_BROKER = (CLUSTER, MSG_REGION, TRACE_ON, POP_CK)
"""Properties that a broker gave to a message; a program that sends the message on leaves them out."""
_KEY = f"{UNIQ_KEY}\x01".encode()


def may_wait(properties: str) -> bool:
    """Whether one of `WAITS` occurs. Searching for whole names would cost ten times as much."""
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
    """Whether a broker stored or delivered this message before."""
    return SENT_ON[0] in properties or SENT_ON[1] in properties


def unique_key_at(properties: bytes) -> int:
    """Where the value of `UNIQ_KEY` begins in encoded properties; -1 if the message has no such property."""
    at = properties.find(_KEY)
    return at + len(_KEY) if at == 0 or (at > 0 and properties[at - 1] == 2) else -1
