"""Client of the DLedger protocol (DLedgerClient): append, get, metadata against a group of nodes.

```python
async with DLedgerClient(env, {"n0": "127.0.0.1:40911", ...}) as client:
    index = await client.append(b"hello")
    print((await client.get(index)).body)
```
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from dledger.links import PeerConnection, split_address
from dledger.messages import Code
from dledger.wire import CLIENT_REQUEST, CLIENT_RESPONSE, ERROR, HELLO, Frame, WireError, encode_frame
from runtime import Env

MAX_FRAME = 64 * 1024 * 1024
RETRY_PAUSE_S = 0.02


class RequestFailed(Exception):
    """The group answered with another code than SUCCESS, or nobody answered in time."""

    def __init__(self, text: str, code: Code | None = None) -> None:
        super().__init__(text)
        self.code = code


class _Lost(OSError):
    """The connection ended after a request was sent."""


@dataclass(frozen=True)
class Entry:
    """A committed entry."""

    index: int
    term: int
    pos: int
    kind: int
    body: bytes


@dataclass(frozen=True)
class _Answer:
    header: Mapping[str, Any]
    payload: bytes


class DLedgerClient:
    """Finds the leader by asking, follows its hints, retries until the deadline of each call.

    An append whose connection broke may have been stored: it is not sent again by itself.
    """

    def __init__(self, env: Env, peers: Mapping[str, str], timeout_s: float = 3.0) -> None:
        self._env = env
        self._addresses = [peers[node] for node in sorted(peers)]
        self._leader: str | None = None
        self._timeout_s = timeout_s
        self._connections: dict[str, PeerConnection] = {}
        self._waiting: dict[int, asyncio.Future[_Answer]] = {}
        self._owners: dict[int, PeerConnection] = {}
        self._next_id = 0

    async def __aenter__(self) -> DLedgerClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for connection in self._connections.values():
            connection.close()

    async def append(self, body: bytes) -> int:
        """Append to the group's log; its index once it is committed."""
        answer = await self._to_leader({"op": "append"}, body)
        return int(answer.header["index"])

    async def get(self, index: int) -> Entry:
        """One committed entry, read from the leader."""
        answer = await self._to_leader({"op": "get", "index": index}, b"")
        header = answer.header
        return Entry(header["index"], header["term"], header["pos"], header["kind"], answer.payload)

    async def metadata(self, address: str) -> dict[str, Any]:
        """Status of the node at an address."""
        async with asyncio.timeout(self._timeout_s):
            answer = await self._ask(address, {"op": "metadata"}, b"")
        return dict(answer.header["status"])

    async def delete_before(self, address: str, index: int) -> int:
        """Ask the node at an address to let its log begin as near before `index` as whole segments and
        snapshots allow. First index at the time of the answer: it goes on in the background."""
        async with asyncio.timeout(self._timeout_s):
            answer = await self._ask(address, {"op": "delete_before", "index": index}, b"")
        if answer.header["code"] != Code.SUCCESS:
            raise RequestFailed(str(answer.header.get("text")), Code(answer.header["code"]))
        return int(answer.header["first"])

    async def _to_leader(self, request: dict[str, Any], payload: bytes) -> _Answer:
        last = "nobody was asked"
        try:
            async with asyncio.timeout(self._timeout_s):
                place = 0
                while True:
                    address = self._leader or self._addresses[place % len(self._addresses)]
                    place += 1
                    try:
                        answer = await self._ask(address, request, payload)
                    except _Lost as error:
                        raise RequestFailed(f"{address}: {error}: the outcome is unknown") from error
                    except OSError as error:
                        last = f"{address}: {error}"
                        self._leader = None
                    else:
                        code = Code(answer.header["code"])
                        if code is Code.SUCCESS:
                            self._leader = address
                            return answer
                        if code is not Code.NOT_LEADER:
                            raise RequestFailed(str(answer.header.get("text") or code.name), code)
                        last = f"{address} does not lead"
                        self._leader = answer.header.get("address")
                    await asyncio.sleep(RETRY_PAUSE_S)
        except TimeoutError as error:
            raise RequestFailed(
                f"no answer from a leader within {self._timeout_s} s; last: {last}"
            ) from error

    async def _ask(self, address: str, request: dict[str, Any], payload: bytes) -> _Answer:
        connection = await self._connect(address)
        self._next_id += 1
        number = self._next_id
        answer: asyncio.Future[_Answer] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        self._owners[number] = connection
        connection.send([encode_frame(CLIENT_REQUEST, {"id": number, **request}, len(payload)), payload])
        try:
            return await answer
        finally:
            self._waiting.pop(number, None)
            self._owners.pop(number, None)

    async def _connect(self, address: str) -> PeerConnection:
        connection = self._connections.get(address)
        if connection is not None and not connection.closed:
            return connection
        host, port = split_address(address)
        _, connection = await asyncio.get_running_loop().create_connection(
            lambda: PeerConnection(self._on_frame, self._on_lost, MAX_FRAME, dialled=address), host, port
        )
        connection.send_frame(HELLO, {"client": True})
        self._connections[address] = connection
        return connection

    def _on_frame(self, connection: PeerConnection, frame: Frame) -> None:
        if frame.number == CLIENT_RESPONSE and isinstance(frame.header, dict):
            future = self._waiting.get(frame.header.get("id", -1))
            if future is not None and not future.done():
                future.set_result(_Answer(frame.header, bytes(frame.payload)))
        elif frame.number == ERROR:
            connection.close(str(frame.header))
        elif frame.number != HELLO:
            raise WireError(f"unexpected frame type {frame.number}")

    def _on_lost(self, connection: PeerConnection) -> None:
        for number in [number for number, owner in self._owners.items() if owner is connection]:
            future = self._waiting.get(number)
            if future is not None and not future.done():
                future.set_exception(_Lost(connection.error or "connection lost"))
