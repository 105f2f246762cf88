"""Delay levels. A message names its delay by the number of a level in a list such as `1s 5s 10s ...`; the
first level is 1 (MessageStoreConfig.messageDelayLevel)."""

from __future__ import annotations

import re

from dledger.formats.state import MAX_LEVELS

DEFAULT_LEVELS = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
MAX_DELAY_MS = 366 * 24 * 3600 * 1000
_UNITS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_LEVEL = re.compile(r"(\d{1,9})([smhd])")


def parse_levels(text: str) -> tuple[int, ...]:
    """Return the delay of each level in milliseconds. Raises ValueError, whose text says what is wrong."""
    levels = []
    for item in text.split():
        match = _LEVEL.fullmatch(item)
        if match is None:
            raise ValueError(f"{item!r}: expected a number with s, m, h or d, such as 10s")
        delay = int(match[1]) * _UNITS[match[2]]
        if delay > MAX_DELAY_MS:
            raise ValueError(f"{item!r}: at most 366d")
        levels.append(delay)
    if not 0 < len(levels) <= MAX_LEVELS:
        raise ValueError(f"{len(levels)} levels: expected 1 to {MAX_LEVELS}")
    return tuple(levels)


def format_levels(levels: tuple[int, ...]) -> str:
    """Return the levels as text, each in the largest unit that gives a whole number."""
    words = []
    for delay in levels:
        unit = next(name for name in "dhms" if delay % _UNITS[name] == 0)
        words.append(f"{delay // _UNITS[unit]}{unit}")
    return " ".join(words)
