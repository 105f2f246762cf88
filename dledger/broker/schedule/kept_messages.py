"""Waiting messages that retention must not remove.

A message that waits for its delay level or its own delivery time was acknowledged. So it must be delivered,
however old its segment is, and however full the disk is. Each replica decides by the entries that it has
applied itself. A replica that is behind keeps more than the leader, never less.
"""

from __future__ import annotations

from dledger.broker.store.message_store import MessageStore
from dledger.broker.store.reader import Reader
from dledger.broker.topic.topic_names import SCHEDULE_TOPIC
from dledger.formats.consume_queue import UNIT
from dledger.formats.entry import HEADER_SIZE
from dledger.formats.state import DELAYS, TIMERS
from dledger.formats.timers import TIMER_TOPIC


class KeptMessages:
    """Finds the oldest waiting message of one broker."""

    def __init__(self, store: MessageStore, reader: Reader) -> None:
        self._store = store
        self._reader = reader

    async def first(self) -> int | None:
        """Return the log offset of the oldest entry with a waiting message, or None if no message waits.
        Raises OSError if the ConsumeQueue cannot be read."""
        delays, timers = self._store.state[DELAYS].rows, self._store.state[TIMERS].rows
        heads = [(SCHEDULE_TOPIC, level - 1, row.next) for level, row in delays.items()]
        if timers:
            heads.append((TIMER_TOPIC, 0, min(timers)))
        found = [await self._position(*head) for head in heads]
        return min((position for position in found if position is not None), default=None)

    async def _position(self, topic: str, queue_id: int, offset: int) -> int | None:
        queue = self._store.queues.get(topic, queue_id)
        if queue is None or offset >= queue.bounds.next:
            return None
        offset = max(offset, queue.bounds.min)  # messages that are already removed cannot be kept
        units = await self._reader.units(queue, offset, 1)
        if not units:
            raise OSError(f"queue {queue_id} of {topic} has no unit {offset}")
        position: int = UNIT.unpack_from(units)[0]
        return position - HEADER_SIZE
