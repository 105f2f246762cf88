"""The last changes of a node's role, term and leader, each with its reason. A console draws them on a line of
time; the log of the node has the same changes for longer."""

from __future__ import annotations

from collections import deque
from dataclasses import asdict, dataclass

from dledger.host import Role

MAX_CHANGES = 256
"""Largest number of changes that are kept; the oldest is dropped for a new one."""


@dataclass(frozen=True)
class RoleChange:
    """One change. A field `why` that is empty says that only the known leader changed."""

    at_ms: int
    """When it happened, in ms since the epoch, by the clock of this machine."""
    role: str
    term: int
    leader: str | None
    why: str


class RoleHistory:
    """The last changes of one node since its process began, the oldest first."""

    def __init__(self) -> None:
        self._changes: deque[RoleChange] = deque(maxlen=MAX_CHANGES)

    def note(self, at_ms: int, role: Role, term: int, leader: str | None, why: str) -> None:
        """Note that role, term and leader are these from now on. Nothing is noted if they did not change."""
        before = self._changes[-1] if self._changes else None
        if before is not None and (before.role, before.term, before.leader) == (role.value, term, leader):
            return
        if before is not None and (before.role, before.term) == (role.value, term):
            why = ""
        self._changes.append(RoleChange(at_ms, role.value, term, leader, why))

    def report(self) -> list[dict[str, object]]:
        """The changes as plain values, for the status of the node."""
        return [asdict(change) for change in self._changes]
