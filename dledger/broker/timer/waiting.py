"""Computes when a timer message is due, from its properties (HookUtils.handleScheduleMessage)."""

from __future__ import annotations

import re

from dledger.broker.config import BrokerConfig
from dledger.formats.properties import (
    START_DELIVER_TIME,
    TIMER_DEL_UNIQKEY,
    TIMER_DELAY_MS,
    TIMER_DELAY_SEC,
    TIMER_DELIVER_MS,
)
from dledger.formats.timers import MAX_DUE_MS
from dledger.remoting.codes import ResponseCode
from dledger.remoting.errors import RemotingError

_LONG = re.compile(r"[+-]?[0-9]{1,19}")


def due_time(properties: dict[str, str], now_ms: int, settings: BrokerConfig) -> int | None:
    """Return the due time in ms since the epoch, rounded up to a multiple of `timerPrecisionMs`. Returns None
    if the time has passed, so that the message is delivered at once. Raises RemotingError with code 13
    MESSAGE_ILLEGAL if the time is invalid or too far ahead, and with code 1 SYSTEM_ERROR if timers are
    disabled."""
    if not settings.timer_wheel_enable:
        raise RemotingError(
            ResponseCode.SYSTEM_ERROR, "accurate timer message is not enabled, timerWheelEnable is false"
        )
    if TIMER_DEL_UNIQKEY in properties:
        raise RemotingError(
            ResponseCode.MESSAGE_ILLEGAL,
            f"{TIMER_DEL_UNIQKEY} must not be set by producers: recall the message (request code 370)",
        )
    if TIMER_DELAY_SEC in properties:
        wanted = now_ms + _number(properties, TIMER_DELAY_SEC) * 1000
    elif TIMER_DELAY_MS in properties:
        wanted = now_ms + _number(properties, TIMER_DELAY_MS)
    elif TIMER_DELIVER_MS in properties:
        wanted = _number(properties, TIMER_DELIVER_MS)
    else:
        wanted = _number(properties, START_DELIVER_TIME)
    if wanted <= now_ms:
        return None
    if wanted - now_ms > settings.timer_max_delay_s * 1000 or wanted > MAX_DUE_MS - 60_000:
        raise RemotingError(ResponseCode.MESSAGE_ILLEGAL, _too_far(settings))
    return rounded_up(wanted, settings.timer_precision_ms)


def rounded_up(time_ms: int, precision_ms: int) -> int:
    """Return a time rounded up to a multiple of the precision."""
    return -(-time_ms // precision_ms) * precision_ms


def _number(properties: dict[str, str], name: str) -> int:
    text = properties[name]
    if not _LONG.fullmatch(text):
        raise RemotingError(ResponseCode.MESSAGE_ILLEGAL, f"timer message illegal, {name} is {text[:20]!r}")
    return int(text)


def _too_far(settings: BrokerConfig) -> str:
    return (
        "timer message illegal, the delay time should not be bigger than the max delay "
        f"{settings.timer_max_delay_s * 1000}ms; or if set del msg, the delay time should be bigger than the "
        "current time"
    )
