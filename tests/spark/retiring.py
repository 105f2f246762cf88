"""A source whose oldest segments go meanwhile. Spark's processes import it by the name of this module."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from dledger.audit.replicas import Look, ReplicaSource


@dataclass(frozen=True)
class Retiring:
    """A source whose oldest segments are deleted right after the tasks were planned."""

    inner: ReplicaSource
    doomed: tuple[str, ...]

    @property
    def place(self) -> str:
        return self.inner.place

    def look(self) -> Look:
        """Stores are listed once, by who makes the job."""
        look = self.inner.look()
        for path in self.doomed:
            Path(path).unlink(missing_ok=True)
        return look

    def claim(self) -> Look:
        """What it knows to be committed."""
        return self.inner.claim()
