"""Functions that convert arguments of the command line to values. They raise ValueError, with a text for
people, for a wrong argument."""

from __future__ import annotations

from datetime import UTC, datetime


def moment_ms(text: str) -> int:
    """Convert a point in time in ISO form to ms since the epoch. It is in UTC unless the text names
    another zone."""
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a time such as 2026-11-21 or 2026-11-21T15:30:00") from None
    return int((when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp() * 1000)


def name_and_value(text: str) -> tuple[str, str]:
    """Split an option of the data source, written NAME=VALUE, into name and value."""
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise ValueError(f"{text!r} is not NAME=VALUE")
    return name, value
