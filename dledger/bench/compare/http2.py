"""What gRPC by hand takes of HTTP/2 (RFC 9113): frames, header fields, and how much may be sent."""

from __future__ import annotations

import struct
from collections.abc import Callable

_FRAME = struct.Struct(">BHBBI")
"""Length (24 bits in two fields), type, flags, stream."""
FRAME_HEAD = _FRAME.size
DATA, HEADERS, RST, SETTINGS, PING, GOAWAY, WINDOW = 0, 1, 3, 4, 6, 7, 8
END_STREAM, END_HEADERS, ACK = 1, 4, 1
MAX_STREAMS, INITIAL_WINDOW = 3, 4
"""Settings."""
FIRST_WINDOW = 65_535
"""Bytes, of the connection and of each stream, until more is said."""
MAX_DATA = 16_384
"""Bytes of a frame, while nobody has asked for larger ones."""


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    """One frame."""
    size = len(payload)
    return _FRAME.pack(size >> 16, size & 0xFFFF, kind, flags, stream) + payload


def head(data: bytes, at: int) -> tuple[int, int, int, int]:
    """Type, flags and stream of the frame there, and where it ends."""
    high, low, kind, flags, stream = _FRAME.unpack_from(data, at)
    return kind, flags, stream & 0x7FFFFFFF, at + FRAME_HEAD + (high << 16 | low)


def text(name: bytes, value: bytes) -> bytes:
    """A header field that no table keeps (RFC 7541, 6.2.2)."""
    return b"\x00%c%b%c%b" % (len(name), name, len(value), value)


def settings(payload: bytes) -> dict[int, int]:
    """By their numbers."""
    return dict(struct.iter_unpack(">HI", payload))


class Flow:
    """Sends data as the windows of the connection and of its streams have room for it."""

    def __init__(self, put: Callable[[bytes], None]) -> None:
        """`put` takes frames."""
        self._put = put
        self._room = FIRST_WINDOW
        self._first = FIRST_WINDOW
        self._held: dict[int, tuple[bytes, int]] = {}
        """What is left to send of a stream, and the room of its window."""

    def send(self, stream: int, data: bytes) -> None:
        """All that a new stream has to say."""
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
        """A window grows; stream 0 is the connection."""
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
        """It is over, whether all was sent or not."""
        self._held.pop(stream, None)

    def begin_with(self, room: int) -> None:
        """The window of each stream from now on; those that are open grow by the difference."""
        change, self._first = room - self._first, room
        for stream, (data, before) in list(self._held.items()):
            self._some(stream, data, before + change)
