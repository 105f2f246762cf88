"""Checks of producers, consumers, offsets and topics in a run with brokers. A comment above each check says
the rule in English.

The parameter `messages` is the content of the whole log, by queue, from the judge's own replay. The other
parameters are what clients observed. All checks raise `InvariantViolated`. A send ends in one of three ways.
*Acknowledged*: the message is exactly where the answer said. *Refused*: it is nowhere. *Unknown*, for all
other outcomes: it may be in the log. In no case is it there twice, however often our producer sent it again.
The only exception is that retention had removed the first copy.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from dledger.chaos.invariants import InvariantViolated
from dledger.chaos.scenarios.broker_history import (
    Commit,
    Position,
    Receipt,
    Send,
    Stood,
    TopicChange,
    Turn,
)
from dledger.chaos.scenarios.broker_replay import HALF, SCHEDULE, UNREAD, Stored
from dledger.chaos.scenarios.deletion_history import BRIEF
from dledger.chaos.scenarios.history import ACKNOWLEDGED, REFUSED
from dledger.chaos.scenarios.oracle import Queue
from dledger.formats.message_ids import decode_message_id
from dledger.remoting.codes import ResponseCode

DELAYS_MS = (1_000, 5_000, 10_000)
"""The delays of the first delay levels, in milliseconds. Producers use these levels."""
Messages = Mapping[Queue, Sequence[Stored]]


@dataclass
class BrokerVerdict:
    """Counts of what the judge saw in one history."""

    acknowledged: int = 0
    halves: int = 0
    """Acknowledged messages that are half messages."""
    refused: int = 0
    unknown: int = 0
    recovered: int = 0
    """Messages that are in the log although their producer did not learn the outcome."""
    resent: int = 0
    """Messages whose copy in the log comes from a repeated attempt, because the first attempt was not stored.
    """
    stored_again: int = 0
    """Further copies of messages whose clients send again without our mark."""
    batches: int = 0
    received: int = 0
    repeated: int = 0
    """Messages that a group received another time."""
    committed: int = 0
    """Consumer offsets whose commit was acknowledged."""
    topic_changes: int = 0
    turns: int = 0
    """Calls of the listeners of orderly consumers."""
    moved: int = 0
    """How often a queue moved from one orderly consumer to another."""
    delivered: int = 0
    """Delayed messages that were delivered."""
    popped: int = 0
    revived: int = 0
    """Popped messages that were delivered again after their invisible time."""


# Producers


def judge_sends(
    sends: Sequence[Send],
    messages: Messages,
    verdict: BrokerVerdict,
    begun: int = 0,
    repeatable: Container[bytes] = (),
) -> None:
    """Compare all answers to producers with the log. `begun` is the latest position at which the log of any
    broker begins at the end of the run. `repeatable` are bodies that may be stored more than once: their
    clients send again without our mark. Such further copies are counted."""
    places: dict[bytes, list[tuple[Queue, int]]] = {}
    for queue, stored in messages.items():
        for offset, message in enumerate(stored):
            again = message.delivered or message.copied or message.ended or message.rolled
            if not again and not message.recalls:
                places.setdefault(message.value, []).append((queue, offset))
    sent: dict[bytes, int] = {}
    for send in sends:
        for number, value in enumerate(send.values):
            sent[value] = begun if send.begun < 0 else send.begun
            _judge_place(send, number, places.get(value, []), messages, verdict)
        if send.batch:
            verdict.batches += 1
            _judge_batch(send, places, messages)
    for value, found in places.items():
        # Every message in a queue was sent by a producer.
        if value not in sent:
            raise InvariantViolated(f"unexpected: {name_of(value)} at {found} was never sent")
        # However often a message was sent, it is stored once. An exception are copies that the retention of
        # some broker had removed before the send ended.
        known = [messages[queue][offset].position >= sent[value] for queue, offset in found]
        if value in repeatable:
            verdict.stored_again += max(sum(known) - 1, 0)
        elif sum(known) > 1:
            repeated = [messages[queue][offset].resent for queue, offset in found]
            raise InvariantViolated(f"duplicated: {name_of(value)} is at {found}, as sent again: {repeated}")
        verdict.resent += messages[found[0][0]][found[0][1]].resent
    _judge_order(sends)


def _judge_place(
    send: Send, number: int, found: list[tuple[Queue, int]], messages: Messages, verdict: BrokerVerdict
) -> None:
    name = name_of(send.values[number])
    if send.outcome == ACKNOWLEDGED:
        verdict.acknowledged += 1
        verdict.halves += send.topic == HALF
        place = ((send.topic, send.queue), send.offset + number)
        # An acknowledged message is in the log, exactly at the queue offset in the answer.
        if not found:
            raise InvariantViolated(f"lost: {name}, acknowledged at {place}")
        if place not in found:
            raise InvariantViolated(f"moved: {name}, acknowledged at {place}, is at {found}")
        # The message id in the answer says at which position of the log the message is.
        position = messages[place[0]][place[1]].position
        told = decode_message_id(send.ids[number]).physical_offset if number < len(send.ids) else -1
        if told != position:
            raise InvariantViolated(f"the message id of {name} says {told}, the log has it at {position}")
    elif send.outcome == REFUSED:
        verdict.refused += 1
        # A message whose answer said "certainly not stored" is nowhere.
        if found:
            raise InvariantViolated(f"{name} was refused ({send.text}), but it is at {found}")
    else:
        verdict.unknown += 1
        verdict.recovered += bool(found)


def _judge_batch(send: Send, places: Mapping[bytes, list[tuple[Queue, int]]], messages: Messages) -> None:
    # A batch is in one queue as a whole, or not at all. Its messages follow one another in the queue and in
    # the log.
    first = sorted(places.get(send.values[0], []))
    for number, value in enumerate(send.values):
        found = sorted(places.get(value, []))
        wanted = [(queue, offset + number) for queue, offset in first]
        if found != wanted:
            raise InvariantViolated(
                f"the batch from {name_of(send.values[0])} on is at {first}, its message {number} at {found}"
            )
        for (queue, begin), (_, offset) in zip(first, found, strict=True):
            indexes = messages[queue][begin].entry, messages[queue][offset].entry
            if indexes[1] != indexes[0] + number:
                raise InvariantViolated(
                    f"the batch from {name_of(send.values[0])} on is not in one piece in the log: {indexes}"
                )


def _judge_order(sends: Sequence[Send]) -> None:
    # A queue keeps the order of acknowledgements: a send that began after another was acknowledged has a
    # higher offset.
    by_queue: dict[Queue, list[Send]] = {}
    for send in sends:
        if send.outcome == ACKNOWLEDGED:
            by_queue.setdefault((send.topic, send.queue), []).append(send)
    for queue, group in by_queue.items():
        done = sorted(group, key=lambda send: send.end)
        highest: Send | None = None
        place = 0
        for send in sorted(group, key=lambda one: one.begin):
            while place < len(done) and done[place].end < send.begin:
                if highest is None or done[place].offset > highest.offset:
                    highest = done[place]
                place += 1
            if highest is not None and send.offset <= highest.offset:
                raise InvariantViolated(
                    f"{name_of(send.values[0])} is at {send.offset} of {queue}, but began after"
                    f" {name_of(highest.values[0])} was acknowledged at {highest.offset}"
                )


# Consumers


def judge_receipts(
    receipts: Sequence[Receipt], messages: Messages, strict: Iterable[str], verdict: BrokerVerdict
) -> None:
    """Check the messages that consumers received. `strict` names groups in which a consumer keeps its queues
    until its program ends."""
    reached: dict[tuple[str, Queue], int] = {}
    runs: dict[tuple[str, int, Queue], int] = {}
    strict = tuple(strict)
    for receipt in receipts:
        verdict.received += 1
        stored = messages.get(receipt.queue, ())
        what = (
            f"{receipt.consumer} was handed {name_of(receipt.value)} as {receipt.offset} of {receipt.queue}"
        )
        # A message that a consumer received is in the log in the end, at the same queue offset.
        if receipt.offset >= len(stored):
            raise InvariantViolated(f"{what}, which has {len(stored)} messages")
        wanted = stored[receipt.offset]
        handed = (receipt.value, receipt.position, receipt.store_ms)
        if handed != (wanted.value, wanted.position, wanted.store_ms):
            raise InvariantViolated(f"{what}, the log has {wanted} there: {receipt}")
        # A group skips nothing: before it receives a message, it has received all earlier messages of the
        # queue, except those that retention had removed.
        key = (receipt.group, receipt.queue)
        behind = reached.get(key, 0)
        _check_skipped(what, stored[behind : receipt.offset], receipt.begun)
        verdict.repeated += receipt.offset < behind
        reached[key] = max(behind, receipt.offset + 1)
        # A consumer that keeps its queues receives each message once, and in order.
        run = (receipt.consumer, receipt.life, receipt.queue)
        if receipt.group in strict and receipt.offset <= runs.get(run, -1):
            raise InvariantViolated(f"{what} after {runs[run]} in the same life")
        runs[run] = receipt.offset


def judge_stood(stood: Sequence[Stood]) -> None:
    """Check the answers to pulls that came over another connection. Such an answer must tell the consumer to
    continue at the offset of its pull."""
    for one in stood:
        # A broker that does not have the pull itself only knows where the pull began.
        if (one.code, one.next_offset) != (ResponseCode.PULL_NOT_FOUND, one.offset):
            raise InvariantViolated(
                f"a pull of {one.queue} at {one.offset} was answered over another connection:"
                f" code {one.code}, go on at {one.next_offset}"
            )


def judge_completeness(
    reached: Mapping[str, Mapping[Queue, int]], groups: Iterable[str], messages: Messages, begun: int
) -> None:
    """Check that in the end every group has received every message, except those that retention had
    removed."""
    for group in groups:
        for queue, stored in messages.items():
            if queue[0] in UNREAD or (stored and stored[0].copied):
                continue
            end = reached.get(group, {}).get(queue, 0)
            _check_skipped(f"{group} ended at {end} of {queue}", stored[end:], begun)


def _check_skipped(what: str, skipped: Sequence[Stored], begun: int) -> None:
    for message in skipped:
        if message.position >= begun:
            raise InvariantViolated(f"{what}: it was never handed {name_of(message.value)}")


def judge_turns(turns: Sequence[Turn], verdict: BrokerVerdict) -> None:
    """Check orderly consumers: calls for one queue never overlap, whichever consumer makes them."""
    by_queue: dict[tuple[str, Queue], list[Turn]] = {}
    for turn in turns:
        verdict.turns += 1
        by_queue.setdefault((turn.group, turn.queue), []).append(turn)
    for (_, queue), own in by_queue.items():
        last: Turn | None = None
        for turn in sorted(own, key=lambda one: one.begin):
            if last is not None:
                # No call begins before the earlier call has ended, whichever consumer makes it.
                if turn.begin < last.end:
                    raise InvariantViolated(
                        f"two calls at a time for {queue}: {last.consumer} (life {last.life}) has"
                        f" {last.offset} until {last.end}, {turn.consumer} (life {turn.life}) gets"
                        f" {turn.offset} at {turn.begin}"
                    )
                same = (turn.consumer, turn.life) == (last.consumer, last.life)
                verdict.moved += not same
            last = turn


# Consumer offsets


def judge_offsets(
    commits: Sequence[Commit],
    positions: Sequence[Position],
    final: Mapping[str, Mapping[Queue, int]],
    stale_ns: int,
    verdict: BrokerVerdict,
) -> None:
    """Check that an acknowledged consumer offset never goes back. `final` has the offsets in the replayed
    log.

    A leader that was cut off may answer from an old state until it steps down. So an answer need only include
    what was acknowledged more than `stale_ns` before the question.
    """
    done = sorted((commit for commit in commits if commit.outcome == ACKNOWLEDGED), key=lambda one: one.end)
    highest: dict[tuple[str, Queue], int] = {}
    place = 0
    for position in sorted(positions, key=lambda one: one.begin):
        while place < len(done) and done[place].end + stale_ns < position.begin:
            key = (done[place].group, done[place].queue)
            highest[key] = max(highest.get(key, -1), done[place].offset)
            place += 1
        wanted = highest.get((position.group, position.queue), -1)
        if position.offset < wanted:
            raise InvariantViolated(
                f"{position.group} goes on at {position.offset} of {position.queue},"
                f" but {wanted} was acknowledged"
            )
    for commit in done:
        verdict.committed += 1
        found = final.get(commit.group, {}).get(commit.queue, -1)
        if found < commit.offset:
            raise InvariantViolated(
                f"offset {commit.offset} of {commit.group} in {commit.queue} was acknowledged,"
                f" the log makes {found}"
            )


# Topics


def judge_topics(
    changes: Sequence[TopicChange], topics: Mapping[str, Mapping[str, object]], verdict: BrokerVerdict
) -> None:
    """Check that the last acknowledged change of a topic stays. A later change of unknown outcome, or an
    attempt that got no answer, may have replaced it."""
    by_topic: dict[str, list[TopicChange]] = {}
    for change in changes:
        verdict.topic_changes += change.outcome == ACKNOWLEDGED
        by_topic.setdefault(change.topic, []).append(change)
    for topic, own in by_topic.items():
        known = [place for place, change in enumerate(own) if change.outcome == ACKNOWLEDGED]
        last = known[-1] if known else 0
        possible = {
            change.queues: None for place, change in enumerate(own) if place >= last or change.unanswered
        }
        found = topics.get(topic)
        if found is None and known:
            raise InvariantViolated(f"topic {topic} is lost, it was acknowledged")
        if found is not None and (found["read"], found["write"]) not in [
            (count, count) for count in possible
        ]:
            raise InvariantViolated(f"topic {topic} has {found}, possible are {list(possible)} queues")


# Delayed messages


def judge_delays(
    messages: Messages,
    following: Mapping[int, int],
    begun: int,
    verdict: BrokerVerdict,
    *,
    clocks_are_right: bool,
) -> None:
    """Compare the messages with a delay level with those that were delivered.

    `following` maps a delay level to the queue offset of the first message that still waits. Messages before
    position `begun` may have been removed by retention. If a clock was ahead, store time stands still until
    the other clocks have reached it. The delays cannot be seen in store times then.
    """
    due: dict[bytes, list[int]] = {}
    expired: dict[bytes, int] = {}
    came: dict[bytes, list[int]] = {}
    for (topic, queue), stored in messages.items():
        if topic == SCHEDULE:
            for message in stored[: following.get(queue + 1, 0)]:
                due.setdefault(message.value, []).append(message.store_ms + DELAYS_MS[queue])
                expired[message.value] = expired.get(message.value, 0) + (message.position < begun)
        else:
            for message in stored:
                if message.delivered and not message.copied and not message.due_ms:
                    came.setdefault(message.value, []).append(message.store_ms)
    for value in {**due, **came}:
        if value.startswith(BRIEF.encode()):
            continue  # its topic may be deleted, so `judge_deletions` checks it
        waited, found = sorted(due.get(value, [])), sorted(came.get(value, []))
        verdict.delivered += len(found)
        # A message that counts as delivered was delivered once for each time it was stored, except copies
        # that retention removed before their time. No other message was delivered.
        if not len(waited) - expired.get(value, 0) <= len(found) <= len(waited):
            name = name_of(value)
            raise InvariantViolated(f"{name} was due {len(waited)} times and came {len(found)} times")
        # No message is delivered before its time.
        if len(found) == len(waited) and clocks_are_right:
            for at, stored_ms in zip(waited, found, strict=True):
                if stored_ms < at:
                    raise InvariantViolated(f"{name_of(value)} came {at - stored_ms} ms early")


# Store time


def judge_times(messages: Messages) -> None:
    """Check that store time never goes back within a queue (safety.md S15)."""
    for queue, stored in messages.items():
        for before, after in pairwise(stored):
            if after.store_ms < before.store_ms:
                raise InvariantViolated(f"store time goes back in {queue}: {before} before {after}")


def name_of(value: bytes) -> str:
    """The unique name at the beginning of a body."""
    return value[:64].partition(b"|")[0].decode(errors="replace") or "an empty value"
