"""Refusals on the peer port: counted by cause, and logged once per cause and sender until that sender has
connected properly again. Bounded."""

from __future__ import annotations

from dledger.runtime import Log

MAX_SAID = 256
"""Pairs of cause and sender that are remembered; further refusals are counted without a log line."""


class Refusals:
    """The refusals of one node. A port that several groups share has its own for connections of no group."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self.counts: dict[str, int] = {}
        """Cause -> refusals since start. Causes are constants of the code, so this is bounded."""
        self._said: dict[tuple[str, str], None] = {}

    def note(self, cause: str, who: str, reason: str) -> None:
        """Note that something from `who` (node id or host) was refused."""
        self.counts[cause] = self.counts.get(cause, 0) + 1
        if (cause, who) in self._said or len(self._said) >= MAX_SAID:
            return
        self._said[cause, who] = None
        self._log.warning("peer connection refused", cause=cause, peer=who, reason=reason)
        if len(self._said) == MAX_SAID:
            self._log.warning("too many different refusals: further ones are counted but not logged")

    def forget(self, who: str) -> None:
        """`who` is a node that connected properly, or the host of one: its later refusals are logged
        again."""
        for key in [key for key in self._said if key[1] == who]:
            del self._said[key]
