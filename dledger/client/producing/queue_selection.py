"""Chooses the queue of a message: each in turn, or by the application's function. Slow brokers can be
avoided."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dledger.client.errors import ClientError, InvalidMessage
from dledger.client.message import Message, MessageQueue, QueueSelector
from dledger.client.producing.latency import LatencyFaultTolerance
from dledger.client.producing.pending_sends import Target
from dledger.formats.message_ids import java_hash


class SelectMessageQueueByHash:
    """Chooses a queue by the hash of a text. RocketMQ's class of the same name chooses the same queue, so
    Java producers and this one agree.

    The `ordering_key` of `send` does more: it also keeps the order through failures.
    """

    def __init__(self, key: str) -> None:
        self._hash = java_hash(key)

    def __call__(self, queues: Sequence[MessageQueue], message: Message) -> MessageQueue:
        return queues[abs(self._hash) % len(queues)]


class SelectMessageQueueByMachineRoom:
    """Chooses in turn among the queues of brokers in these machine rooms. While these rooms have no queue, it
    chooses among all queues.

    A broker's name begins with its room and `@`, as for `AllocateMessageQueueByMachineRoom`:
    `shanghai@broker-a`.
    """

    def __init__(self, *rooms: str) -> None:
        if not rooms:
            raise ClientError("SelectMessageQueueByMachineRoom(): give at least one room")
        self._rooms = frozenset(rooms)
        self._turn = -1

    def __call__(self, queues: Sequence[MessageQueue], message: Message) -> MessageQueue:
        near = [queue for queue in queues if queue.broker_name.partition("@")[0] in self._rooms] or queues
        self._turn += 1
        return near[self._turn % len(near)]


def selected(select: QueueSelector, queues: Sequence[MessageQueue], message: Message) -> MessageQueue:
    """The queue that the application's function chose. Raises InvalidMessage if it is not a queue of the
    topic."""
    try:
        queue = select(queues, message)
    except Exception as error:
        raise InvalidMessage(f"the queue selector raised {error!r}; the message is not sent") from error
    if queue not in queues:
        raise InvalidMessage(
            f"the queue selector returned {queue!r}: return one of the queues that it was called with"
        )
    return queue


class TopicTargets:
    """The queues that messages of one topic go to, in turn."""

    __slots__ = ("_faults", "queues", "targets", "turn")

    def __init__(self, targets: list[Target], turn: int, faults: LatencyFaultTolerance | None) -> None:
        self.targets: list[Target] = targets
        self.turn: int = turn
        self.queues: tuple[MessageQueue, ...] = tuple(target.queue for target in targets)
        self._faults = faults

    def next_target(self, avoid: str | None = None) -> Target | None:
        """The next queue of a broker group that has a leader and is not called `avoid`; None if there is no
        such queue.

        If latencies are recorded, it is the next queue of a group that is fast enough. If no group is, it is
        a queue of one of the better groups.
        """
        faults = self._faults
        if faults is None:
            return self._next(avoid, None)
        found = self._next(avoid, faults.available)
        if found is None:
            least = faults.pick_one_at_least()
            found = self._next(avoid, lambda name: name == least) or self._next(avoid, None)
        return found

    def _next(self, avoid: str | None, wanted: Callable[[str], bool] | None) -> Target | None:
        targets = self.targets
        count = len(targets)
        turn = self.turn
        for _ in range(count):
            turn += 1
            if turn >= count:
                turn = 0
            target = targets[turn]
            lane = target.lane
            if (
                lane.group.leader is not None
                and not lane.searching
                and target.queue.broker_name != avoid
                and (wanted is None or wanted(target.queue.broker_name))
            ):
                self.turn = turn
                return target
        return None
