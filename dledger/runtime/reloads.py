"""Files that a running program reads again on request (SIGHUP): certificates, log files."""

from __future__ import annotations

from collections.abc import Callable


class Reloads:
    """The functions, by name. Each returns an empty text, or the reason why it failed; if it failed, it has
    changed nothing."""

    def __init__(self) -> None:
        self._calls: dict[str, Callable[[], str]] = {}

    def add(self, name: str, call: Callable[[], str]) -> None:
        """Add a function. It replaces an earlier one of the same name."""
        self._calls[name] = call

    def run(self) -> str:
        """Run all functions. Return one line with the result of each."""
        done = [f"{name}: {call() or 'done'}" for name, call in self._calls.items()]
        return "; ".join(done) or "there is nothing to reload"
