"""Check that what clients of a group of brokers saw is linearizable, with the one-pass check of `history`.

Each queue is an object of its own: a number that never falls, the offset of its last committed message. So is
the consumer offset of each group in each queue. If the history of each object is linearizable, so is the
whole (Herlihy and Wing 1990). These observations give bounds:

* A send is an append at its queue offset. A batch is one append for each of its messages.
* A message that a consumer received shows that the queue had reached its offset.
* The answer to a question for the end of a queue, or for a consumer offset, is a read point.
* An acknowledged commit of a consumer offset shows that the group had reached it.

A broker answers reads from its applied state without asking a quorum (docs/explanation/guarantees.md). So a
read need only include what was known a certain time before it began.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain

from dledger.chaos.invariants import InvariantViolated
from dledger.chaos.scenarios.broker_history import BrokerHistory
from dledger.chaos.scenarios.broker_replay import Stored
from dledger.chaos.scenarios.history import ACKNOWLEDGED, Call, judge_order
from dledger.chaos.scenarios.oracle import Queue

Object = tuple[str, Queue]
"""A queue (with an empty name), or the consumer offset of a group (with its name) in a queue."""


def judge_linear(history: BrokerHistory, messages: Mapping[Queue, Sequence[Stored]], stale_ns: int) -> int:
    """Check the observations of all clients. Returns how many were compared with an earlier one. Raises
    InvariantViolated, which names the queue.

    `messages` is the content of the whole log. `stale_ns` is how long, in ns, a leader that was cut off may
    have answered reads from an old state. It must be 0 or more.
    """
    calls: dict[Object, list[Call]] = {}
    places: dict[Object, dict[bytes, int]] = {}
    for queue, stored in messages.items():
        # The later copies of a message are made by brokers, and no send waits for them.
        places["", queue] = {
            message.value: offset
            for offset, message in enumerate(stored)
            if not (message.delivered or message.copied or message.ended or message.rolled or message.recalls)
        }
    queue_of = {value: place for place, values in places.items() for value in values}
    for place, call in chain(_appends(history, queue_of), _seen(history), _reads(history, stale_ns)):
        calls.setdefault(place, []).append(call)
    compared = 0
    for place, own in calls.items():
        try:
            compared += judge_order(own, places.get(place, {}))
        except InvariantViolated as error:
            group, (topic, number) = place
            what = f"the offset of {group} in " if group else ""
            raise InvariantViolated(f"{what}{topic}@{number}: {error}") from None
    return compared


def _appends(history: BrokerHistory, queue_of: Mapping[bytes, Object]) -> Iterator[tuple[Object, Call]]:
    for send in history.sends:
        for number, value in enumerate(send.values):
            place = queue_of.get(value)
            if place is not None:  # a message that is nowhere has no place in the order
                offset = send.offset + number if send.outcome == ACKNOWLEDGED else -1
                yield place, Call(send.client, "append", send.begin, value, offset, send.end, send.outcome)


def _seen(history: BrokerHistory) -> Iterator[tuple[Object, Call]]:
    """What was shown to a client. Only the end of such a call matters, because it may show older things."""
    for receipt in history.receipts:
        at = receipt.at
        yield ("", receipt.queue), Call(receipt.consumer, "get", at, b"", receipt.offset, at, ACKNOWLEDGED)
    for commit in history.commits:
        if commit.outcome == ACKNOWLEDGED:
            yield (
                (commit.group, commit.queue),
                Call(commit.group, "commit", commit.begin, b"", commit.offset, commit.end, ACKNOWLEDGED),
            )


def _reads(history: BrokerHistory, stale_ns: int) -> Iterator[tuple[Object, Call]]:
    for end in history.ends:
        begin = end.begin - stale_ns
        yield ("", end.queue), Call(end.client, "read", begin, b"", end.offset - 1, end.end, ACKNOWLEDGED)
    for position in history.positions:
        if position.offset > 0:  # otherwise the group has no offset, and begins at the first message
            begin = position.begin - stale_ns
            place = position.group, position.queue
            yield place, Call(position.group, "read", begin, b"", position.offset, position.end, ACKNOWLEDGED)
