"""Reads values from the status of a node. They may have any type; these functions return the type that is
needed."""

from __future__ import annotations


def whole(value: object) -> int:
    """Return the value if it is a whole number, otherwise 0."""
    return value if isinstance(value, int) else 0


def texts(value: object) -> list[str]:
    """Return the value as a list of texts; an empty list if the value is not a list."""
    return [str(item) for item in value] if isinstance(value, list) else []
