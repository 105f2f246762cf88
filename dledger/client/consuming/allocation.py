"""Decides which queues of a topic belong to which consumer of a group (AllocateMessageQueueStrategy). Pure.

Each consumer of a group computes the division for itself, so all of them need the same strategy, and have to
know the same queues and consumers. A strategy gets queues and client ids sorted, as RocketMQ's clients sort
them. With these strategies a group may mix our consumers with Java's: the results are the same as Java's
(tests/client/consuming/allocations.jsonl).
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from dledger.client.errors import ClientError
from dledger.client.message import MessageQueue

MAX_VIRTUAL_NODES = 1000
"""Largest number of virtual nodes of one client on the ring of AllocateMessageQueueConsistentHash."""


class AllocateStrategy(Protocol):
    """Divides queues among consumers. A function with these parameters is a strategy, too. If it raises an
    exception, the exception is logged, and the consumer keeps its queues until the next attempt."""

    def __call__(
        self, group: str, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> Iterable[MessageQueue]:
        """Return those of `queues` that belong to `client_id`. `queues` are those of one topic; both lists
        are sorted."""


class AllocateMessageQueueAveragely:
    """Gives each consumer one block of queues; the blocks have nearly the same size. For example, 8 queues
    for 3 consumers are q0-q2, q3-q5, q6-q7. RocketMQ's name is "AVG"; it is the default."""

    name = "AVG"

    def __call__(
        self, group: str, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> list[MessageQueue]:
        """See `AllocateStrategy`. Returns an empty list for a client that is not in `client_ids`, or for
        which no queue is left."""
        if client_id not in client_ids:
            return []
        position = client_ids.index(client_id)
        size, extra = divmod(len(queues), len(client_ids))
        start = position * size + min(position, extra)
        return list(queues[start : start + size + (1 if position < extra else 0)])


class AllocateMessageQueueAveragelyByCircle:
    """Gives queues to consumers in turn: 8 queues for 3 consumers are q0 q3 q6, q1 q4 q7, q2 q5. For topics
    where one broker has more messages than another. "AVG_BY_CIRCLE"."""

    name = "AVG_BY_CIRCLE"

    def __call__(
        self, group: str, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> list[MessageQueue]:
        """See `AllocateStrategy`."""
        if client_id not in client_ids:
            return []
        return list(queues[client_ids.index(client_id) :: len(client_ids)])


class AllocateMessageQueueByConfig:
    """Gives a consumer always the same queues, whichever other consumers there are. RocketMQ's name is
    "CONFIG".

    Each consumer of the group has its own list. One of them must have the queues of the topic
    `%RETRY%<group>`, otherwise failed messages are not delivered again.
    """

    name = "CONFIG"

    def __init__(self, queues: Iterable[MessageQueue]) -> None:
        self._queues = list(queues)

    def __call__(
        self, group: str, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> list[MessageQueue]:
        """See `AllocateStrategy`."""
        return list(self._queues)


class AllocateMessageQueueByMachineRoom:
    """Divides the queues of brokers in some machine rooms evenly among the consumers. "MACHINE_ROOM".

    Brokers are named `room@broker`. Queues in all other rooms go to no consumer of the group.
    """

    name = "MACHINE_ROOM"

    def __init__(self, rooms: Iterable[str]) -> None:
        self._rooms = frozenset(rooms)

    def __call__(
        self, group: str, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> list[MessageQueue]:
        """See `AllocateStrategy`. If queues are left over, the first consumers get one more each, taken from
        the end of the list."""
        if client_id not in client_ids:
            return []
        here = [queue for queue in queues if self._is_here(queue.broker_name)]
        position = client_ids.index(client_id)
        size, extra = divmod(len(here), len(client_ids))
        own = here[position * size : (position + 1) * size]
        if position < extra:
            own.append(here[position + size * len(client_ids)])
        return own

    def _is_here(self, broker: str) -> bool:
        room, _, rest = broker.partition("@")
        rest = rest.rstrip("@")  # Java's split drops empty ends
        return bool(rest) and "@" not in rest and room in self._rooms


class AllocateMachineRoomNearby:
    """Gives queues to consumers in the machine room of their broker. Queues in rooms without a consumer are
    divided among all consumers. RocketMQ's name is "MACHINE_ROOM_NEARBY".

    `strategy` makes each division; `room_of_queue` and `room_of_client` return the room of a queue or a
    client.
    """

    def __init__(
        self,
        strategy: AllocateStrategy,
        room_of_queue: Callable[[MessageQueue], str],
        room_of_client: Callable[[str], str],
    ) -> None:
        self._strategy = strategy
        self._room_of_queue = room_of_queue
        self._room_of_client = room_of_client
        self.name: str = f"MACHINE_ROOM_NEARBY-{name_of(strategy)}"

    def __call__(
        self, group: str, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> list[MessageQueue]:
        """See `AllocateStrategy`. Raises ValueError if a queue or a client is in no room."""
        if client_id not in client_ids:
            return []
        clients: dict[str, list[str]] = {}
        for one in client_ids:
            clients.setdefault(self._room(self._room_of_client(one), one), []).append(one)
        by_room: dict[str, list[MessageQueue]] = {}
        for queue in queues:
            by_room.setdefault(self._room(self._room_of_queue(queue), queue), []).append(queue)
        here = self._room_of_client(client_id)
        own: list[MessageQueue] = []
        if here in by_room:
            own += self._strategy(group, client_id, by_room[here], clients[here])
        for room in sorted(by_room):
            if room not in clients:
                own += self._strategy(group, client_id, by_room[room], client_ids)
        return own

    @staticmethod
    def _room(room: str, of: object) -> str:
        if not room:
            raise ValueError(f"{of} has no machine room")
        return room


class AllocateMessageQueueConsistentHash:
    """Places clients and queues on a ring of MD5 values. When a consumer joins or leaves, most queues stay
    where they are. Consumers may have different numbers of queues. RocketMQ's name is "CONSISTENT_HASH"."""

    name = "CONSISTENT_HASH"

    def __init__(self, virtual_nodes: int = 10) -> None:
        if not 0 < virtual_nodes <= MAX_VIRTUAL_NODES:
            raise ClientError(f"virtual_nodes={virtual_nodes}: give 1 to {MAX_VIRTUAL_NODES}")
        self._virtual_nodes = virtual_nodes

    def __call__(
        self, group: str, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> list[MessageQueue]:
        """See `AllocateStrategy`."""
        if client_id not in client_ids:
            return []
        ring = {_hash(f"{one}-{number}"): one for one in client_ids for number in range(self._virtual_nodes)}
        places = sorted(ring)

        def owner(queue: MessageQueue) -> str:
            topic, broker, number = queue
            text = f"MessageQueue [topic={topic}, brokerName={broker}, queueId={number}]"
            return ring[places[bisect_left(places, _hash(text)) % len(places)]]

        return [queue for queue in queues if owner(queue) == client_id]


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.md5(text.encode(), usedforsecurity=False).digest()[:4])


BY_NAME: dict[str, AllocateStrategy] = {
    kind.name: kind()
    for kind in (
        AllocateMessageQueueAveragely,
        AllocateMessageQueueAveragelyByCircle,
        AllocateMessageQueueConsistentHash,
    )
}
"""The strategies without settings, by RocketMQ's name."""


def name_of(strategy: AllocateStrategy) -> str:
    """Name of a strategy, for the log."""
    return str(getattr(strategy, "name", None) or getattr(strategy, "__qualname__", type(strategy).__name__))


def strategy_of(given: AllocateStrategy | str) -> AllocateStrategy:
    """Return a strategy. `given` is the strategy itself, or RocketMQ's name of it. Raises ClientError for
    anything else."""
    if isinstance(given, str):
        found = BY_NAME.get(given.upper())
        if found is None:
            raise ClientError(f"allocate={given!r}: give one of {', '.join(BY_NAME)}, or a strategy")
        return found
    if not callable(given):
        raise ClientError(f"allocate={given!r}: give a strategy, or one of {', '.join(BY_NAME)}")
    return given


def allocate(
    strategy: AllocateStrategy,
    group: str,
    client_id: str,
    queues: Sequence[MessageQueue],
    client_ids: Sequence[str],
) -> list[MessageQueue]:
    """Return the queues of one topic that belong to this client, in order. Raises ClientError if the strategy
    raises, or returns a bad result."""
    known = sorted(queues)
    try:
        own = list(strategy(group, client_id, known, sorted(client_ids)))
    except Exception as error:
        raise ClientError(f"allocation {name_of(strategy)}: {error!r}") from error
    topics = {queue.topic for queue in known}
    wanted = {queue: None for queue in own if queue.topic in topics}  # CONFIG has queues of all topics
    strange = [queue for queue in wanted if queue not in known]
    if strange:
        raise ClientError(
            f"allocation {name_of(strategy)}: it returned {strange[0]}, which is not a "
            "readable queue of the topic"
        )
    return sorted(wanted)
