"""What a running program reads again when it is asked to (SIGHUP): certificates, log files."""

from __future__ import annotations

from collections.abc import Callable


class Reloads:
    """Calls by name. Each returns an empty text, or why it could not: then all stays as it was."""

    def __init__(self) -> None:
        self._calls: dict[str, Callable[[], str]] = {}

    def add(self, name: str, call: Callable[[], str]) -> None:
        """Another call of the same name takes its place."""
        self._calls[name] = call

    def run(self) -> str:
        """Do all of them; one line that says what became of each."""
        done = [f"{name}: {call() or 'done'}" for name, call in self._calls.items()]
        return "; ".join(done) or "there is nothing to read again"
