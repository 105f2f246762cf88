"""Majorities."""

from __future__ import annotations

from collections.abc import Iterable


def quorum_index(watermarks: Iterable[int]) -> int:
    """Largest index that more than half of the members have reached; -1 for none."""
    ordered = sorted(watermarks, reverse=True)
    return ordered[len(ordered) // 2] if ordered else -1
