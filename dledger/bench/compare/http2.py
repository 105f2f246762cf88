"""The parts of HTTP/2 (RFC 9113) that gRPC by hand needs: frames, header fields and flow control."""

from __future__ import annotations

import struct
from collections.abc import Callable

_FRAME = struct.Struct(">BHBBI")
"""Length (24 bits in two fields), type, flags, stream."""
FRAME_HEAD = _FRAME.size
DATA, HEADERS, RST, SETTINGS, PING, GOAWAY, WINDOW = 0, 1, 3, 4, 6, 7, 8
END_STREAM, END_HEADERS, ACK = 1, 4, 1
MAX_STREAMS, INITIAL_WINDOW = 3, 4
"""Numbers of two settings."""
FIRST_WINDOW = 65_535
"""Initial window of the connection and of each stream in bytes, until the peer changes it."""
MAX_DATA = 16_384
"""The most bytes of a frame, unless the peer allows larger ones."""


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    """Encode one frame."""
    size = len(payload)
    return _FRAME.pack(size >> 16, size & 0xFFFF, kind, flags, stream) + payload


def head(data: bytes, at: int) -> tuple[int, int, int, int]:
    """Type, flags and stream of the frame at `at`, and where the frame ends."""
    high, low, kind, flags, stream = _FRAME.unpack_from(data, at)
    return kind, flags, stream & 0x7FFFFFFF, at + FRAME_HEAD + (high << 16 | low)


def text(name: bytes, value: bytes) -> bytes:
    """Encode a header field that is not added to a table (RFC 7541, 6.2.2)."""
    return b"\x00%c%b%c%b" % (len(name), name, len(value), value)


def settings(payload: bytes) -> dict[int, int]:
    """Decode settings: number -> value."""
    return dict(struct.iter_unpack(">HI", payload))


class Flow:
    """Sends data as far as the windows of the connection and of each stream allow."""

    def __init__(self, put: Callable[[bytes], None]) -> None:
        """`put` is called with the frames to send."""
        self._put = put
        self._room = FIRST_WINDOW
        self._first = FIRST_WINDOW
        self._held: dict[int, tuple[bytes, int]] = {}
        """Stream -> the bytes that still have to be sent, and the room of its window."""

    def send(self, stream: int, data: bytes) -> None:
        """Send all data of a new stream."""
        self._some(stream, data, self._first)

    def _some(self, stream: int, data: bytes, room: int) -> None:
        at = 0
        while at < len(data):
            size = min(len(data) - at, MAX_DATA, self._room, room)
            if size <= 0:
                self._held[stream] = data[at:], room
                return
            end = at + size
            self._put(frame(DATA, END_STREAM if end == len(data) else 0, stream, data[at:end]))
            self._room -= size
            room -= size
            at = end
        self._held.pop(stream, None)

    def more(self, stream: int, room: int) -> None:
        """Enlarge the window of a stream by `room` bytes; stream 0 is the connection."""
        if stream:
            if stream in self._held:
                data, before = self._held[stream]
                self._some(stream, data, before + room)
            return
        self._room += room
        for other, (data, before) in list(self._held.items()):
            if self._room <= 0:
                break
            self._some(other, data, before)

    def forget(self, stream: int) -> None:
        """Drop a stream that has ended, whether all its data was sent or not."""
        self._held.pop(stream, None)

    def begin_with(self, room: int) -> None:
        """Set the window of each new stream; the windows of open streams change by the difference."""
        change, self._first = room - self._first, room
        for stream, (data, before) in list(self._held.items()):
            self._some(stream, data, before + change)
