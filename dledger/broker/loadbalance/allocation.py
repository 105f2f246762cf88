"""Which consumer gets which queues of a topic (AllocateMessageQueueAveragely and others). Pure: every broker
computes the same result from the same members."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from dledger.remoting.bodies import MessageQueue

Strategy = Callable[[str, Sequence[MessageQueue], Sequence[str]], list[MessageQueue]]
"""(client id, sorted queues, sorted client ids) -> the queues of that client; no queues for a client that is
not in the list."""


def averagely(client_id: str, queues: Sequence[MessageQueue], clients: Sequence[str]) -> list[MessageQueue]:
    """AVG: contiguous, even blocks."""
    if client_id not in clients:
        return []
    position = clients.index(client_id)
    size, extra = divmod(len(queues), len(clients))
    start = position * size + min(position, extra)
    return list(queues[start : start + size + (position < extra)])


def by_circle(client_id: str, queues: Sequence[MessageQueue], clients: Sequence[str]) -> list[MessageQueue]:
    """AVG_BY_CIRCLE: queues are dealt out one after the other."""
    if client_id not in clients:
        return []
    return list(queues[clients.index(client_id) :: len(clients)])


STRATEGIES: Mapping[str, Strategy] = MappingProxyType({"AVG": averagely, "AVG_BY_CIRCLE": by_circle})


def for_pop(
    strategy: Strategy, client_id: str, queues: Sequence[MessageQueue], clients: Sequence[str], share: int
) -> list[MessageQueue]:
    """The queues that a client pops (QueryAssignmentProcessor.allocate4Pop). They are all queues of every
    broker (queue id -1), or, if `share` is positive, its own queues and those of the `share` clients after
    it."""
    if share <= 0 or share >= len(clients) - 1:
        return sorted({MessageQueue(queue.topic, queue.brokerName, -1) for queue in queues})
    if client_id not in clients:
        return []
    position = clients.index(client_id)
    if len(clients) > len(queues):
        return [queues[position % len(queues)]] if queues else []
    chosen = {
        queue
        for at in range(share + 1)
        for queue in strategy(clients[(position + at) % len(clients)], queues, clients)
    }
    return sorted(chosen)
