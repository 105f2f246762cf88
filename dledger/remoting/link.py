"""One connection of a client, from connecting to its end: its requests in flight and their deadlines.

A request costs a dict entry and a callback, but no task, future or timer. One timer per connection looks for
expired requests. Deadlines are inserted nearly in their order, so the timer fires about once per time-out
period and not once per request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, cast

from dledger.formats.addresses import split_address
from dledger.remoting.commands import Request, Response, request_name
from dledger.remoting.errors import (
    ConnectFailed,
    ConnectionLost,
    Overloaded,
    RemotingError,
    RequestTimeout,
    TooLarge,
    WrongTls,
)
from dledger.remoting.frames import FrameReader, encode_response
from dledger.remoting.sockets import discard, set_no_delay, watch
from dledger.runtime.forks import FORKS

if TYPE_CHECKING:
    from ssl import SSLContext

    from dledger.remoting.client import RemotingClient

OnDone = Callable[[Response | RemotingError], None]
"""Called once, from the loop, with the answer, or with the reason why there is none. It must not raise."""


TLS_ALERT = b"\x15\x03"
"""The first bytes that a TLS server sends if it gets data that is not TLS. A peer without TLS does not send
them: read as the beginning of a frame, they would mean a length of 352 MB."""


class Link(asyncio.BufferedProtocol):
    """One connection to one address, from connecting to its end. After the end, the client makes a new
    link."""

    def __init__(self, client: RemotingClient, address: str) -> None:
        self.address = address
        self._up: asyncio.Future[None] | None = None
        self._client = client
        self._loop = client.loop
        self._limits = client.limits
        self._transport: asyncio.Transport | None = None
        self._reader = FrameReader(
            client.limits.max_frame_size, client.limits.read_buffer, client.limits.max_read_buffer
        )
        # opaque -> (deadline, time-out, callback, request code)
        self._pending: dict[int, tuple[float, float, OnDone, int]] = {}
        self._out: list[bytes] = []
        self._out_size = 0
        self._first_unsent: int | None = None  # opaque of the first request in `_out`
        self._forks = FORKS.count
        self._flush_scheduled = False
        self._writable = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._last_received = 0.0
        self._first: memoryview | None = None
        """Buffer for the first bytes of the peer."""
        self._heard = False
        self._last_used = self._loop.time()
        self._failed = False

    # --- requests -------------------------------------------------------------------------------------

    def request(
        self, opaque: int, code: int, frame: bytes, body: bytes, timeout_s: float, done: OnDone
    ) -> None:
        """Send a request. While the connection is being made, keep the request until it is made."""
        if len(self._pending) >= self._limits.max_inflight:
            raise Overloaded(f"{self.address}: {len(self._pending)} requests in flight")
        self.send(frame, body)
        if self._first_unsent is None:
            self._first_unsent = opaque
        now = self._loop.time()
        deadline = now + timeout_s
        self._pending[opaque] = (deadline, timeout_s, done, code)
        self._last_used = now
        if self._timer is None or deadline < self._timer_at:
            self._set_timer(deadline)

    def send(self, frame: bytes, body: bytes) -> None:
        """Put a frame into the next write."""
        size = len(frame) + len(body)
        if size > self._limits.max_frame_size:
            raise TooLarge(f"the request has {size} bytes; the limit is {self._limits.max_frame_size}")
        if self._out_size + size > self._limits.max_outbound:
            raise Overloaded(f"{self.address}: {self._out_size} bytes are waiting to be sent")
        self._out.append(frame)
        if body:
            self._out.append(body)
        self._out_size += size
        if self._writable and not self._flush_scheduled:
            self._flush_scheduled = True
            self._loop.call_soon(self._flush)

    def has_room(self, size: int) -> bool:
        """Whether a request of this many bytes is within the limits."""
        limits = self._limits
        return len(self._pending) < limits.max_inflight and self._out_size + size <= limits.max_outbound

    @property
    def is_up(self) -> bool:
        """Whether the connection has been made and has not been lost."""
        return self._transport is not None

    async def wait_up(self) -> None:
        """Wait until the connection is made. Raises the error that prevented it."""
        if self._transport is None:
            if self._up is None:
                self._up = self._loop.create_future()
            await asyncio.shield(self._up)

    def forget(self, opaque: int) -> None:
        """Ignore the answer to this request, because its caller does not wait any more."""
        self._pending.pop(opaque, None)

    def drop_unsent(self, reason: str) -> None:
        """Fail the requests of which nothing was handed to the system yet: they certainly were not
        executed."""
        self._out.clear()
        self._out_size = 0
        first, self._first_unsent = self._first_unsent, None
        if first is None:
            return
        # Opaques count up, around 2^31: what lies in the half in front of the first one is older.
        unsent = [opaque for opaque in self._pending if (opaque - first) & 0x7FFFFFFF < 1 << 30]
        dropped = [self._pending.pop(opaque) for opaque in unsent]
        error = ConnectFailed(f"{self.address}: not sent, {reason}")
        for entry in dropped:
            self._client.call(entry[2], error)

    def _flush(self) -> None:
        self._flush_scheduled = False
        if self._out and self._writable and self._transport is not None:
            if FORKS.count != self._forks:  # the connection is the parent's: nothing of ours goes there
                self.fail(
                    ConnectFailed(
                        f"{self.address}: the connection was opened before os.fork() and belongs to the "
                        "parent process"
                    )
                )
                return
            out, self._out = self._out, []
            self._first_unsent = None
            large, self._out_size = self._out_size > self._limits.outbound_high_water, 0
            if large:  # not joined into one: copying a registration of 10 MB takes 5 ms
                for part in out:
                    self._transport.write(memoryview(part))
            else:
                self._transport.write(b"".join(out))

    # --- time-outs ------------------------------------------------------------------------------------

    def _set_timer(self, deadline: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = deadline
        self._timer = self._loop.call_at(deadline, self._expire)

    def _expire(self) -> None:
        """Fail overdue requests and set the timer to the next deadline."""
        self._timer = None
        now = self._loop.time()
        overdue = [(opaque, entry) for opaque, entry in self._pending.items() if entry[0] <= now]
        silent = False
        if overdue:
            self._last_used = now  # it was in use until now, so its idle time begins now
        for opaque, (deadline, timeout_s, done, code) in overdue:
            del self._pending[opaque]
            silent = silent or self._last_received < deadline - timeout_s
            remark = f"{self.address} did not answer {request_name(code)} within {timeout_s:g} s"
            self._client.call(done, RequestTimeout(remark))
        silent = silent and now - self._last_received >= self._limits.silence_close_s
        if silent and self._transport is not None:
            # Nothing at all came since the request left: the host may be gone without a word. The next use
            # dials anew, and whoever else waits here learns at once. What was not delivered never will be.
            discard(self._transport)
        elif self._pending and self._timer is None:
            soonest = min(entry[0] for entry in self._pending.values())
            self._set_timer(max(soonest, now + self._limits.timer_grain_s))

    # --- life -----------------------------------------------------------------------------------------

    async def dial(self) -> None:
        """Connect. If that fails, the requests that wait fail with the error."""
        if self._failed:
            return
        try:
            host, port = split_address(self.address)
            async with asyncio.timeout(self._limits.connect_timeout_s):
                if self._client.tls is None:
                    await self._loop.create_connection(lambda: self, host, port)
                else:
                    await self._dial_tls(host, port, self._client.tls)
        except TimeoutError:
            self.fail(ConnectFailed(f"{self.address}: no connection in {self._limits.connect_timeout_s:g} s"))
        except OSError as error:
            reason = error.strerror or str(error)
            refused = isinstance(error, ConnectionRefusedError)
            self.fail(ConnectFailed(f"{self.address}: cannot connect: {reason}", refused))
        except ValueError as error:
            self.fail(ConnectFailed(str(error)))

    async def _dial_tls(self, host: str, port: int, tls: SSLContext) -> None:
        """Connect with TLS.

        If the peer closes during a handshake without an alert, it may be a server without TLS, or one that
        was just stopped. A second attempt tells them apart: a server without TLS closes it in the same way,
        but a stopped server no longer listens."""
        try:
            await self._loop.create_connection(lambda: self, host, port, ssl=tls)
        except OSError as first:
            if not _no_tls(first):
                raise
            try:
                await self._loop.create_connection(lambda: self, host, port, ssl=tls)
            except OSError as error:
                if not _no_tls(error):
                    raise
                self.fail(
                    WrongTls(
                        f"{self.address}: the port does not speak TLS: connect without it "
                        "(ClientOptions.tls, ROCKETMQ_TLS), or enable it at the server "
                        "(tls.server.mode, tls.server.certPath)"
                    )
                )

    def connection_made(self, base: asyncio.BaseTransport) -> None:
        transport = cast(asyncio.Transport, base)  # uvloop's transport is not declared as one
        if self._failed:  # closed or timed out while dialling
            transport.abort()
            return
        set_no_delay(transport)
        watch(transport, self._limits.vanished_close_s)
        transport.set_write_buffer_limits(self._limits.outbound_high_water)
        self._transport = transport
        self._writable = True
        self._last_received = self._loop.time()
        if self._up is not None and not self._up.done():
            self._up.set_result(None)
        self._flush()

    def connection_lost(self, exc: Exception | None) -> None:
        was_up = self._transport is not None
        self._transport = None
        self._writable = False
        detail = f": {exc}" if exc is not None else ""
        self.fail(ConnectionLost(f"{self.address}: connection lost{detail}"))
        if was_up:
            self._client.lost(self)

    def fail(self, error: RemotingError) -> None:
        """End this link. All requests in flight fail with the error; later requests use a new link."""
        if self._failed:
            return
        self._failed = True
        self._client.drop(self)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if isinstance(error, ConnectionLost):
            self.drop_unsent(error.remark)
        self._out.clear()
        pending, self._pending = self._pending, {}
        if self._up is not None and not self._up.done():
            self._up.set_exception(error)
            self._up.exception()  # mark it as read: it is no error if nobody waits
        for entry in pending.values():
            self._client.call(entry[2], error)

    def close(self, reason: str) -> None:
        """Close the connection."""
        transport = self._transport
        self.fail(ConnectionLost(f"{self.address}: {reason}"))
        if transport is not None:
            transport.close()

    def idle(self, now: float) -> bool:
        """Whether the connection was unused for longer than the limit and no request waits."""
        if self._pending or self._transport is None:
            return False
        quiet = now - max(self._last_used, self._last_received)
        if quiet > self._limits.idle_sweep_s:
            self._reader.shrink()
        return quiet > self._limits.idle_close_s

    # --- transport ------------------------------------------------------------------------------------

    def pause_writing(self) -> None:
        self._writable = False

    def resume_writing(self) -> None:
        self._writable = True
        self._flush()

    def get_buffer(self, sizehint: int) -> memoryview:
        buffer = self._reader.buffer()
        if not self._heard:
            self._first = buffer
        return buffer

    def buffer_updated(self, nbytes: int) -> None:
        if self._failed:
            return
        self._last_received = self._loop.time()
        if not self._heard:
            self._heard = True
            first, self._first = self._first, None
            if first is not None and nbytes >= len(TLS_ALERT) and first[: len(TLS_ALERT)] == TLS_ALERT:
                self._refused_without_tls()
                return
        pending, call = self._pending, self._client.call
        for command in self._reader.received(nbytes):
            if command.flag & 1:
                entry = pending.pop(command.opaque, None)
                if entry is None:  # timed out or cancelled before
                    self._client.late_responses += 1
                    continue
                response = Response(
                    command.code,
                    command.opaque,
                    command.remark,
                    command.ext_fields,
                    command.body,
                    command.version,
                )
                call(entry[2], response)
            else:
                self._serve(command)
        if self._reader.error is not None:
            self._client.bad_frame(self.address, self._reader.error)
            if self._transport is not None:
                self._transport.abort()
            self.fail(
                ConnectionLost(
                    f"{self.address}: closed, as its response is not a valid frame ({self._reader.error})"
                )
            )

    def _refused_without_tls(self) -> None:
        if self._transport is not None:
            self._transport.abort()
        self.fail(
            WrongTls(
                f"{self.address}: the port accepts only TLS: give "
                "ClientOptions(tls=TlsOptions(ca=...)), or set ROCKETMQ_TLS=true and ROCKETMQ_TLS_CA"
            )
        )

    def _serve(self, request: Request) -> None:
        answered = self._client.handle(self.address, request)
        if isinstance(answered, Response):
            self._answer(request, answered)
        elif answered is not None:
            self._client.later(answered, partial(self._answer, request))

    def _answer(self, request: Request, response: Response) -> None:
        if request.oneway or self._failed:
            return
        frame = encode_response(request, response.code, response.ext, response.remark, len(response.body))
        try:
            self.send(frame, response.body)
        except RemotingError as error:
            self._client.report(error)


def _no_tls(error: OSError) -> bool:
    """Whether a handshake ended as if the peer did not understand TLS."""
    reason = getattr(error, "reason", None)  # of OpenSSL
    if reason is not None:
        return reason in ("WRONG_VERSION_NUMBER", "UNEXPECTED_EOF_WHILE_READING")
    return isinstance(error, ConnectionResetError | ConnectionAbortedError | BrokenPipeError)
