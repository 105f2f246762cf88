"""What brokers answer to the heartbeats of a client."""

from __future__ import annotations

MAX_WARNED = 64
"""How many different warnings are remembered. Beyond that all are forgotten, and may be logged again."""


class HeartbeatAnswers:
    """Decides when a client is refused by all brokers, and which of their warnings are new."""

    def __init__(self, patience_s: float) -> None:
        """`patience_s`: how long all brokers must refuse a client that one of them accepted before, in
        seconds."""
        self._patience_s = patience_s
        self._known = False
        """Whether any broker has accepted a heartbeat."""
        self._refused_since: float | None = None
        """Loop time of the first heartbeat that all brokers refused since one was last accepted."""
        self._warned: dict[str, None] = {}

    def accepted(self) -> None:
        """Record that a broker accepted a heartbeat."""
        self._known, self._refused_since = True, None

    def refused(self, now: float) -> bool:
        """Record that no broker accepted a heartbeat and one refused it. Return whether the client should
        end: at once if it was never accepted, otherwise after `patience_s`."""
        if self._refused_since is None:
            self._refused_since = now
        return not self._known or now - self._refused_since >= self._patience_s

    def is_new_warning(self, text: str) -> bool:
        """Whether a warning was not logged yet: brokers repeat theirs with each heartbeat."""
        if text in self._warned:
            return False
        if len(self._warned) >= MAX_WARNED:
            self._warned.clear()
        self._warned[text] = None
        return True
