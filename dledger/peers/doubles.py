"""Detects two processes with one store: the hellos of a copy and of its original differ in the process alone.

A process that ended never speaks again. So if the hellos of one node come from process A, then from B, and
then from A again, both processes run. Pure.
"""

from __future__ import annotations

from dledger.election.identity import Hello

META_KEY = "process"
"""Key in a hello for the id and start time of the process that sent it, which are different for every
process."""
TOLD_FOR_S = 60.0
"""Seconds for which the warning is repeated after both processes were last heard."""


class Doubles:
    """The processes from which each peer's hellos came."""

    def __init__(self) -> None:
        self._heard: dict[str, tuple[str, str]] = {}
        """Node id -> the process heard before the last one, and the last one."""
        self._until: dict[str, float] = {}

    def hear(self, hello: Hello, now: float) -> bool:
        """Note a hello that came at `now`, in seconds. True when it shows, for the first time, that two
        processes run."""
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
        """Nodes for which two processes ran a moment ago."""
        return sorted(node for node, until in self._until.items() if now < until)


def text(node: str) -> str:
    """The warning about such a node for an operator."""
    return (
        f"two processes use the id {node} and the same store: a copy of the node runs beside the "
        "original. Stop the copy, and empty its store before it joins as another member"
    )
