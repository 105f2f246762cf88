"""The client side: one connection per address, with many requests in flight, whose answers are matched by
opaque.

A connection is made at its first use; requests made meanwhile wait for it. When it is lost, all its requests
fail at once, and the next use connects again. Requests that are made in one turn of the loop are sent in one
write.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any

from dledger.remoting.codes import LanguageCode, ResponseCode
from dledger.remoting.commands import (
    FLAG_FORWARDED,
    FLAG_ONEWAY,
    FLAG_REDIRECT,
    Request,
    Response,
    SerializeType,
)
from dledger.remoting.errors import ConnectFailed, FrameError, RemotingError
from dledger.remoting.frames import Fields, encode_request, fields_of
from dledger.remoting.limits import ClientLimits
from dledger.remoting.link import Link, OnDone
from dledger.remoting.signing import Credentials
from dledger.runtime.env import Env

if TYPE_CHECKING:
    from ssl import SSLContext

__all__ = ["Answered", "ClientHandler", "ClientLimits", "OnDone", "RemotingClient"]

Answered = Response | Coroutine[Any, Any, Response] | None
"""What a handler returns for a request that the peer sent: the answer, or a coroutine that returns the answer
later, or None if there is no answer."""
ClientHandler = Callable[[str, Request], Answered]
"""Handles a request that the peer at this address sent to us."""
MAX_ANSWERING = 16
"""Largest number of the peers' requests that are answered by coroutines at the same time; one more is refused
with SYSTEM_BUSY."""


class RemotingClient:
    """Sends requests to any address ("host:port"). `run` must be running, because it makes the connections
    and closes idle ones."""

    def __init__(
        self,
        env: Env,
        *,
        limits: ClientLimits | None = None,
        handlers: Mapping[int, ClientHandler] | None = None,
        on_connection_lost: Callable[[str], None] | None = None,
        serialize: SerializeType = SerializeType.JSON,
        redirect: bool = True,
        credentials: Credentials | None = None,
        tls: SSLContext | None = None,
    ) -> None:
        """With `redirect`, a broker that is not the leader answers with the leader's address; otherwise it
        forwards the request to the leader. `credentials` sign all requests. `tls` is used for all
        connections."""
        self.limits: ClientLimits = limits or ClientLimits()
        self.late_responses = 0
        self.bad_frames: int = 0
        self._log = env.log.child("client")
        self._handlers = dict(handlers or {})
        self._on_connection_lost = on_connection_lost
        self._serialize = serialize
        self._flag = FLAG_REDIRECT if redirect else 0
        self._credentials = credentials
        self.tls = tls
        self._links: dict[str, Link] = {}
        self._to_dial: list[Link] = []
        self._tasks: asyncio.TaskGroup | None = None
        self._opaque = env.random.getrandbits(24)
        self._closed = False
        self._answering = 0

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The event loop on which the client is used."""
        return asyncio.get_running_loop()

    async def run(self) -> None:
        """Connect, and close idle connections, until cancelled. Requests made before it runs wait for it."""
        try:
            async with asyncio.TaskGroup() as tasks:
                self._tasks = tasks
                waiting, self._to_dial = self._to_dial, []
                for link in waiting:
                    self._dial(link)
                tasks.create_task(self._sweep(), name="client idle sweep")
        finally:
            self._tasks = None

    async def _sweep(self) -> None:
        """Close idle connections, until cancelled."""
        while True:
            await asyncio.sleep(self.limits.idle_sweep_s)
            now = self.loop.time()
            for link in [link for link in self._links.values() if link.idle(now)]:
                link.close("closed: idle")

    async def invoke(
        self,
        addr: str,
        code: int,
        header: Fields = None,
        body: bytes = b"",
        timeout_s: float = 3.0,
    ) -> Response:
        """Send a request and return its answer, whatever its code. Raises RemotingError if there is no
        answer."""
        future: asyncio.Future[Response] = self.loop.create_future()

        def done(result: Response | RemotingError) -> None:
            if future.done():
                return
            if isinstance(result, Response):
                future.set_result(result)
            else:
                future.set_exception(result)

        link, opaque = self._request(addr, code, header, body, timeout_s, done)
        try:
            return await future
        finally:
            link.forget(opaque)

    def invoke_nowait(
        self,
        addr: str,
        code: int,
        header: Fields,
        body: bytes,
        timeout_s: float,
        on_done: OnDone,
    ) -> None:
        """Send a request. `on_done` gets the answer or the error later, never before this call returns."""
        try:
            self._request(addr, code, header, body, timeout_s, on_done)
        except RemotingError as error:
            self.loop.call_soon(on_done, error)

    async def invoke_oneway(self, addr: str, code: int, header: Fields = None, body: bytes = b"") -> None:
        """Send a request that gets no answer. Returns when it is in the transport's buffer."""
        link = self._link(addr)
        self._opaque = opaque = (self._opaque + 1) & 0x7FFFFFFF
        flag = FLAG_ONEWAY | self._flag
        if self._credentials is not None:
            header = self._credentials.sign(fields_of(header), body)
        link.send(encode_request(code, opaque, header, len(body), flag, self._serialize), body)
        await link.wait_up()

    def forward(
        self, addr: str, request: Request, fields: Mapping[str, str], timeout_s: float, on_done: OnDone
    ) -> None:
        """Forward another client's request with these header fields, as `invoke_nowait` does. For a oneway
        request `on_done` is called only if it cannot be sent."""
        try:
            link = self._link(addr)
            self._opaque = opaque = (self._opaque + 1) & 0x7FFFFFFF
            frame = encode_request(
                request.code,
                opaque,
                fields,
                len(request.body),
                request.flag & FLAG_ONEWAY | FLAG_REDIRECT | FLAG_FORWARDED,
                language=LanguageCode.__members__.get(request.language, LanguageCode.OTHER),
                version=request.version,
            )
            if request.oneway:
                link.send(frame, request.body)
            else:
                link.request(opaque, request.code, frame, request.body, timeout_s, on_done)
        except RemotingError as error:
            self.loop.call_soon(on_done, error)

    async def close(self) -> None:
        """Close all connections. Requests in flight fail with ConnectionLost; later requests are refused."""
        self._closed = True
        for link in list(self._links.values()):
            link.close("this client was closed")

    def drop_unsent(self, reason: str) -> None:
        """Fail the requests that have not been sent, with ConnectFailed: they certainly were not executed."""
        for link in list(self._links.values()):
            link.drop_unsent(reason)

    def has_room(self, addr: str, size: int) -> bool:
        """Whether a request of this many bytes (without its header) would be accepted. Otherwise it would be
        refused with Overloaded."""
        link = self._links.get(addr)
        return link is None or link.has_room(size)

    def connected(self, addr: str) -> bool:
        """Whether there is a connection to this address now."""
        link = self._links.get(addr)
        return link is not None and link.is_up

    # --- inside ---------------------------------------------------------------------------------------

    def _request(
        self, addr: str, code: int, header: Fields, body: bytes, timeout_s: float, done: OnDone
    ) -> tuple[Link, int]:
        link = self._links.get(addr) or self._link(addr)
        self._opaque = opaque = (self._opaque + 1) & 0x7FFFFFFF
        if self._credentials is not None:
            header = self._credentials.sign(fields_of(header), body)
        frame = encode_request(code, opaque, header, len(body), self._flag, self._serialize)
        link.request(opaque, code, frame, body, timeout_s, done)
        return link, opaque

    def _link(self, addr: str) -> Link:
        if self._closed:
            raise ConnectFailed(f"{addr}: this client is closed")
        link = self._links.get(addr)
        if link is None:
            link = Link(self, addr)
            self._links[addr] = link
            self._dial(link)
        return link

    def _dial(self, link: Link) -> None:
        if self._tasks is None:
            self._to_dial.append(link)
        else:
            self._tasks.create_task(link.dial(), name=f"dial {link.address}")

    # --- for Link ------------------------------------------------------------------------------------

    def call(self, done: OnDone, result: Response | RemotingError) -> None:
        """Report a result to the caller of a request. An exception of its callback goes to the loop's
        exception handler."""
        try:
            done(result)
        except Exception as error:  # a failed request must not affect others
            self.report(error)

    def report(self, error: Exception) -> None:
        """Pass an error that belongs to no request to the loop's exception handler."""
        self.loop.call_exception_handler({"message": "failed in a remoting callback", "exception": error})

    def later(self, answer: Coroutine[Any, Any, Response], send: Callable[[Response], None]) -> None:
        """Run a coroutine and pass its answer to `send`."""
        if self._tasks is None or self._answering >= MAX_ANSWERING:
            answer.close()
            send(
                Response(
                    ResponseCode.SYSTEM_BUSY, remark=f"{self._answering} requests are already being answered"
                )
            )
            return
        self._answering += 1
        self._tasks.create_task(self._later(answer, send), name="answer a peer")

    async def _later(self, answer: Coroutine[Any, Any, Response], send: Callable[[Response], None]) -> None:
        try:
            response = await answer
        except Exception as error:  # a failed request must not affect others
            self.report(error)
            response = Response(ResponseCode.SYSTEM_ERROR, remark=f"{type(error).__name__}: {error}")
        finally:
            self._answering -= 1
        send(response)

    def handle(self, addr: str, request: Request) -> Answered:
        """Return our answer to a request of the peer."""
        handler = self._handlers.get(request.code)
        if handler is None:
            remark = f" request type {request.code} not supported"
            return Response(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark=remark)
        try:
            return handler(addr, request)
        except RemotingError as error:
            code = ResponseCode.SYSTEM_ERROR if error.code is None else error.code
            return Response(code, remark=error.remark)
        except Exception as error:  # a failed request must not affect others
            self.report(error)
            return Response(ResponseCode.SYSTEM_ERROR, remark=f"{type(error).__name__}: {error}")

    def drop(self, link: Link) -> None:
        """Forget a link that has ended, so that the next use of its address makes a new one."""
        if self._links.get(link.address) is link:
            del self._links[link.address]

    def lost(self, link: Link) -> None:
        """Report that an established connection was lost."""
        if self._on_connection_lost is not None:
            self._on_connection_lost(link.address)

    def bad_frame(self, addr: str, error: FrameError) -> None:
        """Count and log a bad frame of a peer."""
        self.bad_frames += 1
        self._log.warning("connection closed", peer=addr, reason=str(error))
