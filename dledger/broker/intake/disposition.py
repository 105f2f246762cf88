"""The only place that decides the kind of a message that a producer sends (SendMessageProcessor, and
RocketMQ's hooks that look at properties before a message is stored).

The kind follows only from flags, properties and topic. So a message has the same kind whether it is sent
alone or in a batch.
"""

from __future__ import annotations

import re
from enum import Enum

from dledger.broker.topic.topic_names import RETRY_PREFIX
from dledger.formats.plain_messages import SPECIAL_FLAGS, WIDE_HOSTS, may_wait
from dledger.formats.properties import (
    START_DELIVER_TIME,
    TIMER_DELAY_MS,
    TIMER_DELAY_SEC,
    TIMER_DELIVER_MS,
    TIMER_OUT_MS,
    TRAN_MSG,
)
from dledger.formats.record import TRANSACTION_MASK, TRANSACTION_PREPARED
from dledger.remoting.codes import ResponseCode
from dledger.remoting.errors import RemotingError

DELAY_LEVEL = "DELAY"
TIMERS = (TIMER_DELAY_SEC, TIMER_DELAY_MS, TIMER_DELIVER_MS, START_DELIVER_TIME)
"""Properties that contain the delivery time or the delay of a message. The last one is used by older
clients."""
_TELLING = re.compile(f"(?:^|\x02)({'|'.join((DELAY_LEVEL, TRAN_MSG, TIMER_OUT_MS, *TIMERS))})\x01([^\x02]*)")


class Disposition(Enum):
    """The kind of a message. It decides the topic in which the message is stored first."""

    ORDINARY = "ordinary"
    RETRY = "retry"
    """A message to a retry topic without a delay level. It is delivered at once."""
    DELAYED = "delayed"
    """A message with a delay level. It is delivered after the delay of this level."""
    TIMED = "timed"
    """A message that is delivered at a point in time."""
    HALF = "transactional"
    """A half message. It is delivered only after its producer has committed the transaction."""


def disposition_of(topic: str, sys_flag: int, properties: str) -> Disposition:
    """Return the kind of a message. `properties` are those that the producer sent."""
    if sys_flag & TRANSACTION_MASK:
        return Disposition.HALF
    told = dict(_TELLING.findall(properties))
    if told.get(TRAN_MSG) == "true":
        return Disposition.HALF
    retry = topic.startswith(RETRY_PREFIX)
    if told.get(DELAY_LEVEL, "0") != "0":
        return Disposition.DELAYED
    # A timer message that has waited already is delivered at once, as in RocketMQ: a consumer may resend it.
    if not retry and TIMER_OUT_MS not in told and any(name in told for name in TIMERS):
        return Disposition.TIMED
    return Disposition.RETRY if retry else Disposition.ORDINARY


def delay_level_of(properties: str) -> int:
    """Return the delay level in these properties, 1 or more. Raises RemotingError 13 MESSAGE_ILLEGAL if it is
    not a number."""
    text = dict(_TELLING.findall(properties)).get(DELAY_LEVEL, "")
    if not text.isascii() or not text.isdecimal() or len(text) > 9:
        raise RemotingError(
            ResponseCode.MESSAGE_ILLEGAL, f"{DELAY_LEVEL}: {text[:20]!r} is not a delay level"
        )
    return int(text)


def check_disposition(topic: str, sys_flag: int, properties: str) -> Disposition:
    """Return the kind of a message as `disposition_of` does, after checks. Raises RemotingError 13
    MESSAGE_ILLEGAL if properties contradict each other, and 29 INVALID_PARAMETER if the message has flags
    that no client may set."""
    if not sys_flag & SPECIAL_FLAGS and not may_wait(properties):
        return Disposition.RETRY if topic.startswith(RETRY_PREFIX) else Disposition.ORDINARY
    kind = disposition_of(topic, sys_flag, properties)
    if kind is Disposition.HALF:
        _check_half(topic, sys_flag, properties)
    if sys_flag & WIDE_HOSTS:
        raise RemotingError(ResponseCode.INVALID_PARAMETER, "sysFlag must not say that hosts are IPv6")
    return kind


def _check_half(topic: str, sys_flag: int, properties: str) -> None:
    """Raises RemotingError 13 MESSAGE_ILLEGAL if a half message would not do what its producer intends. For
    RocketMQ the property TRAN_MSG alone makes a message a half message, even without the flag. RocketMQ also
    accepts a half message with a delay, and then loses the destination of the message."""
    told = dict(_TELLING.findall(properties))
    problem = ""
    if told.get(TRAN_MSG) != "true":
        problem = f"sysFlag {sys_flag & TRANSACTION_MASK:#x} without {TRAN_MSG}=true"
    elif sys_flag & TRANSACTION_MASK not in (0, TRANSACTION_PREPARED):
        problem = f"sysFlag {sys_flag & TRANSACTION_MASK:#x} is not for producers to set"
    elif topic.startswith(RETRY_PREFIX):
        problem = "a message that is delivered again cannot be a half message"
    elif told.get(DELAY_LEVEL, "0") != "0" or any(name in told for name in TIMERS):
        problem = "a transactional message cannot be delayed"
    if problem:
        raise RemotingError(ResponseCode.MESSAGE_ILLEGAL, problem)
