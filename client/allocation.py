"""Which queues of a topic belong to which consumer of a group; every consumer computes the same."""

from __future__ import annotations

from collections.abc import Sequence

from dledger.client.message import MessageQueue


def allocate_averagely(
    client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
) -> list[MessageQueue]:
    """Contiguous, even blocks in sorted order (AllocateMessageQueueAveragely, "AVG").

    Empty for a client that is not in the list, or that comes after the last queue.
    """
    if client_id not in client_ids:
        return []
    queues = sorted(queues)
    position = sorted(client_ids).index(client_id)
    size, extra = divmod(len(queues), len(client_ids))
    start = position * size + min(position, extra)
    return queues[start : start + size + (1 if position < extra else 0)]
