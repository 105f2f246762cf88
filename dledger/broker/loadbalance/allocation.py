"""Strategies that decide which consumer gets which queues of a topic (AllocateMessageQueueAveragely and
others). They are pure functions, so every broker computes the same result for the same members."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from dledger.remoting.bodies import MessageQueue

Strategy = Callable[[str, Sequence[MessageQueue], Sequence[str]], list[MessageQueue]]
"""A function that takes a client id, the sorted queues and the sorted client ids, and returns the queues of
this client. A client that is not in the list gets no queues."""


def averagely(client_id: str, queues: Sequence[MessageQueue], clients: Sequence[str]) -> list[MessageQueue]:
    """Strategy AVG: each client gets one contiguous block of queues. The sizes of the blocks differ by at
    most one."""
    if client_id not in clients:
        return []
    position = clients.index(client_id)
    size, extra = divmod(len(queues), len(clients))
    start = position * size + min(position, extra)
    return list(queues[start : start + size + (position < extra)])


def by_circle(client_id: str, queues: Sequence[MessageQueue], clients: Sequence[str]) -> list[MessageQueue]:
    """Strategy AVG_BY_CIRCLE: the clients get one queue each in turn, until all queues are assigned."""
    if client_id not in clients:
        return []
    return list(queues[clients.index(client_id) :: len(clients)])


STRATEGIES: Mapping[str, Strategy] = MappingProxyType({"AVG": averagely, "AVG_BY_CIRCLE": by_circle})


def for_pop(
    strategy: Strategy, client_id: str, queues: Sequence[MessageQueue], clients: Sequence[str], share: int
) -> list[MessageQueue]:
    """Return the queues that a client pops (QueryAssignmentProcessor.allocate4Pop).

    If `share` is positive and smaller than the number of other clients, they are the client's own queues and
    those of the next `share` clients in the list; with more clients than queues it is one queue. Otherwise
    every client pops all queues of every broker, which is expressed by the queue id -1.
    """
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
