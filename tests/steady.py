"""Groups of real nodes in one process: a pause of the machine must not be an election."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import replace

from dledger.node.node import Node

TIMEOUT_S = 60.0
"""Longer than any test waits."""


def steady(nodes: Iterable[Node]) -> Callable[[], None]:
    """From now on whoever leads goes on to lead: its followers wait a minute for it, and it for them.

    All nodes of a process stand still together, and wake up with their election time-outs behind them.
    Leadership is still handed over by who is asked to, or stops in good order; who kills a leader calls what
    this returns.
    """
    changed = list(nodes)
    before = [node.elector._settings for node in changed]
    for node in changed:
        elector = node.elector
        elector._settings = replace(elector._settings, timeout_min_s=TIMEOUT_S, timeout_max_s=TIMEOUT_S)
        elector._deadline += TIMEOUT_S
        elector._quorum_deadline += TIMEOUT_S

    def end() -> None:
        now = asyncio.get_running_loop().time()
        for node, settings in zip(changed, before, strict=True):
            elector = node.elector
            elector._settings = settings
            elector._deadline = min(elector._deadline, now + settings.timeout_max_s)
            elector._quorum_deadline = min(elector._quorum_deadline, now + settings.timeout_max_s)
            node.elections.schedule()

    return end
