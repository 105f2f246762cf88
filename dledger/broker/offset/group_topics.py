"""The topics in which a consumer group has offsets (ConsumerOffsetManager.whichTopicByConsumer)."""

from __future__ import annotations

import asyncio

from dledger.formats.state import ReplicatedState
from dledger.runtime.cooperative import PAUSE_S

ROW_SLICE = 10_000
"""Number of a group's consumer offsets that are read before the event loop turns to other work, about 1
ms."""


async def topics_of(state: ReplicatedState, group: str) -> list[str]:
    """Return the topics in which a group has offsets, without duplicates. The event loop turns to other work
    every `ROW_SLICE` offsets."""
    rows = list(state.offsets.get(group, ()))
    topics: dict[str, None] = {}
    for start in range(0, len(rows), ROW_SLICE):
        if len(rows) > ROW_SLICE:
            await asyncio.sleep(PAUSE_S)
        for topic, _ in rows[start : start + ROW_SLICE]:
            topics[topic] = None
    if len(rows) > ROW_SLICE:
        await asyncio.sleep(PAUSE_S)
    return list(topics)
