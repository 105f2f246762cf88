"""Stream transports over a simulated kernel endpoint. They behave like asyncio's selector transport.

The order of callbacks must be the same as in asyncio:

* `connection_made` comes first, then reading starts.
* There is one `recv` in each turn in which the socket is ready.
* A write sends at once what the kernel takes, and buffers the rest.
* `pause_writing` is called above the high-water mark, and `resume_writing` at the low one.
* `connection_lost` is called once, in a later turn.

tests/chaos compares this order with that of the real loop (fidelity test).
"""

from __future__ import annotations

import asyncio
import contextvars
import sys
from asyncio import transports
from typing import TYPE_CHECKING, Any

from dledger.chaos.machine.futures import SimHandle
from dledger.chaos.machine.sockets import SimSocket

if TYPE_CHECKING:
    from collections.abc import Iterable

    from dledger.chaos.machine.loop import SimLoop
    from dledger.chaos.machine.tcp import Endpoint

_RECV_LIMIT = 256 * 1024


class SimTransport(transports._FlowControlMixin):
    """One side of a connection, as a program sees it."""

    def __init__(
        self,
        loop: SimLoop,
        endpoint: Endpoint,
        protocol: asyncio.BaseProtocol,
        waiter: asyncio.Future[None] | None = None,
        server: Any = None,
    ) -> None:
        extra = {"socket": SimSocket(endpoint), "sockname": endpoint.local, "peername": endpoint.remote}
        super().__init__(extra, loop)
        self._sim_loop = loop
        self._endpoint = endpoint
        self._number = loop.next_number()
        self._server = server
        self._buffer = bytearray()
        self._closing = False
        self._lost = False  # connection_lost is scheduled or done
        self._paused = False
        self._reading = False
        self._eof_sent = False
        context = contextvars.copy_context()
        self._read_handle = SimHandle(self._read_ready, (), context)
        self._write_handle = SimHandle(self._write_ready, (), context)
        self._read_posted = False
        self._write_posted = False
        self.set_protocol(protocol)
        if server is not None:
            self._attach(server)
        endpoint.transport = self
        loop.call_soon(protocol.connection_made, self)
        loop.call_soon(self._start_reading)
        if waiter is not None:
            loop.call_soon(_set_unless_done, waiter)

    def __hash__(self) -> int:
        return self._number

    def __eq__(self, other: object) -> bool:
        return self is other

    def __repr__(self) -> str:
        local, remote = self._endpoint.local, self._endpoint.remote
        return f"<SimTransport {local[0]}:{local[1]} {remote[0]}:{remote[1]}>"

    # -- set-up -------------------------------------------------------------------------------------

    def _attach(self, server: Any) -> None:
        if sys.version_info >= (3, 13):
            server._attach(self)
        else:
            server._attach()

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Use another protocol from the next event on."""
        self._protocol: Any = protocol
        self._buffered = isinstance(protocol, asyncio.BufferedProtocol)

    def get_protocol(self) -> asyncio.BaseProtocol:
        """The current protocol."""
        return self._protocol  # type: ignore[no-any-return]

    # -- readiness, called by the endpoint -------------------------------------------------------------

    def on_readable(self) -> None:
        """Called when the kernel has data, the end of the stream or an error."""
        if self._reading and not self._read_posted:
            self._read_posted = True
            self._sim_loop.post_io(self._read_handle)

    def on_writable(self) -> None:
        """Called when the kernel has room again, or an error."""
        if self._buffer and not self._write_posted:
            self._write_posted = True
            self._sim_loop.post_io(self._write_handle)

    # -- reading --------------------------------------------------------------------------------------

    def is_reading(self) -> bool:
        """Whether the transport is neither paused nor closing."""
        return not self._closing and not self._paused

    def pause_reading(self) -> None:
        """Deliver nothing until `resume_reading`."""
        if self.is_reading():
            self._paused = True
            self._reading = False

    def resume_reading(self) -> None:
        """Deliver again after `pause_reading`."""
        if not self._closing and self._paused:
            self._paused = False
            self._start_reading()

    def _start_reading(self) -> None:
        if self.is_reading():
            self._reading = True
            if self._endpoint.readable:
                self.on_readable()

    def _read_ready(self) -> None:
        self._read_posted = False
        if not self._reading or self._lost:
            return
        if self._buffered:
            self._read_into_buffer()
        else:
            self._read_data()
        if self._reading and not self._lost and self._endpoint.readable:
            self.on_readable()

    def _read_data(self) -> None:
        try:
            data = self._endpoint.recv(_RECV_LIMIT)
        except OSError as error:
            self._fatal_error(error)
            return
        if not data:
            self._read_eof()
            return
        try:
            self._protocol.data_received(data)
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as error:
            self._failed("data_received", error)

    def _read_into_buffer(self) -> None:
        try:
            buffer = self._protocol.get_buffer(-1)
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as error:
            self._failed("get_buffer", error)
            return
        if not len(buffer):
            self._failed("get_buffer", RuntimeError("get_buffer() returned an empty buffer"))
            return
        try:
            if type(buffer) is memoryview and buffer.format == "B" and buffer.ndim == 1:
                data = self._endpoint.recv(buffer.nbytes)
                buffer[: len(data)] = data
            else:
                with memoryview(buffer) as view, view.cast("B") as target:
                    data = self._endpoint.recv(len(target))
                    target[: len(data)] = data
        except OSError as error:
            self._fatal_error(error)
            return
        if not data:
            self._read_eof()
            return
        try:
            self._protocol.buffer_updated(len(data))
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as error:
            self._failed("buffer_updated", error)

    def _read_eof(self) -> None:
        try:
            keep_open = self._protocol.eof_received()
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as error:
            self._failed("eof_received", error)
            return
        if keep_open:
            self._reading = False
        else:
            self.close()

    def _failed(self, name: str, error: BaseException) -> None:
        self._fatal_error(error, f"Fatal error: protocol.{name}() call failed.")

    # -- writing --------------------------------------------------------------------------------------

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send as much as the kernel takes now, and buffer the rest."""
        if not isinstance(data, (bytes, bytearray, memoryview)):
            raise TypeError(f"data argument must be a bytes-like object, not {type(data).__name__!r}")
        if self._eof_sent:
            raise RuntimeError("Cannot call write() after write_eof()")
        if not data or self._lost:
            return
        if not self._buffer:
            whole = data if isinstance(data, bytes) else bytes(data)
            try:
                count = self._endpoint.send(whole)
            except OSError as error:
                self._fatal_error(error)
                return
            if count == len(whole):
                return
            data = whole[count:]
        self._buffer += data
        if not self._endpoint.starved:
            self._starve()
        self._maybe_pause_protocol()  # type: ignore[attr-defined]

    def _starve(self) -> None:
        # This is like registering a writer: if there is room already, the transport is notified at once.
        if self._endpoint.space:
            self.on_writable()
        else:
            self._endpoint.starved = True

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        """Write the parts as one write."""
        self.write(b"".join(list_of_data))

    def _write_ready(self) -> None:
        self._write_posted = False
        if self._lost or not self._buffer:
            return
        try:
            count = self._endpoint.send(bytes(self._buffer))
        except OSError as error:
            self._buffer.clear()
            self._fatal_error(error)
            return
        del self._buffer[:count]
        self._maybe_resume_protocol()  # type: ignore[attr-defined]
        if self._buffer:
            self._starve()
        elif self._closing:
            self._lost = True
            self._connection_lost(None)
        elif self._eof_sent:
            self._endpoint.shutdown_write()

    def get_write_buffer_size(self) -> int:
        """Bytes that the kernel has not taken yet."""
        return len(self._buffer)

    def can_write_eof(self) -> bool:
        """Always true: the transport supports half-close."""
        return True

    def write_eof(self) -> None:
        """Half-close after the written data."""
        if self._closing or self._eof_sent:
            return
        self._eof_sent = True
        if not self._buffer:
            self._endpoint.shutdown_write()

    # -- the end --------------------------------------------------------------------------------------

    def is_closing(self) -> bool:
        """Whether the transport is closing or closed."""
        return self._closing

    def close(self) -> None:
        """Close after the written data; `connection_lost(None)` follows."""
        if self._closing:
            return
        self._closing = True
        self._reading = False
        if not self._buffer:
            self._lose(None)

    def abort(self) -> None:
        """Close at once and drop data that was not sent."""
        self._force_close(None)

    def _fatal_error(self, error: BaseException, message: str = "Fatal error on transport") -> None:
        if not isinstance(error, OSError):
            self._sim_loop.call_exception_handler(
                {"message": message, "exception": error, "transport": self, "protocol": self._protocol}
            )
        self._force_close(error)

    def _force_close(self, error: BaseException | None) -> None:
        if self._lost:
            return
        self._buffer.clear()
        self._closing = True
        self._reading = False
        self._lose(error)

    def _lose(self, error: BaseException | None) -> None:
        self._lost = True
        self._sim_loop.call_soon(self._connection_lost, error)

    def _connection_lost(self, error: BaseException | None) -> None:
        try:
            self._protocol.connection_lost(error)
        finally:
            if self._endpoint.process.effect():
                self._endpoint.close()
            self._endpoint.transport = None
            self._protocol = None
            server, self._server = self._server, None
            if server is not None:
                if sys.version_info >= (3, 13):
                    server._detach(self)
                else:
                    server._detach()


def _set_unless_done(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
