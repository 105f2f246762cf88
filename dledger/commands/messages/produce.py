"""`dledger produce`: each record of an input becomes a message.

Many messages are in flight at once. The result is the number of records, from the first one on, that are
acknowledged without a gap. If the command was interrupted, a new run with `--skip` and this number
continues it.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections import deque
from dataclasses import dataclass
from typing import Any

from dledger.admin import AsyncAdminClient
from dledger.client import AsyncProducer, ClientError, InvalidMessage, Message, ProducerOptions, SendResult
from dledger.client.encoding import DEFAULT_TOPIC
from dledger.commands.admin.running import Ended, NotDone, Told
from dledger.commands.messages.input import Input
from dledger.commands.messages.records import BadRecord, Layout, Reader, Record, Splitter, format_of
from dledger.runtime.signals import INTERRUPTED, TERMINATED, on_interruption, on_termination

GROUP = "dledger_produce"
IN_FLIGHT = 1024
"""Largest number of messages that are sent and not yet acknowledged."""
PROGRESS_S = 0.5
"""How often the progress line changes on a terminal, in seconds."""


@dataclass
class _Sent:
    """A sent record. It is kept until all earlier records are acknowledged."""

    record: Record
    acknowledged: bool = False


async def produce(
    admin: AsyncAdminClient,
    told: Told,
    topic: str,
    file: str,
    format: str | None,
    key: tuple[str, ...],
    tag: str | None,
    ordering_key: str | None,
    count: int | None,
    skip: int,
    check: bool,
    field: tuple[tuple[str, str], ...],
    key_separator: str,
    delimiter: str | None,
    ignore_other: bool,
    skip_empty: bool,
) -> None:
    """Send the records, and print how many are acknowledged. Raises NotDone if a record could not be sent."""
    layout = Layout(
        format or format_of(file),
        dict(field),
        key_separator,
        delimiter or ("\t" if file.endswith(".tsv") else ","),
        ignore_other,
        skip_empty,
    )
    if topic != DEFAULT_TOPIC:
        await admin.topics.route(topic)  # a wrong name is not to make a topic
    try:
        source = Input(file)
    except OSError as error:
        raise ClientError(f"{file}: {error.strerror}") from error
    options = ProducerOptions(max_pending=IN_FLIGHT)
    loop = asyncio.get_running_loop()
    began = loop.time()
    with source:
        async with AsyncProducer(GROUP, admin.namesrv.addresses, options, client=admin.options) as producer:
            await producer.prepare(topic)
            work = _Producing(producer, topic, _Defaults(key, tag, ordering_key), skip, count, check)
            ended_by = await _interruptible(work, source, layout)
    _report(told, work, source.name, loop.time() - began, ended_by)


@dataclass(frozen=True)
class _Defaults:
    """Values for the parts of a message that its record does not give."""

    keys: tuple[str, ...]
    tag: str | None
    ordering_key: str | None


class _Producing:
    """One run of `dledger produce`: it sends the records and counts the acknowledgements."""

    def __init__(
        self,
        producer: AsyncProducer,
        topic: str,
        defaults: _Defaults,
        skip: int,
        count: int | None,
        check: bool,
    ) -> None:
        self._producer = producer
        self._topic = topic
        self._defaults = defaults
        self.skip = skip
        self._count = count
        self.check = check
        self._in_flight: deque[_Sent] = deque()
        self._moved = asyncio.Event()
        self._shown_at = 0.0
        self._seen = 0
        self._waiting = 0
        self.sent = 0
        self.stop = False
        """Whether to stop reading records."""
        self.acknowledged = 0
        """Number of records that are acknowledged without a gap, not counting the records that `--skip`
        left out."""
        self.beyond = 0
        """Number of acknowledged records that lie behind the first record without an acknowledgement."""
        self.failure = ""
        """Text of the first error, with the line number of its record."""

    async def run(self, source: Input, layout: Layout) -> None:
        """Read records and send them until the input ends, the wanted number is sent, or a record fails.
        Then wait for the messages in flight."""
        splitter, reader = Splitter(), Reader(layout)
        try:
            async for data in source.chunks():
                for number, line in splitter.feed(data):
                    await self._take(reader, number, line)
                    if self._over:
                        break
                if self._over:
                    break
            if not self._over:
                for number, line in splitter.end():
                    await self._take(reader, number, line)
                reader.end()
                if self._seen < self.skip:
                    text = f"there are only {self._seen} records, and --skip {self.skip} skips more than that"
                    self._failed(f"{source.name}: {text}")
        except BadRecord as error:
            self._failed(f"{source.name}, line {error.line}: {error}")
        except OSError as error:
            self._failed(f"{source.name}: {error.strerror}")

    async def settle(self) -> None:
        """Wait until every sent message has its result; the producer's time-outs limit the wait."""
        while self._waiting:
            self._moved.clear()
            await self._moved.wait()
        self.beyond = sum(one.acknowledged for one in self._in_flight)
        self._show(last=True)

    @property
    def _over(self) -> bool:
        return self.stop or bool(self.failure) or (self._count is not None and self.sent >= self._count)

    async def _take(self, reader: Reader, number: int, line: bytes) -> None:
        record = reader.take(number, line)
        if record is None:
            return
        self._seen += 1
        if self._seen <= self.skip or self._over:
            return
        message = self._message(record)
        self.sent += 1
        if self.check:
            self.acknowledged += 1
            return
        await self._producer._room()
        sent = _Sent(record)
        self._in_flight.append(sent)
        self._waiting += 1
        try:
            self._producer.send_nowait(
                message,
                lambda result: self._done(sent, result),
                ordering_key=record.ordering_key or self._defaults.ordering_key,
            )
        except ClientError as error:
            self._done(sent, error)
        self._show()

    def _message(self, record: Record) -> Message:
        keys = list(record.keys or self._defaults.keys)
        tag = record.tag or self._defaults.tag
        properties = None if record.properties is None else dict(record.properties)
        try:
            return Message(self._topic, record.body, tag, keys or None, properties)
        except InvalidMessage as error:
            raise BadRecord(record.line, str(error)) from error

    def _done(self, sent: _Sent, result: SendResult | ClientError) -> None:
        self._waiting -= 1
        if isinstance(result, ClientError):
            self._failed(f"line {sent.record.line}: {result}")
        else:
            sent.acknowledged = True
            while self._in_flight and self._in_flight[0].acknowledged:
                self._in_flight.popleft()
                self.acknowledged += 1
        self._moved.set()

    def _failed(self, text: str) -> None:
        self.failure = self.failure or text

    def _show(self, last: bool = False) -> None:
        """Show the progress line, if standard error is a terminal."""
        if not sys.stderr.isatty():
            return
        now = asyncio.get_running_loop().time()
        if last or now - self._shown_at >= PROGRESS_S:
            self._shown_at = now
            print(
                f"\r{self.acknowledged:>12} messages", end="\n" if last else "", file=sys.stderr, flush=True
            )


