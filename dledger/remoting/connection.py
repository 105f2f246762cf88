"""One TCP connection of a server.

A read is split into all requests that it completes, and each is passed to the handler of its code. A handler
answers at once, or later from a commit or a timer. All answers that are made in one turn of the loop are sent
in one write.

Back-pressure works by not reading. The server reads nothing more from a connection

* while its peer does not take its answers (`outbound_high_water`), or has too many bytes of unanswered
  requests (`max_inflight`),
* while a part of what was read waits for a later turn of the loop, because all connections of a server
  together may use only `TURN_S` of a turn.

Requests that were read already wait, too, while the peer does not take its answers. `max_unsent` limits the
unsent answers of all connections of a server together. Above it the server is crowded, and a connection with
any unsent bytes counts as one whose peer does not take its answers. A bad frame closes its connection and
affects no other one (safety.md S29).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, cast

import msgspec

from dledger.formats.message_ids import pack_ipv4_host
from dledger.remoting.codes import ResponseCode
from dledger.remoting.commands import Request, Response, request_name
from dledger.remoting.errors import ConnectionLost, Overloaded, RequestTimeout
from dledger.remoting.frames import (
    SERVER_LANGUAGE,
    FrameReader,
    encode_request,
    encode_response,
    fields_of,
)
from dledger.remoting.limits import LARGE_ANSWER, REQUEST_OVERHEAD
from dledger.remoting.link import OnDone
from dledger.remoting.sockets import peer_of, set_no_delay
from dledger.runtime.files import Buffer

if TYPE_CHECKING:
    from dledger.remoting.server import RemotingServer


MAX_ASKED = 1024
"""Largest number of unanswered requests of ours to one peer; one more is refused with Overloaded."""


class Connection(asyncio.BufferedProtocol):
    """The connection to one peer, as handlers see it. Every request that is not oneway must be answered
    exactly once, now or later.

    `peer` is the peer's address as "ip:port". `peer_host` is the same address as the 8-byte host field of a
    record (zeros for an IPv6 address, which records cannot hold). `attributes` belongs to the application.
    """

    def __init__(self, server: RemotingServer) -> None:
        self._server = server
        self._limits = server.limits
        self._stats = server.stats
        self._transport: asyncio.Transport | None = None
        self._reader = FrameReader(
            server.limits.max_frame_size, server.limits.read_buffer, server.limits.max_read_buffer
        )
        self._out: list[Buffer] = []
        self._flush_scheduled = False
        self._inflight = 0
        self._peer_is_slow = False
        self._reading_paused = False
        self.last_active: float = 0.0
        self.serial = -1
        self.peer: str = ""
        self.peer_host: bytes = bytes(8)
        self.closed: bool = True
        self.attributes: dict[str, object] = {}
        self._era = 0
        self._asked: dict[int, tuple[asyncio.TimerHandle, OnDone]] = {}
        self._take = None if server.bulk is None else self._bulk
        self._unread = 0
        """Number of bytes in the reader's buffer that wait for a later turn of the loop."""
        self._undone: deque[Request] = deque()
        """Decoded requests that wait for a later turn of the loop."""
        self._waits_for_turn = False
        self._unsent = 0
        """Number of bytes of answers that the system has not accepted yet, as far as is known. These are the
        bytes in `_out`, and those that the transport held when it was last asked."""

    # --- for handlers ---------------------------------------------------------------------------------

    def respond(
        self,
        request: Request,
        code: int,
        *,
        ext: Mapping[str, str] | None = None,
        body: Buffer | Sequence[Buffer] = b"",
        remark: str | None = None,
        promised: bool = False,
    ) -> None:
        """Answer a request, in its serialization. Nothing happens if the request was oneway or the peer is
        gone.

        A body may be given in pieces; they must not change until the output is written, in the next turn at
        the latest. A body of more than `LARGE_ANSWER` is replaced by SYSTEM_BUSY while the server is crowded,
        unless it is `promised`. That means that the content is already recorded as delivered to this peer.
        """
        if request.flag & 2 or self.closed:
            self._settle(request)
            return
        parts = (body,) if isinstance(body, (bytes, bytearray, memoryview)) else body
        size = sum(map(len, parts))
        if size > self._limits.max_frame_size:
            remark = f"the response has {size} bytes; the limit is {self._limits.max_frame_size}"
            code, ext, parts, size = ResponseCode.SYSTEM_ERROR, None, (), 0
        elif size > LARGE_ANSWER and self._server.crowded and not promised:
            remark = "too many responses wait until their clients read them (maxUnsentBytes): try again later"
            code, ext, parts, size = ResponseCode.SYSTEM_BUSY, None, (), 0
            self._server.count_error("answers refused: too much is unsent")
        self._out.append(encode_response(request, code, ext, remark, size))
        if size:
            self._out.extend(parts)
            self._count_unsent(self._unsent + size)
        self._sent(request)

    def respond_parts(self, request: Request, parts: Sequence[Buffer]) -> None:
        """Answer with an already encoded frame (`remoting.frames.encode_response_json` and a body)."""
        if request.flag & 2 or self.closed:
            self._settle(request)
            return
        self._out.extend(parts)
        self._sent(request)

    def respond_run(self, frames: Sequence[bytes], size: int) -> None:
        """Answer the requests that a `Bulk` function has taken, with encoded frames in the order of the
        requests. `size` is what these requests added to the in-flight account."""
        self._inflight -= size
        if self._reading_paused and self._inflight <= self._limits.max_inflight // 2:
            self._adjust_reading()
        if self.closed:
            return
        self._out += frames
        self._stats.responses += len(frames)
        if not self._flush_scheduled:
            self._schedule_flush()

    def send_oneway(self, code: int, ext: Mapping[str, str] | None = None, body: bytes = b"") -> None:
        """Send a request of ours that gets no answer, in JSON, which every client reads."""
        if self.closed:
            return
        opaque = self._server.next_opaque()
        self._out.append(encode_request(code, opaque, ext, len(body), flag=2, language=SERVER_LANGUAGE))
        if body:
            self._out.append(body)
        self._schedule_flush()

    def ask(self, code: int, header: msgspec.Struct, body: bytes, timeout_s: float, on_done: OnDone) -> None:
        """Send a request of ours to the peer, in JSON. `on_done` gets the answer or the error later, never
        before this call returns."""
        loop = self._server.loop
        if self.closed:
            loop.call_soon(on_done, ConnectionLost(f"{self.peer}: the connection is closed"))
            return
        if len(self._asked) >= MAX_ASKED:
            loop.call_soon(on_done, Overloaded(f"{self.peer}: {len(self._asked)} requests in flight"))
            return
        opaque = self._server.next_opaque()

        def expired() -> None:
            remark = f"{self.peer} did not answer {request_name(code)} within {timeout_s:g} s"
            self._asked.pop(opaque)[1](RequestTimeout(remark))

        self._asked[opaque] = loop.call_later(timeout_s, expired), on_done
        fields = fields_of(header)
        self._out.append(encode_request(code, opaque, fields, len(body), language=SERVER_LANGUAGE))
        if body:
            self._out.append(body)
        self._schedule_flush()

    @property
    def slow(self) -> bool:
        """Whether the peer does not read what was sent to it."""
        return self._peer_is_slow

    @property
    def crowded(self) -> bool:
        """Whether all connections together have more than `max_unsent` unsent bytes; then large answers have
        to wait."""
        return self._server.crowded

    def again(self, request: Request) -> None:
        """Pass a request that has not been answered to its handler again, because what the request waited for
        has arrived. If the loop stood still since the connection was made, the connection is closed
        instead."""
        if self.is_current():
            self._server.dispatch(self, request)

    def is_current(self) -> bool:
        """Whether requests of this connection may be executed. They may if the loop did not stand still since
        the connection was made."""
        server = self._server
        if server.standstill is not None:
            server.standstill.check()
        return self._era == server.era

    def close(self) -> None:
        """Close the connection after all answers so far were sent."""
        if self._transport is not None and not self._transport.is_closing():
            self.flush()
            self._transport.close()

    def close_idle(self) -> None:
        """Close an idle connection. If the peer has not accepted what was sent to it, close at once and do
        not wait for it."""
        transport = self._transport
        if transport is not None and (transport.is_closing() or transport.get_write_buffer_size()):
            transport.abort()
        else:
            self.close()

    def abort(self) -> None:
        """Close at once; unsent answers are lost."""
        if self._transport is not None:
            self._transport.abort()

    # --- output ---------------------------------------------------------------------------------------

    def _sent(self, request: Request) -> None:
        self._settle(request)
        self._stats.responses += 1
        if not self._flush_scheduled:
            self._schedule_flush()

    def _schedule_flush(self) -> None:
        if not self._flush_scheduled:
            self._flush_scheduled = True
            self._server.loop.call_soon(self.flush)

    def flush(self) -> None:
        """Write the collected output in one piece."""
        self._flush_scheduled = False
        out, transport = self._out, self._transport
        if not out or transport is None or transport.is_closing():
            out.clear()
            return
        data = out[0] if len(out) == 1 else b"".join(out)
        out.clear()
        self.last_active = self._server.loop.time()
        self._stats.bytes_out += len(data)
        transport.write(data)
        left = transport.get_write_buffer_size()
        if left != self._unsent:
            self._count_unsent(left)
        if self._peer_is_slow and left > self._limits.max_outbound:
            self._server.complain("peer does not read its responses", self.peer)
            transport.abort()
        elif self._reading_paused:
            self._go_on_if_taken()

    # --- back-pressure --------------------------------------------------------------------------------

    def _count_unsent(self, size: int) -> None:
        self._server.count_unsent(size - self._unsent)
        self._unsent = size

    def recount(self) -> None:
        """Ask how many bytes the system has accepted in the meantime. A transport does not report it until
        little is left."""
        if self._unsent and self._transport is not None and not self._out:
            self._count_unsent(self._transport.get_write_buffer_size())
        self._go_on_if_taken()

    def _is_held_up(self) -> bool:
        """Whether requests that were already read have to wait until the peer accepts its answers."""
        if self._peer_is_slow:
            return True  # the transport reports when the peer has read it
        if self._out and self._unsent > self._limits.outbound_high_water:
            return True  # what has gathered is written in this turn
        return self._unsent > 0 and self._server.crowded

    def _go_on_if_taken(self) -> None:
        if (self._undone or self._unread) and not self._is_held_up():
            self._wait_for_turn()
        else:
            self._adjust_reading()

    def _settle(self, request: Request) -> None:
        """Remove an answered request from the in-flight account (once)."""
        if request.size:
            self._inflight -= request.size
            request.size = 0
            if self._reading_paused and self._inflight <= self._limits.max_inflight // 2:
                self._adjust_reading()

    def _adjust_reading(self) -> None:
        wanted = (
            self._is_held_up()
            or self._inflight > self._limits.max_inflight
            or self._unread > 0
            or bool(self._undone)
        )
        transport = self._transport
        if wanted == self._reading_paused or transport is None or transport.is_closing():
            return
        self._reading_paused = wanted
        if wanted:
            transport.pause_reading()
        else:
            transport.resume_reading()

    def pause_writing(self) -> None:
        self._peer_is_slow = True
        self._adjust_reading()

    def resume_writing(self) -> None:
        self._peer_is_slow = False
        self.recount()

    # --- input ----------------------------------------------------------------------------------------

    def connection_made(self, base: asyncio.BaseTransport) -> None:
        transport = cast(asyncio.Transport, base)  # uvloop's transport is not declared as one
        self._transport = transport
        self.peer = peer_of(transport)
        if not self._server.admit(self):
            transport.abort()
            return
        self.closed = False
        self._era = self._server.era
        self.last_active = self._server.loop.time()
        host, _, port = self.peer.rpartition(":")
        try:
            self.peer_host = pack_ipv4_host(host.removeprefix("::ffff:"), int(port))
        except ValueError:  # IPv6, or no address
            self.peer_host = bytes(8)
        set_no_delay(transport)
        transport.set_write_buffer_limits(self._limits.outbound_high_water)
        self._server.opened(self)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.closed:
            self.closed = True
            self._out.clear()
            self._undone.clear()
            self._count_unsent(0)
            self._server.discharge(self)
            asked, self._asked = self._asked, {}
            for timer, on_done in asked.values():
                timer.cancel()
                on_done(ConnectionLost(f"{self.peer}: connection lost"))
        self._transport = None

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._unread:  # the transport reads on although it was told to pause; it would overwrite this
            self._keep(self._unread)
            self._unread = 0
        return self._reader.buffer()

    def buffer_updated(self, nbytes: int) -> None:
        if self.closed or not self.is_current():
            return
        self.last_active = self._server.loop.time()
        self._stats.bytes_in += nbytes
        if self._undone:
            self._keep(nbytes)
        elif self._server.in_time():
            self._read(nbytes)
        else:
            self._unread = nbytes
            self._wait_for_turn()

    def go_on(self) -> None:
        """Continue with the requests that were left over. The server calls this in the turn of the loop for
        which the connection waited."""
        self._waits_for_turn = False
        if self.closed or not self.is_current():
            return
        if self._is_held_up():
            self._adjust_reading()
            return  # `recount` and `flush` notice when this ends
        try:
            unread, self._unread = self._unread, 0
            if unread:
                self._read(unread)
            else:
                self._handle()
        except BaseException:
            self.abort()  # as a transport does if its protocol raises an exception
            raise
        self._adjust_reading()

    def _read(self, nbytes: int) -> None:
        self._keep(nbytes, self._take)
        self._handle()

    def _keep(self, nbytes: int, take: Callable[[bytearray, int], int] | None = None) -> None:
        requests = self._reader.received(nbytes, take)
        self._stats.requests += len(requests)
        self._undone.extend(requests)

    def _handle(self, whole: bool = False) -> None:
        """Dispatch the requests that were read, until the time for this turn of the loop is used up. With
        `whole`, dispatch all of them."""
        server, undone = self._server, self._undone
        first = True
        while undone:
            if not (whole or first or server.in_time()):
                self._wait_for_turn()
                return
            if self._is_held_up() and not whole:
                self._adjust_reading()
                return
            first = False
            request = undone.popleft()
            if request.flag:
                if request.flag & 1:  # an answer to a request of ours
                    self._answered(request)
                    continue
                if request.flag & 2:
                    self._stats.oneway += 1
                    request.size = 0
            if request.size:
                request.size += REQUEST_OVERHEAD
                self._inflight += request.size
            server.dispatch(self, request)
        error = self._reader.error
        if error is not None:
            server.complain(error.cause, self.peer, detail=str(error))
            self.close()
        elif self._inflight > self._limits.max_inflight:
            self._adjust_reading()

    def _wait_for_turn(self) -> None:
        if not self._waits_for_turn:
            self._waits_for_turn = True
            self._server.wait_for_turn(self)
        self._adjust_reading()  # data that comes meanwhile stays in the kernel

    def _bulk(self, buffer: bytearray, end: int) -> int:
        """Offer the frames at the front of a read to `Bulk`, which handles many at once
        (`FrameReader.received`)."""
        assert self._server.bulk is not None
        at, requests, size = self._server.bulk(self, buffer, end)
        self._stats.requests += requests
        self._inflight += size
        return at

    def _answered(self, answer: Request) -> None:
        asked = self._asked.pop(answer.opaque, None)
        if asked is None:  # it came too late, or answers a oneway request
            self._stats.stray_responses += 1
            return
        timer, on_done = asked
        timer.cancel()
        response = Response(
            answer.code, answer.opaque, answer.remark, answer.ext_fields, answer.body, answer.version
        )
        try:
            on_done(response)
        except Exception as error:  # the boundary of one request: the others of this read go on
            self._server.complain("handling a response failed", self.peer, error=error)

    def eof_received(self) -> bool:
        # Only over TLS may something wait for its turn here: it came before the end, in the same read.
        unread, self._unread = self._unread, 0
        if not self.is_current():
            return False
        if unread:
            self._keep(unread)
        if unread or self._undone:
            self._handle(whole=True)
        return False  # the transport closes itself

    def idle_since(self) -> float:
        """Loop time at which something was last sent or received."""
        return self.last_active

    def release_memory(self) -> None:
        """Release the memory of the read buffer while nothing arrives."""
        if not self._unread:
            self._reader.shrink()


Handler = Callable[[Connection, Request], None]
"""Answers a request with `connection.respond`, now or later. If it raises, the exception becomes the
answer."""

Bulk = Callable[[Connection, bytearray, int], tuple[int, int, int]]
"""Handles several requests together, from the front of the bytes that were read.

It gets the buffer and the position at which the data in it ends. It returns where it stopped, how many
requests it handled, and how much they add to the in-flight account (their frames, each with
`REQUEST_OVERHEAD`); `Connection.respond_run` subtracts this again. It must not keep any part of the
buffer."""
