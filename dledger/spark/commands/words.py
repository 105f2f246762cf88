"""Converters for arguments of the command line. A wrong word raises ValueError with a text for people."""

from __future__ import annotations

from datetime import UTC, datetime


def moment_ms(text: str) -> int:
    """A point in time in ISO form, UTC unless it says otherwise, as ms since the epoch."""
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a time such as 2026-11-21 or 2026-11-21T15:30:00") from None
    return int((when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp() * 1000)


def name_and_value(text: str) -> tuple[str, str]:
    """An option of the data source, written NAME=VALUE."""
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise ValueError(f"{text!r} is not NAME=VALUE")
    return name, value
