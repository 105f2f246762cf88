"""Two processes with one store: the hellos of a copy beside its original differ in the process alone.

A process that ended never speaks again. So where the hellos of one node come from process A, then from B, and
then from A again, both of them run. Pure.
"""

from __future__ import annotations

from dledger.election.identity import Hello

META_KEY = "process"
"""What a hello tells of the process that sent it: its id and start, so that no two are the same."""
TOLD_FOR_S = 60.0
"""How long it is said after both were heard last."""


class Doubles:
    """The processes that hellos came from, of each peer."""

    def __init__(self) -> None:
        self._heard: dict[str, tuple[str, str]] = {}
        """Node id -> the process that was heard before the last one, and the last one."""
        self._until: dict[str, float] = {}

    def hear(self, hello: Hello, now: float) -> bool:
        """A hello came at `now`, in seconds; whether it shows, for the first time, that two processes run."""
        process = hello.meta.get(META_KEY)
        if process is None:
            return False
        before, last = self._heard.get(hello.node, ("", ""))
        if process == last:
            return False
        self._heard[hello.node] = last, process
        if process != before:
            return False
        news = now >= self._until.get(hello.node, now)
        self._until[hello.node] = now + TOLD_FOR_S
        return news

    def told(self, now: float) -> list[str]:
        """Nodes of which two processes ran a moment ago."""
        return sorted(node for node, until in self._until.items() if now < until)


def text(node: str) -> str:
    """What an operator is told of such a node."""
    return (
        f"two processes call themselves {node} with the same store: a copy of it runs beside its original. "
        "Stop the copy, and empty its store before it joins as another member"
    )
