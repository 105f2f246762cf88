"""Format times, time spans and rates for people."""

from __future__ import annotations

from datetime import UTC, datetime


def moment(ms: int) -> str:
    """Format a point in time (ms since the epoch) in UTC, to the second."""
    return f"{datetime.fromtimestamp(ms / 1000, UTC):%Y-%m-%d %H:%M:%S}"


def span_text(ms: float) -> str:
    """Format a time span in a suitable unit: 7 ms, 1.5 s, 3 min, 2.0 h, 4.1 d."""
    if abs(ms) < 1000:
        return f"{ms:.0f} ms"
    for unit, size, limit in (("s", 1000, 120), ("min", 60_000, 120), ("h", 3_600_000, 72)):
        if abs(ms) < limit * size:
            return f"{ms / size:.3g} {unit}"
    return f"{ms / 86_400_000:.3g} d"


def rate_text(per_second: float) -> str:
    """Format a rate in messages per second: 1,234 or 0.05."""
    return f"{per_second:,.0f}" if per_second >= 100 else f"{per_second:.3g}"
