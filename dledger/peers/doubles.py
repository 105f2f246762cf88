"""Detects that two processes run as the same node: one with the node's store, and one with a copy of it. The
hellos of both differ only in the process that sent them.

A process that has ended never sends a hello again. So if the hellos of one node come from process A, then
from B, and then from A again, both processes run. Pure.
"""

from __future__ import annotations

from dledger.election.identity import Hello

META_KEY = "process"
"""Key in a hello for the id and start time of the process that sent it, which are different for every
process."""
TOLD_FOR_S = 60.0
"""Time, in seconds, for which the warning remains after both processes were last noticed."""


class Doubles:
    """The processes from which each peer's hellos came."""

    def __init__(self) -> None:
        self._heard: dict[str, tuple[str, str]] = {}
        """Maps a node id to two processes: the one heard before the last one, and the last one."""
        self._until: dict[str, float] = {}

    def hear(self, hello: Hello, now: float) -> bool:
        """Note a hello that came at loop time `now`. Returns True if it shows that two processes run and
        there is no warning about this node yet."""
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
        """Return the nodes for which two processes were noticed during the last `TOLD_FOR_S` seconds."""
        return sorted(node for node, until in self._until.items() if now < until)


def text(node: str) -> str:
    """Return the warning for an operator that two processes run as this node."""
    return (
        f"two processes use the id {node} and the same store: a copy of the node runs beside the "
        "original. Stop the copy, and empty its store before it joins as another member"
    )
