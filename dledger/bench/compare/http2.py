"""The parts of HTTP/2 (RFC 9113) that are needed for gRPC: frames, header fields and flow control."""

from __future__ import annotations

import struct
from collections.abc import Callable

_FRAME = struct.Struct(">BHBBI")
"""Header of a frame: length (24 bits in two fields), type, flags, stream."""
FRAME_HEAD = _FRAME.size
DATA, HEADERS, RST, SETTINGS, PING, GOAWAY, WINDOW = 0, 1, 3, 4, 6, 7, 8
END_STREAM, END_HEADERS, ACK = 1, 4, 1
MAX_STREAMS, INITIAL_WINDOW = 3, 4
"""Identifiers of the HTTP/2 settings MAX_CONCURRENT_STREAMS and INITIAL_WINDOW_SIZE."""
FIRST_WINDOW = 65_535
"""Initial size, in bytes, of the flow-control windows of the connection and of each stream. The peer may
change it."""
MAX_DATA = 16_384
"""Largest payload of a frame in bytes, unless the peer allows larger ones."""


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    """Encode one frame."""
    size = len(payload)
    return _FRAME.pack(size >> 16, size & 0xFFFF, kind, flags, stream) + payload


def head(data: bytes, at: int) -> tuple[int, int, int, int]:
    """Decode the frame header at `at`. Return the type, the flags and the stream of the frame, and the
    position of its end."""
    high, low, kind, flags, stream = _FRAME.unpack_from(data, at)
    return kind, flags, stream & 0x7FFFFFFF, at + FRAME_HEAD + (high << 16 | low)


def text(name: bytes, value: bytes) -> bytes:
    """Encode a header field that is not added to the peer's table of fields (RFC 7541, 6.2.2)."""
    return b"\x00%c%b%c%b" % (len(name), name, len(value), value)


def settings(payload: bytes) -> dict[int, int]:
    """Decode settings. Returns a map from a setting's number to its value."""
    return dict(struct.iter_unpack(">HI", payload))


class Flow:
    """Sends data as far as the flow-control windows of the connection and of each stream allow."""

    def __init__(self, put: Callable[[bytes], None]) -> None:
        """`put` is called with each frame that is to be sent."""
        self._put = put
        self._room = FIRST_WINDOW
        self._first = FIRST_WINDOW
        self._held: dict[int, tuple[bytes, int]] = {}
        """Maps a stream to the bytes that still have to be sent, and to the number of bytes that its
        window still allows."""

    def send(self, stream: int, data: bytes) -> None:
        """Send all data of a new stream. What the windows do not allow yet is sent later."""
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
        """Forget a stream that has ended, even if not all of its data was sent."""
        self._held.pop(stream, None)

    def begin_with(self, room: int) -> None:
        """Set the initial window size of new streams. The windows of open streams change by the difference
        to the previous size."""
        change, self._first = room - self._first, room
        for stream, (data, before) in list(self._held.items()):
            self._some(stream, data, before + change)
