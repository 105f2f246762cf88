"""`dledger consume`: the messages of a topic as lines, JSON lines or CSV on standard output."""

from __future__ import annotations

import base64
import csv
import io
import json
import sys
from collections.abc import Sequence

import click

from dledger.admin import AsyncAdminClient
from dledger.admin.offsets import END
from dledger.client import (
    AsyncPullConsumer,
    ClientError,
    FromWhere,
    MessageQueue,
    PullOptions,
    ReceivedMessage,
)
from dledger.commands.admin.offset import when
from dledger.commands.admin.running import Told
from dledger.commands.messages.nothing_found import SAMPLE, Ranges, none_matches, without_messages
from dledger.commands.messages.records import CSV, JSON, LINES
from dledger.commands.standard_output import OutputFailed
from dledger.commands.terminal import plain

GROUP = "dledger_consume"
"""The consumer group of a command that names none. No offsets are committed for it."""
POLL_S = 0.2
"""Longest wait for new messages, in seconds, before the command checks whether all messages are printed."""
BATCH = 500
"""Largest number of messages that are printed before the queues are checked again."""
COLUMNS = ("body", "key", "tag", "properties", "brokerName", "queueId", "queueOffset", "storeTimestamp")


async def consume(
    admin: AsyncAdminClient,
    told: Told,
    topic: str,
    format: str,
    start: str,
    group: str | None,
    tag: str,
    key: str | None,
    count: int | None,
    follow: bool,
) -> None:
    """Print all stored messages, and with `follow` also new ones as they arrive. Raises ClientError if a
    server refuses."""
    wanted = JSON if told.as_json else format
    await admin.topics.route(topic)
    options = PullOptions(batch_size=BATCH)
    async with AsyncPullConsumer(group or GROUP, admin.namesrv.addresses, options, admin.options) as consumer:
        consumer.subscribe(topic, tag)
        queues = await consumer.queues(topic)
        ends = {queue: await consumer.highest(queue) for queue in queues}
        await _begin(admin, consumer, queues, start, group is not None)
        begins = {queue: consumer.position(queue) for queue in queues}
        out = _Output(wanted)
        left = count
        while left != 0 and (follow or any(consumer.position(queue) < ends[queue] for queue in queues)):
            found = await consumer.poll(POLL_S, BATCH if left is None else min(BATCH, left))
            if not follow and group is None:
                found = [one for one in found if one.queue_offset < ends[one.queue]]
            chosen = found if key is None else [one for one in found if key in one.keys]
            out.write(chosen)
            left = None if left is None else left - len(chosen)
            if group is not None and found:
                await consumer.commit()
        out.write([])
    if not out.written and not follow:
        ranges = {queue: (min(first, ends[queue]), ends[queue]) for queue, first in begins.items()}
        await _say_why(admin, topic, ranges, start, group, tag, key)


async def _say_why(
    admin: AsyncAdminClient,
    topic: str,
    ranges: Ranges,
    start: str,
    group: str | None,
    tag: str,
    key: str | None,
) -> None:
    """Say on standard error why no message was printed."""
    if any(first < end for first, end in ranges.values()):
        options = PullOptions(batch_size=SAMPLE)
        async with AsyncPullConsumer(GROUP, admin.namesrv.addresses, options, admin.options) as sampler:
            why = await none_matches(sampler, topic, ranges, tag, key)
    else:
        why = without_messages(topic, start, group)
    click.echo(f"dledger consume: {why}", err=True)


async def _begin(
    admin: AsyncAdminClient,
    consumer: AsyncPullConsumer,
    queues: Sequence[MessageQueue],
    start: str,
    of_group: bool,
) -> None:
    """Set where each queue is read from: at the group's offset; without a group, or if the group has no
    offset in that queue, at `start`."""
    timestamp, offset = when(start, admin.now_ms(), "--from")
    if offset is not None:
        raise ClientError(f"--from {start}: each queue has its own offsets: give earliest, latest or a time")
    where = {0: FromWhere.FIRST, END: FromWhere.LAST}.get(timestamp or 0, FromWhere.TIMESTAMP)
    await consumer.assign(queues, where, timestamp or 0 if where is FromWhere.TIMESTAMP else 0)
    if of_group:
        return
    for queue in queues:
        if where is FromWhere.FIRST:
            await consumer.seek_to_begin(queue)
        elif where is FromWhere.LAST:
            await consumer.seek_to_end(queue)
        else:
            await consumer.seek_to_time(queue, timestamp or 0)


class _Output:
    """Prints messages in the format that the user chose."""

    def __init__(self, format: str) -> None:
        self._format = format
        self._watched = sys.stdout.isatty()
        self._head = format == CSV
        self.written = 0
        """How many messages were printed."""

    def write(self, messages: Sequence[ReceivedMessage]) -> None:
        """Print messages and flush. So offsets are committed only for messages that were printed. Raises
        OutputFailed if the output cannot be written."""
        if not messages and not self._head:
            return
        self.written += len(messages)
        if self._format == LINES:
            data = b"".join(one.body + b"\n" for one in messages)
        elif self._format == JSON:
            lines = (json.dumps(as_json(one), ensure_ascii=False) + "\n" for one in messages)
            data = "".join(lines).encode("utf-8", "surrogatepass")
        else:
            data = self._csv(messages)
        if self._watched:
            data = plain(data.decode("utf-8", "replace")).encode()
        try:
            sys.stdout.buffer.write(data)
            sys.stdout.flush()
        except BrokenPipeError:
            raise
        except OSError as error:
            raise OutputFailed(error.strerror or str(error)) from error

    def _csv(self, messages: Sequence[ReceivedMessage]) -> bytes:
        text = io.StringIO()
        rows = csv.writer(text, lineterminator="\n")
        if self._head:
            rows.writerow(COLUMNS)
            self._head = False
        for one in messages:
            own = own_properties(one)
            rows.writerow(
                (
                    one.body.decode("utf-8", "replace"),
                    " ".join(one.keys),
                    one.tags or "",
                    json.dumps(own, ensure_ascii=False) if own else "",
                    one.queue.broker_name,
                    one.queue.queue_id,
                    one.queue_offset,
                    one.store_timestamp_ms,
                )
            )
        return text.getvalue().encode("utf-8", "replace")


def own_properties(message: ReceivedMessage) -> dict[str, str]:
    """Return the properties that a program set, without those that clients and brokers add."""
    return {
        name: value
        for name, value in message.properties.items()
        if not name.isupper() and not name.startswith("__")
    }


def as_json(message: ReceivedMessage) -> dict[str, object]:
    """Return a message in the JSON form that `produce --format json` accepts. The body is the field `body`
    if it is UTF-8, otherwise `bodyBase64`."""
    shown: dict[str, object] = {
        "topic": message.topic,
        "brokerName": message.queue.broker_name,
        "queueId": message.queue.queue_id,
        "queueOffset": message.queue_offset,
        "msgId": message.message_id,
        "tags": message.tags,
        "keys": message.keys,
        "properties": own_properties(message),
        "storeTimestamp": message.store_timestamp_ms,
    }
    try:
        shown["body"] = message.body.decode()
    except UnicodeDecodeError:
        shown["bodyBase64"] = base64.b64encode(message.body).decode()
    return shown
