"""Frames that wait for a connection between peers, and how they are cut (docs/reference/protocol.md,
"Order").

Entries may have megabytes, and heartbeats and votes must not wait behind them. Otherwise the heartbeats of a
leader come late, the others elect a new leader, and the new one has to send the same entry. So *bulk* frames,
such as those with entries, wait here and not in the transport, and are sent in pieces. All other frames are
written at once, between two pieces.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from dledger.peers.wire import PIECE, Frame, WireError, decode_frame, encode_frame, frame_size

PIECE_BYTES = 64 * 1024
"""Largest number of bytes of a bulk frame that are written at once. A heartbeat waits until they are sent,
and until everything that transport and kernel hold is sent: together some 200 KiB, which take 80 ms at 20
Mbit/s."""

Parts = Sequence[bytes | memoryview]


class Outbox:
    """The bulk frames of one connection, sent in order. A frame is cut into pieces if the other side can join
    them."""

    def __init__(self) -> None:
        self.bytes: int = 0
        """Number of bytes that wait."""
        self._frames: deque[memoryview] = deque()
        self._sent = 0
        """How many bytes of the first frame were already taken."""

    def add(self, parts: Parts) -> None:
        """Queue a frame. The frame is copied, because the log from which it comes may be cut before the frame
        is sent."""
        frame = memoryview(b"".join(parts))
        self._frames.append(frame)
        self.bytes += len(frame)

    def take(self, pieces: bool) -> Parts:
        """Take the next piece to write, or the next whole frame if `pieces` is false. Empty if nothing
        waits."""
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
    """Joins the pieces of a frame again."""

    def __init__(self) -> None:
        self._whole = bytearray()

    def add(self, piece: Frame, limit: int) -> Frame | None:
        """Add a piece. Return the whole frame if this is its last piece. Raises WireError if the piece is not
        the next one, or if the frame is larger than `limit` bytes."""
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
