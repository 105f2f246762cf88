"""Finds out what answers at an address where no NameServer is, so that the error message can name it."""

from __future__ import annotations

import asyncio
from typing import cast

from dledger.formats.addresses import split_address
from dledger.remoting.client import RemotingClient
from dledger.remoting.codes import RequestCode, ResponseCode
from dledger.remoting.errors import RemotingError

ANSWER_TIMEOUT_S = 0.5
"""Time-out of each probe, in seconds."""
ENOUGH = 9
"""How many bytes of an answer are enough to recognise the protocol."""

HTTP_REQUEST = b"GET / HTTP/1.0\r\n\r\n"
PEER_HELLO = b"\x00\x00\x00\x0d\x00\x0b\x92\x00\x81\xa6client\xc3"
"""The first frame that a client of the log sends (`dledger.peers.wire`)."""


async def identify(remoting: RemotingClient, address: str) -> str | None:
    """Describe the server at an address where no NameServer answers; None if it is not recognised."""
    try:
        answer = await remoting.invoke(
            address, RequestCode.GET_BROKER_RUNTIME_INFO, timeout_s=ANSWER_TIMEOUT_S
        )
        if answer.code == ResponseCode.SUCCESS:
            return "the port of a broker (listenPort)"
    except RemotingError:
        pass  # a server of another protocol closes the connection, or sends nothing
    for question, recognise in ((HTTP_REQUEST, _is_http), (PEER_HELLO, _is_peer)):
        answered = await _ask(address, question)
        if answered.startswith(b"\x15\x03"):
            return "a port that speaks TLS"
        found = recognise(answered)
        if found is not None:
            return found
    return None


def _is_http(answer: bytes) -> str | None:
    return "a web port (HTTP: httpAddress of a broker, or a console)" if answer.startswith(b"HTTP/") else None


def _is_peer(answer: bytes) -> str | None:
    """Describe the port if the answer begins with a hello or an error message of the peer protocol, else
    None.

    A frame of that protocol is `u32 rest | u16 header | [number, ...]`.
    """
    head = answer[6:8]
    known = len(answer) > 8 and answer[:2] == b"\x00\x00" and head in (b"\x92\x00", b"\x92\x3f")
    return "the port that the brokers of a group use among themselves (dLegerPeers)" if known else None


async def _ask(address: str, question: bytes) -> bytes:
    """Send some bytes and return the first bytes of the answer; `b""` if there is no answer."""
    loop = asyncio.get_running_loop()
    host, port = split_address(address)
    try:
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            transport, protocol = await loop.create_connection(lambda: _FirstBytes(question), host, port)
            try:
                return await protocol.answer
            finally:
                transport.abort()
    except (OSError, TimeoutError):
        return b""


class _FirstBytes(asyncio.Protocol):
    def __init__(self, question: bytes) -> None:
        self.answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._question = question
        self._got = b""
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.write(self._question)

    def data_received(self, data: bytes) -> None:
        self._got += data
        if len(self._got) >= ENOUGH:
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.answer.done():
            self.answer.set_result(self._got)
