"""Message trace: records in messages of a topic which client sent and which client consumed each message,
when, and with what result.

Records wait in a bounded queue, and a separate task sends them, so neither sending nor consuming waits for
them. When the queue is full, a record is dropped and counted (AsyncTraceDispatcher). The hooks that make the
records are `producing.send_trace` and `consuming.consume_trace`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Protocol, Self

from dledger.client.core import ClientCore
from dledger.client.errors import ClientError
from dledger.client.message import Message, SendResult
from dledger.client.trace_records import (
    TraceRecord,
    encode,
    keys_of,
)
from dledger.runtime.loops import next_turn

MAX_WAITING = 2048
"""At most this many records wait to be sent; further ones are dropped and counted."""
BATCH_RECORDS = 100
"""Largest number of records in one message of the trace topic."""
BATCH_CHARACTERS = 118_000
"""Limit, in characters, of the records in one message of the trace topic (maxMsgSize)."""
MAX_TRACES_UNDER_WAY = 64
"""Limit of the number of trace messages in flight. While it is reached, further records are dropped."""
MAX_KEYS_CHARACTERS = 16_000
"""Limit, in characters, of the keys of one message of the trace topic. They must fit into its properties,
which together may have 32 KiB."""
PAUSE_S = 0.05
"""Pause between two checks whether records are waiting, in seconds."""
CLOSE_S = 5.0
"""How long `close` waits for the last records to be sent, in seconds."""

Send = Callable[[Message, Callable[[SendResult | ClientError], None]], None]
"""A function that begins to send a message without waiting, and calls back with the result."""


class TraceDispatcher:
    """Queues and sends the trace records of one client. `append` may be called from any thread."""

    def __init__(self, core: ClientCore, topic: str, send: Send) -> None:
        self.dropped: int = 0
        """Number of records that were dropped because the queue was full, or lost because their message was
        not acknowledged."""
        self._core = core
        self._topic = topic
        self._send = send
        self._waiting: deque[TraceRecord] = deque()
        self._under_way = 0
        self._idle = asyncio.Event()

    def append(self, record: TraceRecord) -> bool:
        """Queue a record to be sent. Returns False if the queue is full."""
        if len(self._waiting) >= MAX_WAITING:
            self.dropped += 1
            return False
        self._waiting.append(record)
        return True

    async def run(self) -> None:
        """Send queued records until cancelled."""
        told = 0
        while True:
            await asyncio.sleep(PAUSE_S)
            await self.send_waiting()
            if self.dropped > told:
                self._core.log.warning(
                    "message traces dropped", records=self.dropped - told, in_all=self.dropped
                )
                told = self.dropped

    async def send_waiting(self) -> None:
        """Send all queued records, one message per traced topic or more. Other tasks run in between."""
        while self._waiting:
            await next_turn()
            by_topic: dict[str, list[TraceRecord]] = {}
            for _ in range(min(len(self._waiting), BATCH_RECORDS)):
                record = self._waiting.popleft()
                by_topic.setdefault(record.topic, []).append(record)
            for records in by_topic.values():
                self._send_records(records)

    async def flush(self) -> None:
        """Send all queued records and wait up to `CLOSE_S` for their acknowledgements."""
        await self.send_waiting()
        if self._under_way:
            self._idle.clear()
            try:
                async with asyncio.timeout(CLOSE_S):
                    await self._idle.wait()
            except TimeoutError:
                self._core.log.warning("message traces were not sent before close", messages=self._under_way)

    def _send_records(self, records: list[TraceRecord]) -> None:
        texts: list[str] = []
        keys: dict[str, None] = {}
        size = 0
        for record in records:
            text, found = encode(record), keys_of(record)
            keys_size = sum(map(len, (*keys, *found))) + len(keys) + len(found)
            if texts and (size + len(text) > BATCH_CHARACTERS or keys_size > MAX_KEYS_CHARACTERS):
                self._send_batch(texts, keys)
                texts, keys, size = [], {}, 0
            texts.append(text)
            keys |= dict.fromkeys(found)
            size += len(text)
        self._send_batch(texts, keys)

    def _send_batch(self, texts: list[str], keys: dict[str, None]) -> None:
        count = len(texts)

        def done(result: SendResult | ClientError) -> None:
            self._under_way -= 1
            if not self._under_way:
                self._idle.set()
            if isinstance(result, ClientError):
                self.dropped += count
                self._core.log.debug("message trace not sent", error=result)

        self._under_way += 1
        found: list[str] = []
        left = MAX_KEYS_CHARACTERS
        for key in keys:  # the keys of a single record may already be too long
            left -= len(key) + 1
            if left < 0:
                break
            found.append(key)
        self._send(Message(self._topic, "".join(texts).encode(), keys=" ".join(found)), done)


class TraceProducer(Protocol):
    """The producer of the messages of the trace topic."""

    async def start(self) -> Self:
        """Open the producer."""

    async def close(self, drain: bool = True) -> None:
        """Close the producer."""

    def send_soon(self, message: Message, on_done: Callable[[SendResult | ClientError], None]) -> None:
        """Begin to send; never waits, and reports the result to `on_done`."""


class Tracing:
    """Message trace of one client: its dispatcher, and the producer for it."""

    def __init__(self, core: ClientCore, producer: TraceProducer) -> None:
        self._core = core
        self._producer = producer
        self.dispatcher: TraceDispatcher = TraceDispatcher(core, core.options.trace_topic, producer.send_soon)

    async def start(self) -> None:
        """Start the producer and the dispatcher. The client must be open."""
        await self._producer.start()
        self._core.spawn(self.dispatcher.run(), "trace")

    async def close(self, drain: bool) -> None:
        """End the message trace. If `drain` is set, first send the queued records, for up to `CLOSE_S`."""
        try:
            if drain:
                await self.dispatcher.flush()
        finally:
            await self._producer.close(drain=False)
