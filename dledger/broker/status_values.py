"""Reads the values of a node's status, which are of any type, as the type that they should have."""

from __future__ import annotations


def whole(value: object) -> int:
    """A whole number; 0 for anything else."""
    return value if isinstance(value, int) else 0


def texts(value: object) -> list[str]:
    """A list of texts; an empty one for anything that is no list."""
    return [str(item) for item in value] if isinstance(value, list) else []
