"""Collects messages that are sent one by one, and sends them together as a batch (RocketMQ 5's
ProduceAccumulator)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple

from dledger.client.errors import ClientError
from dledger.client.message import MessageQueue, SendResult
from dledger.client.producing.pending_sends import OnSent
from dledger.client.producing.producer_options import ProducerOptions


class BatchItem(NamedTuple):
    """One message, encoded and ready to be sent."""

    flag: int
    body: bytes
    properties: str
    unique_id: str

    @property
    def size(self) -> int:
        """How many bytes this message adds to a batch, approximately."""
        return len(self.body) + len(self.properties)


Key = tuple[str, MessageQueue | None]
"""What all messages of one batch have in common: the topic, and the queue if the application chose it."""


class _Held:
    """A batch that is being filled."""

    __slots__ = ("items", "size", "timer", "waiting")

    def __init__(self, timer: asyncio.TimerHandle) -> None:
        self.timer = timer
        self.items: list[BatchItem] = []
        self.waiting: list[OnSent] = []
        self.size = 0


class Accumulator:
    """Fills a batch for each topic (and chosen queue) and sends it when it is full or old enough."""

    def __init__(
        self,
        options: ProducerOptions,
        send: Callable[[Key, list[BatchItem], OnSent], None],
        tell: Callable[[OnSent, SendResult | ClientError, str], None],
    ) -> None:
        """`send` takes a batch over, and may raise ClientError. `tell` reports the result of one message."""
        self.messages: int = 0
        """Number of messages that wait in batches which are not sent yet."""
        self._loop = asyncio.get_running_loop()
        self._options = options
        self._send = send
        self._tell = tell
        self._bytes = 0
        self._held: dict[Key, _Held] = {}

    def has_room(self, size: int) -> bool:
        """Whether a message of this size may wait in a batch. Otherwise it is sent at once."""
        options = self._options
        return size < options.batch_hold_bytes and self._bytes + size <= options.batch_total_bytes

    def add(self, key: Key, item: BatchItem, on_done: OnSent) -> None:
        """Add a message to a batch. `on_done` is called with the result of this message."""
        held = self._held.get(key)
        if held is not None and held.size + item.size > self._options.batch_hold_bytes:
            self._go(key)
            held = None
        if held is None:
            timer = self._loop.call_later(self._options.batch_hold_s, self._go, key)
            held = self._held[key] = _Held(timer)
        held.items.append(item)
        held.waiting.append(on_done)
        held.size += item.size
        self._bytes += item.size
        self.messages += 1
        if held.size >= self._options.batch_hold_bytes:
            self._go(key)

    def send_all(self) -> None:
        """Send all batches that are being filled."""
        for key in list(self._held):
            self._go(key)

    def close(self, error: ClientError) -> None:
        """End every message that still waits in a batch with this error."""
        for key in list(self._held):
            self._end(key, self._take(key), error)

    def _take(self, key: Key) -> _Held:
        held = self._held.pop(key)
        held.timer.cancel()
        self._bytes -= held.size
        self.messages -= len(held.items)
        return held

    def _go(self, key: Key) -> None:
        held = self._take(key)
        try:
            self._send(key, held.items, lambda result: self._end(key, held, result))
        except ClientError as error:
            self._end(key, held, error)

    def _end(self, key: Key, held: _Held, result: SendResult | ClientError) -> None:
        results: list[SendResult | ClientError]
        if isinstance(result, ClientError):
            results = [result] * len(held.items)
        else:
            results = list(split(result, held.items))
        for on_done, one in zip(held.waiting, results, strict=True):
            self._tell(on_done, one, key[0])


def split(result: SendResult, items: list[BatchItem]) -> list[SendResult]:
    """Make the acknowledgement of each message of a batch. Some brokers (those with a batch ConsumeQueue)
    return one offset message id for the whole batch; then all messages have this id."""
    ids = result.offset_message_id.split(",")
    if len(ids) != len(items):
        ids = [result.offset_message_id] * len(items)
    return [
        result._replace(
            message_id=item.unique_id, offset_message_id=ids[at], queue_offset=result.queue_offset + at
        )
        for at, item in enumerate(items)
    ]