async def _interruptible(work: _Producing, source: Input, layout: Layout) -> int:
    """Run `work`. The first Ctrl-C or SIGTERM ends the reading of records, and messages in flight are
    still waited for; a second signal ends this wait.

    Returns the exit code for the signal, or 0 if there was none.
    """
    code = 0
    stages: list[asyncio.Task[None]] = []

    def end(number: int) -> None:
        nonlocal code
        code, work.stop = number, True
        stages[-1].cancel()

    async with asyncio.TaskGroup() as tasks:
        stages.append(tasks.create_task(work.run(source, layout), name="produce"))
        with on_interruption(lambda: end(INTERRUPTED)), on_termination(lambda: end(TERMINATED)):
            await asyncio.wait(stages)
            stages.append(tasks.create_task(work.settle(), name="acknowledgements"))
            await asyncio.wait(stages)
    return code


def _report(told: Told, work: _Producing, name: str, seconds: float, ended_by: int) -> None:
    done, go_on = work.acknowledged, work.skip + work.acknowledged
    data: dict[str, Any] = {"sent": done, "next": go_on, "seconds": round(seconds, 3)}
    if work.check:
        data["check"] = True
    rest = f"{done} messages are acknowledged; continue with --skip {go_on}"
    if work.check:
        rest = f"{done} messages before it are good; nothing was sent"
        del data["next"]
    if work.beyond:
        rest += f" ({work.beyond} messages after that are also acknowledged and would be sent again)"
        data["sentBehind"] = work.beyond
    if ended_by:
        print(f"dledger produce: interrupted: {rest}", file=sys.stderr)
        if told.as_json:
            print(json.dumps(data))
        raise Ended(ended_by)
    if work.failure:
        text = work.failure if work.failure.startswith(name) else f"{name}, {work.failure}"
        raise NotDone(f"{text}. {rest}", data=data)
    what = "would be sent" if work.check else f"sent in {seconds:.1f} s"
    told.show(data, f"{done} messages {what}")
