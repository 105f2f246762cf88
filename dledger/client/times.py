"""Checks points in time that users give: whole milliseconds since 1970 (UTC)."""

from __future__ import annotations

import operator
from datetime import UTC, datetime

from dledger.client.errors import ClientError
from dledger.runtime.env import SystemWallClock

FIRST_MS = 946_684_800_000
"""The start of the year 2000. An earlier time is taken as a mistake."""
AHEAD_MS = 366 * 86_400_000
"""A time further ahead than this (366 days) is probably in another unit."""
MARKS = (0, -1, (1 << 63) - 1)
"""Numbers that are accepted in place of a time and have a special meaning: 0 is the beginning, -1 the end of
the queue (only where a reset accepts it), and the last one means "never"."""
_UNITS = (("seconds", 1000, 1), ("microseconds", 1, 1000), ("nanoseconds", 1, 1_000_000))
"""For each unit that a user may have meant: its name, and how many milliseconds it has, as a fraction
(numerator, denominator)."""


def check_time(given: int, what: str, now_ms: int | None = None) -> int:
    """Return the time if it lies between 2000 and a year from now, or is one of `MARKS`. Raises ClientError
    otherwise.

    `what` is the name of the argument, for the error text. The error text names the unit that was probably
    meant.
    """
    try:
        time_ms = operator.index(given)
    except TypeError:
        raise ClientError(
            f"{what}={given!r}: give whole milliseconds since 1970, as int(time.time() * 1000)"
        ) from None
    if isinstance(given, bool):
        raise ClientError(f"{what}={given!r}: give whole milliseconds since 1970")
    if time_ms in MARKS:
        return time_ms
    now_ms = SystemWallClock().now_ms() if now_ms is None else now_ms
    if FIRST_MS <= time_ms <= now_ms + AHEAD_MS:
        return time_ms
    raise ClientError(f"{what}={time_ms}: {meant(time_ms, now_ms)}")


def meant(time_ms: int, now_ms: int) -> str:
    """Advice about a number that is not a time: the unit that was probably meant."""
    for unit, many, parts in _UNITS:
        right = time_ms * many // parts
        if FIRST_MS <= right <= now_ms + AHEAD_MS:
            date = datetime.fromtimestamp(right // 1000, UTC)
            return (
                f"this looks like {unit}; give milliseconds since 1970: {right} ({date:%Y-%m-%d %H:%M} UTC)"
            )
    return "this is not a time between 2000 and a year from now: give milliseconds since 1970"
