"""The protocol of RabbitMQ's streams. A frame begins with its length, a key that names the request, and a
version; numbers are big-endian.

Only the part that is needed to publish is included: sign in, make a stream, declare one publisher, and
learn which messages are stored.
"""

from __future__ import annotations

import asyncio
import struct

from dledger.bench.compare.publishing import Publishing
from dledger.bench.compare.system import BATCH, CompareError, Done

STREAM = b"bench"
MAX_STREAM_FRAME = 4 << 20
"""Limit, in bytes, of a frame. The servers are started with this limit, because their default has no room
for a message of 1 MiB."""
ANSWER_LIMIT_S = 30.0
PUBLISHER = 1
OK = 1
DECLARE_PUBLISHER, PUBLISH, CONFIRM, FAILED = 0x01, 0x02, 0x03, 0x04
CREATE, PROPERTIES, HANDSHAKE, AUTHENTICATE = 0x0D, 0x11, 0x12, 0x13
TUNE, OPEN, CLOSE, RESPONSE = 0x14, 0x15, 0x16, 0x8000
_PUBLISH = struct.Struct(">IHHBI")
"""Begin of a Publish frame: length, key, version, publisher, number of messages."""
_MESSAGE = struct.Struct(">QI")
"""Begin of a message in a Publish frame: publishing id, length of the body."""


def _string(text: bytes) -> bytes:
    return struct.pack(">H", len(text)) + text


def _frame(key: int, content: bytes) -> bytes:
    return struct.pack(">IHH", len(content) + 4, key, 1) + content


async def stream_sender(host: str, port: int, body: bytes, members: int) -> StreamSender:
    """Connect, make the stream with `members` replicas, and get ready to publish. Raises CompareError if
    the server refuses."""
    loop = asyncio.get_running_loop()
    _, sender = await loop.create_connection(lambda: StreamSender(body), host, port)
    await sender.open(members)
    return sender


class StreamSender(Publishing):
    """One publisher to a stream. A batch is one Publish frame."""

    def __init__(self, body: bytes) -> None:
        super().__init__()
        self._body = body
        self._next = 0
        self._expected = 0

    async def open(self, members: int) -> None:
        """Sign in, make the stream on this node, and declare a publisher. This node leads the stream,
        because the stream was made on it."""
        number = struct.Struct(">I").pack
        await self._ask(PROPERTIES, number(1) + number(0))
        await self._ask(HANDSHAKE, number(2))
        plain = b"\x00guest\x00guest"
        self._expect(TUNE)
        self._transport.write(
            _frame(AUTHENTICATE, number(3) + _string(b"PLAIN") + number(len(plain)) + plain)
        )
        await self._answer()
        self._transport.write(_frame(RESPONSE | TUNE, struct.pack(">II", MAX_STREAM_FRAME, 0)))
        await self._ask(OPEN, number(4) + _string(b"/"))
        replicas = _string(b"initial-cluster-size") + _string(b"%d" % members)
        await self._ask(CREATE, number(5) + _string(STREAM) + number(1) + replicas)
        publisher = bytes((PUBLISHER,)) + _string(b"") + _string(STREAM)
        await self._ask(DECLARE_PUBLISHER, number(6) + publisher)

    async def _ask(self, key: int, content: bytes) -> None:
        self._expect(RESPONSE | key)
        self._transport.write(_frame(key, content))
        await self._answer()

    def _expect(self, key: int) -> None:
        self._come = asyncio.get_running_loop().create_future()
        self._expected = key

    async def _answer(self) -> None:
        assert self._come is not None
        await asyncio.wait_for(self._come, ANSWER_LIMIT_S)

    def send(self, done: Done) -> None:
        """Send one message, as `Sender.send` explains."""
        self._publish(1, done)

    def send_batch(self, done: Done) -> None:
        """Send a batch, as `Sender.send_batch` explains."""
        self._publish(BATCH, done)

    def _publish(self, count: int, done: Done) -> None:
        first, size = self._next, len(self._body)
        self._next += count
        self._waiting[first + count - 1] = done  # the last number of the batch is confirmed last
        length = _PUBLISH.size - 4 + count * (_MESSAGE.size + size)
        self._put(_PUBLISH.pack(length, PUBLISH, 1, PUBLISHER, count))
        for number in range(first, first + count):
            self._out += (_MESSAGE.pack(number, size), self._body)

    def data_received(self, data: bytes) -> None:
        """Read confirms. While the connection is being opened, read answers as well."""
        data = self._data + data
        at, end = 0, len(data)
        while end - at >= 8:
            size, key = struct.unpack_from(">IH", data, at)
            stop = at + 4 + size
            if stop > end:
                break
            self._take(key, data[at + 8 : stop])
            at = stop
        self._data = data[at:]

    def _take(self, key: int, content: bytes) -> None:
        if key == CONFIRM:
            count = struct.unpack_from(">I", content, 1)[0]
            for number in struct.unpack_from(f">{count}Q", content, 5):
                done = self._waiting.pop(number, None)
                if done is not None:
                    done(True)
        elif key == FAILED:
            count = struct.unpack_from(">I", content, 1)[0]
            for place in range(count):
                self._not_stored(struct.unpack_from(">Q", content, 5 + 10 * place)[0])
        elif self._come is not None and not self._come.done():
            code = struct.unpack_from(">H", content, 4)[0] if key & RESPONSE else OK
            if code != OK:
                self._come.set_exception(CompareError(f"RabbitMQ refuses {key & 0x7FFF:#x}: code {code}"))
            elif key == self._expected:
                self._come.set_result(None)
        if key == CLOSE:
            self.lost = repr(content)
            self._transport.close()

    def _not_stored(self, number: int) -> None:
        """Report that a message is not stored. If it belongs to a batch, the whole batch is reported as
        failed, and only once."""
        last = next((last for last in self._waiting if number <= last < number + BATCH), None)
        if last is not None:
            self._waiting.pop(last)(False)

    async def close(self) -> None:
        """Close the connection."""
        self._transport.close()
