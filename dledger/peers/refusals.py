"""Refusals on the peer port. They are counted by cause, and logged once for each cause and sender, until that
sender has connected properly again. The memory is bounded."""

from __future__ import annotations

from dledger.runtime import Log

MAX_SAID = 256
"""Largest number of pairs of cause and sender that are remembered; further refusals are counted but not
logged."""


class Refusals:
    """The refusals of one node. A port that several groups share has its own object, for connections of no
    known group."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self.counts: dict[str, int] = {}
        """Maps a cause to the number of refusals since the start. Causes are constants of the code, so this
        map is bounded."""
        self._said: dict[tuple[str, str], None] = {}

    def note(self, cause: str, who: str, reason: str) -> None:
        """Note that a connection or frame from `who` (a node id or a host) was refused."""
        self.counts[cause] = self.counts.get(cause, 0) + 1
        if (cause, who) in self._said or len(self._said) >= MAX_SAID:
            return
        self._said[cause, who] = None
        self._log.warning("peer connection refused", cause=cause, peer=who, reason=reason)
        if len(self._said) == MAX_SAID:
            self._log.warning("too many different refusals: further ones are counted but not logged")

    def forget(self, who: str) -> None:
        """Log refusals of `who` again, because it is a node that connected properly, or the host of such a
        node."""
        for key in [key for key in self._said if key[1] == who]:
            del self._said[key]
