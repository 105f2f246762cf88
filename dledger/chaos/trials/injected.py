"""Facts of a trial that several modules use: a fault as it was injected, and a replayed flight recording."""

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
    command_s: float | None = None
    """How long the command of the user ran that injected it; None if the trial injected it itself."""
    error: str = ""
    """Why it could not be injected or undone."""


@dataclass(frozen=True)
class Served:
    """A leadership, as it was first seen to serve."""

    node: str
    term: int
    applied: int
    """Index of the last entry that the node had applied at that moment."""


@dataclass(frozen=True)
class Flight:
    """The replay of one node's flight recording."""

    node: str
    steps: int
    problems: tuple[str, ...]
    """Steps that gave another decision than the node's own, or broke an invariant, as texts."""
    missing: tuple[str, ...]
    """What the recording does not hold, as texts."""
