"""Frames that wait for a connection between peers, and how they are cut (docs/reference/protocol.md,
"Order").

Entries may be megabytes, and heartbeats and votes must not wait behind them. Otherwise a leader whose
heartbeats are late is deposed, and the next one has the same entry to send. So bulk waits here, not in the
transport, and goes out in pieces. Everything else is written at once, between two pieces.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from dledger.peers.wire import PIECE, Frame, WireError, decode_frame, encode_frame, frame_size

PIECE_BYTES = 64 * 1024
"""Most bytes of a frame that are written at once. A heartbeat waits for this, and for what the transport and
the kernel hold unsent: together some 200 KiB, 80 ms at 20 Mbit/s."""

Parts = Sequence[bytes | memoryview]


class Outbox:
    """Frames of one connection, sent in order. Each is cut into pieces if the other side knows pieces."""

    def __init__(self) -> None:
        self.bytes: int = 0
        """Number of bytes that wait."""
        self._frames: deque[memoryview] = deque()
        self._sent = 0
        """Number of bytes of the first frame that were taken already."""

    def add(self, parts: Parts) -> None:
        """Queue a frame. It is copied, because the log beneath may be cut before its turn."""
        frame = memoryview(b"".join(parts))
        self._frames.append(frame)
        self.bytes += len(frame)

    def take(self, pieces: bool) -> Parts:
        """The next piece (without `pieces`: the next frame) to write; empty when nothing waits."""
        if not self._frames:
            return ()
        frame, start = self._frames[0], self._sent
        total = len(frame)
        end = min(start + PIECE_BYTES, total) if pieces else total
        self.bytes -= end - start
        self._sent = end
        if end == total:
            self._frames.popleft()
            self._sent = 0
        chunk = frame[start:end]
        return (chunk,) if len(chunk) == total else (encode_frame(PIECE, [total, start], len(chunk)), chunk)

    def forget(self) -> None:
        """Drop all frames of which nothing was sent yet."""
        begun = [self._frames[0]] if self._sent else []
        self._frames = deque(begun)
        self.bytes = sum(map(len, begun)) - self._sent


class Reassembly:
    """Puts the pieces of a frame together again."""

    def __init__(self) -> None:
        self._whole = bytearray()

    def add(self, piece: Frame, limit: int) -> Frame | None:
        """Add a piece; return the whole frame with its last piece. WireError if it does not follow, or is
        above `limit` bytes."""
        header = piece.header()
        match header:
            case [int(total), int(start)] if start == len(self._whole) and 0 < total <= limit:
                self._whole += piece.payload
            case _:
                raise WireError(f"a piece {str(header)[:64]} behind {len(self._whole)} bytes")
        if not piece.payload or len(self._whole) > total:
            raise WireError(f"a piece of {len(piece.payload)} bytes at {start} of {total}")
        if len(self._whole) < total:
            return None
        whole, self._whole = memoryview(self._whole), bytearray()
        if frame_size(whole, limit) != total:
            raise WireError(f"the pieces of {total} bytes are not a frame")
        frame = decode_frame(whole)
        if frame.number == PIECE:
            raise WireError("a piece of pieces")
        return frame
