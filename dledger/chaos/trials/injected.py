"""A fault as it was injected."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Injected:
    """One fault that was injected."""

    kind: str
    target: str
    nodes: tuple[str, ...]
    begin_s: float
    end_s: float | None = None
    """When it was undone; None if it needs no undoing."""
    error: str = ""
    """Why it could not be injected or undone."""
