"""Connections between peers: frames on a transport, the hello, connecting (docs/reference/protocol.md).

Every node connects to every other node. It sends its requests on the connection that it made, and replies
come back on the same connection. So between two nodes there are two connections, one for each direction of
requests. A newly accepted connection of a peer replaces an older accepted one.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from typing import Any, cast

from dledger.election.identity import Hello
from dledger.peers.outbox import PIECE_BYTES, Outbox, Parts, Reassembly
from dledger.peers.wire import ERROR, Frame, WireError, decode_frame, encode_frame, frame_size
from dledger.protocol import PROTOCOL_WITH_PIECES
from dledger.runtime.silent_peers import end_when_silent
from dledger.runtime.tls import certificate_names
from dledger.runtime.turns import favour, unfavour

DEAD_LINK_MS = 3000
"""Time, in ms, after which a connection counts as dead if nothing arrives or what was sent is not
acknowledged."""
IN_TRANSPORT = 64 * 1024
"""Number of unsent bytes in a transport above which bulk frames (large ones, such as entries) wait in the
`Outbox`."""
IN_KERNEL = 64 * 1024
"""Largest number of unsent bytes that the kernel accepts. By default it accepts megabytes, and later frames
would have to wait for all of them."""
_TCP_NODELAY, _TCP_NOTSENT_LOWAT = 1, 25
READ_BUFFER = 256 * 1024
"""Number of bytes that are read at once. For a larger frame the buffer grows to the frame's size, up to the
frame limit."""
FIRST_BUFFER = 4 * 1024
"""Number of bytes that are read at once before the first frame, the hello, has come. So a connection without
a hello costs no more memory."""
MAX_ERROR_TEXT = 512
"""Limit, in characters, of an error text that is sent, or kept after it was received; the rest is cut off."""
MAX_HELD = 16
"""Largest number of requests of one client connection that wait for the disk or a quorum. Above it the
connection is not read."""


class Unsent:
    """Counts the bytes of answers that clients have not read, for all client connections to a node together.

    Up to IN_TRANSPORT bytes in the transport of a connection do not count, because a client that reads
    normally causes them too.
    """

    __slots__ = ("bytes",)

    def __init__(self) -> None:
        self.bytes: int = 0


class PeerConnection(asyncio.BufferedProtocol):
    """One TCP connection of the peer port. `on_frame` gets every whole frame; `on_lost` is called once.

    If a client does not read its answers, or has MAX_HELD requests waiting, its requests are not read either.
    Connections between peers are always read, because two peers that wait for each other could deadlock. What
    is in flight between peers is bounded by the limits of replication.
    """

    def __init__(
        self,
        on_frame: FrameHandler,
        on_lost: Callable[[PeerConnection], None],
        max_frame: int,
        *,
        dialled: str | None = None,
        on_made: Callable[[PeerConnection], None] | None = None,
    ) -> None:
        self.dialled = dialled
        """Id of the node to which this side connected; None for an accepted connection."""
        self.place = ""
        """Address to which this side connected."""
        self.store: str | None = None
        """The only incarnation that may answer on a connection that this side made; None: any may."""
        self.peer: str | None = None
        """Node id from the hello; None until it was accepted."""
        self.hello: Hello | None = None
        self.version = 0
        """Protocol version that both sides use; 0 until the hello was accepted."""
        self.client = False
        """Whether this is a connection of the DLedger client protocol."""
        self.unsent: Unsent | None = None
        """For the connection of a client, the counter of unread answers."""
        self._counted = 0
        self.error: str = ""
        """Why the connection ended, or is about to end."""
        self.garbage: bool = False
        """Whether the connection ended because it received data that does not belong to the protocol."""
        self.secret: str = ""
        """Secret that this side sent when it made the connection (see `dledger.peers.proofs`)."""
        self.nonce = ""
        """Nonce that the dialling side must send back before it is trusted (see `dledger.peers.peers`)."""
        self.names: tuple[str, ...] = ()
        """Names in the other side's certificate; empty without TLS."""
        self.lost: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        """Done when the connection is gone."""
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when the hello of the other side was accepted, on a connection that this side made."""
        self.closed: bool = False
        self._favoured = -1
        self.host: str = "?"
        """Address of the other side's machine."""
        self.on_read: Callable[[], None] | None = None
        """Called when all frames that arrived together have been handled."""
        self.pieces: Reassembly = Reassembly()
        self._outbox = Outbox()
        self._on_frame = on_frame
        self._on_lost = on_lost
        self._on_made = on_made
        self.max_frame: int = max_frame
        self._held = 0
        self._full = False
        self._parsing = False
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        self._greeted = False
        """Whether a whole frame has arrived."""
        self._filled = 0
        self._wanted = 0

    def hand_to(
        self, on_frame: FrameHandler, on_lost: Callable[[PeerConnection], None], max_frame: int
    ) -> None:
        """Use these callbacks and this limit from the next frame on."""
        self._on_frame = on_frame
        self._on_lost = on_lost
        self.max_frame = max_frame

    # Sending

    def send(self, parts: Parts) -> None:
        """Write the parts of one frame, before all bulk frames that wait. The frame is dropped if the
        connection is gone.

        This method does not use `writelines`. Since Python 3.12 `writelines` does not notice a lost
        connection (gh-136234). Before 3.12.9 and 3.13.2 it does not notice its own limit (gh-127655), and
        keeps an empty part in its buffer for ever.
        """
        if not self._gone:
            assert self._transport is not None
            self._transport.write(parts[0] if len(parts) == 1 else b"".join(parts))
            if self._full and self.unsent is not None:
                self._count_unsent()

    def _count_unsent(self) -> None:
        if self.unsent is not None:
            left = self.backlog if self._full else 0
            self.unsent.bytes += left - self._counted
            self._counted = left

    @property
    def _gone(self) -> bool:
        """Whether nothing can be sent any more. The transport knows first that a connection is broken."""
        return self.closed or self._transport is None or self._transport.is_closing()

    def send_bulk(self, parts: Parts) -> None:
        """Write the parts of one frame after all bulk frames that wait, in pieces if it is large."""
        if self._gone:
            return
        if self._full or self._outbox.bytes or sum(map(len, parts)) > PIECE_BYTES:
            self._outbox.add(parts)
            self._send_more()
        else:
            self.send(parts)

    def forget_bulk(self) -> None:
        """Drop waiting bulk frames of which nothing was sent yet, because they are not needed any more."""
        self._outbox.forget()

    def _send_more(self) -> None:
        pieces = self.version >= PROTOCOL_WITH_PIECES
        while not self._full and not self._gone and (parts := self._outbox.take(pieces)):
            self.send(parts)

    def send_frame(self, number: int, header: object) -> None:
        """Write a frame without payload."""
        self.send([encode_frame(number, header)])

    def send_error(self, text: str) -> None:
        """Send an error to the other side. The text may repeat received data of any length, so it is cut."""
        self.send_frame(ERROR, text[:MAX_ERROR_TEXT])

    @property
    def backlog(self) -> int:
        """Number of bytes that wait here and in the transport."""
        return self._outbox.bytes + (self._transport.get_write_buffer_size() if self._transport else 0)

    def close(self, reason: str = "") -> None:
        """Close the connection after everything that was written is sent, but without the bulk frames that
        wait. Nothing more is read."""
        self.error = self.error or reason
        if not self.closed:
            self.closed = True
            if self._transport is not None:
                self._transport.close()

    def abort(self) -> None:
        """Close at once."""
        self.closed = True
        if self._transport is not None:
            self._transport.abort()

    # Back-pressure of clients

    def hold(self) -> None:
        """Count a request that begins to wait (see MAX_HELD). The caller must call `release` later."""
        self._held += 1
        self._read_or_pause()

    def release(self) -> None:
        """Count a request as answered that was counted with `hold`."""
        self._held -= 1
        self._read_or_pause()

    @property
    def _blocked(self) -> bool:
        return self.client and (self._full or self._held >= MAX_HELD)

    def _read_or_pause(self) -> None:
        if self._transport is None or self.closed or not self.client:
            return
        if not self._blocked:
            self._parse_or_close()  # the data that was read already
        if self._blocked:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    def pause_writing(self) -> None:
        self._full = True
        self._count_unsent()
        self._read_or_pause()

    def resume_writing(self) -> None:
        self._full = False
        self._count_unsent()
        # The transport is writing now, and would not notice an error of a write from here.
        asyncio.get_running_loop().call_soon(self._resumed)

    def _resumed(self) -> None:
        self._send_more()
        self._read_or_pause()

    # asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        layers = 1 if transport.get_extra_info("sslcontext") is None else 2
        self._transport.set_write_buffer_limits(IN_TRANSPORT // layers)
        name = transport.get_extra_info("peername")
        self.host = str(name[0]) if name else "?"
        self.names = certificate_names(transport.get_extra_info("peercert"))
        set_no_delay(transport)
        self._favoured = favour(transport)
        if self._on_made is not None:
            self._on_made(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        self._full = False
        self._count_unsent()
        unfavour(self._favoured)
        if exc is not None and not self.error:
            self.error = str(exc)
        if not self.lost.done():
            self.lost.set_result(None)
        if not self.ready.done():
            self.ready.set_exception(ConnectionResetError(self.error or "closed before its hello"))
            self.ready.exception()  # on an accepted connection nothing waits for it
        self._on_lost(self)
        # Code that still refers to this connection, such as a timer, must not keep buffer and transport.
        self._transport = self._on_made = self.on_read = None
        self._buffer, self._filled, self._wanted = bytearray(), 0, 0

    def get_buffer(self, sizehint: int) -> memoryview:
        wanted = max(self._wanted, READ_BUFFER if self._greeted else FIRST_BUFFER)
        if len(self._buffer) < wanted or (
            self._filled == 0 and len(self._buffer) > max(wanted, 4 * READ_BUFFER)
        ):
            # A new object, because the transport has a view of the old one, which cannot be resized.
            grown = bytearray(wanted)
            grown[: self._filled] = self._buffer[: self._filled]
            self._buffer = grown
        return memoryview(self._buffer)[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        self._filled += nbytes
        self._parse_or_close()

    def _parse_or_close(self) -> None:
        if self._parsing:
            return  # called by the handler of a frame: the loop below continues
        self._parsing = True
        try:
            self._parse()
        except WireError as error:
            self.garbage = True
            self.close(str(error))
        finally:
            self._parsing = False
            if self.on_read is not None:
                self.on_read()

    def _parse(self) -> None:
        """Handle every whole frame, and move the remaining bytes to the front of the buffer."""
        start = 0
        self._wanted = 0
        view = memoryview(self._buffer)
        while not (self.closed or self._blocked):
            size = frame_size(view[start : self._filled], self.max_frame)
            if size is None or size > self._filled - start:
                self._wanted = size or 0
                break
            self._greeted = True
            self._on_frame(self, decode_frame(view[start : start + size]))
            start += size
        if start:
            rest = self._filled - start
            self._buffer[:rest] = self._buffer[start : self._filled]
            self._filled = rest


def set_no_delay(transport: asyncio.BaseTransport) -> None:
    """Send small frames at once, and notice a peer that has vanished. Does nothing if the transport has no
    socket."""
    sock: Any = transport.get_extra_info("socket")
    if sock is None:
        return
    tcp = 6
    sock.setsockopt(tcp, _TCP_NODELAY, 1)
    end_when_silent(sock, DEAD_LINK_MS, unread=True)
    if sys.platform == "linux":
        sock.setsockopt(tcp, _TCP_NOTSENT_LOWAT, IN_KERNEL)


FrameHandler = Callable[[PeerConnection, Frame], None]
