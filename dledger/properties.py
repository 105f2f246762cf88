"""Settings as texts: what the property files of brokers and of stand-alone nodes have in common. Pure.

A parser takes the text of one property; ValueError says what was expected.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dledger.formats.entry import MAX_ENTRY_SIZE

_COMMENT = " (a comment has a line of its own, which begins with #)"


def flag(value: str) -> bool:
    """`true` or `false`."""
    if value.lower() not in ("true", "false"):
        raise ValueError(f"{value!r}: expected true or false")
    return value.lower() == "true"


def number(low: int, high: int) -> Callable[[str], int]:
    """Parser of a whole number from `low` to `high`."""

    def parse(value: str) -> int:
        try:
            number = int(value)
        except ValueError:
            raise ValueError(f"{value!r}: expected a whole number") from None
        if not low <= number <= high:
            raise ValueError(f"{number}: expected {low} to {high}")
        return number

    return parse


def hours(value: str) -> tuple[int, ...]:
    """Hours of the day, as `04;16`."""
    parse = number(0, 23)
    return tuple(parse(part.strip()) for part in value.split(";"))


def name(value: str) -> str:
    """Of a group, a node or a broker. With what somebody wrote behind it for a comment it would be another
    one, with an empty store."""
    if not value:
        raise ValueError("empty")
    if "#" in value or any(character.isspace() for character in value):
        raise ValueError(f"{value!r}: a name has neither blanks nor '#'{_COMMENT}")
    return value


def names(value: str) -> tuple[str, ...]:
    """Names, separated by `;`."""
    return tuple(name(part) for part in (piece.strip() for piece in value.split(";")) if part)


def directory(value: str) -> str:
    """A path, which may have blanks; a comment behind it would make it another one."""
    if not value:
        raise ValueError("empty")
    if " #" in value or "\t#" in value:
        raise ValueError(f"{value!r}: ' #' in a path{_COMMENT}")
    return value


def sync_flush(value: str) -> bool:
    """flushDiskType: whether it is SYNC_FLUSH."""
    if value not in ("SYNC_FLUSH", "ASYNC_FLUSH"):
        raise ValueError(f"{value!r}: expected SYNC_FLUSH or ASYNC_FLUSH")
    return value == "SYNC_FLUSH"


segment_size = number(2 * MAX_ENTRY_SIZE, 1 << 40)
"""mapedFileSizeCommitLog: the largest batch fits one segment."""
pool_segments = number(0, 1024)
"""segmentPoolSize."""

RETENTION: dict[str, tuple[str, Callable[[str], Any]]] = {
    "fileReservedTime": ("reserved_hours", number(0, 24 * 366)),
    "deleteWhen": ("delete_hours", hours),
    "diskMaxUsedSpaceRatio": ("clean_percent", number(10, 95)),
    "diskSpaceCleanForciblyRatio": ("force_percent", number(10, 100)),  # ours; RocketMQ's is a -D property
    "diskSpaceWarningLevelRatio": ("refuse_percent", number(10, 100)),  # likewise
    "cleanFileForciblyEnable": ("clean_forcibly", flag),
    "cleanResourceInterval": ("clean_interval_ms", number(10, 3_600_000)),
}
"""Retention: property -> (field of the settings, parser)."""
