"""Computes majorities of the voters."""

from __future__ import annotations

from collections.abc import Iterable


def quorum_index(watermarks: Iterable[int]) -> int:
    """Largest index that more than half of the members have reached. -1 if there is none."""
    ordered = sorted(watermarks, reverse=True)
    return ordered[len(ordered) // 2] if ordered else -1
