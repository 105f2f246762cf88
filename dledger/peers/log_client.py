"""Client of the DLedger protocol (DLedgerClient): append, get, metadata, members, leadership transfer.

```python
async with DLedgerClient(env, {"n0": "127.0.0.1:40911", ...}) as client:
    index = await client.append(b"hello")
    print((await client.get(index)).body)
```
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Any

from dledger.messages import Code
from dledger.peers.dialling import Dialler
from dledger.peers.links import PeerConnection
from dledger.peers.outbox import Parts
from dledger.peers.wire import (
    CLIENT_REQUEST,
    CLIENT_RESPONSE,
    ERROR,
    HELLO,
    MAX_BODY,
    Frame,
    WireError,
    encode_frame,
)
from dledger.runtime import Env
from dledger.runtime.tls import PeerTls

MAX_FRAME = 64 * 1024 * 1024
RETRY_PAUSE_S = 0.02
DIAL_S = 1.0
"""Time, in seconds, to wait for a connection to an address, and then again for its hello, before the client
asks the next address. Each wait is at most a third of the client's time-out."""
MAX_KNOWN = 128
"""Largest number of addresses that a client remembers."""
_UNKNOWN = "the outcome is unknown"


class RequestFailed(Exception):
    """The group answered with a code other than SUCCESS, or there was no answer in time.

    `code` is None if there was no answer. If a request had been sent, it may have been executed, or may be
    executed later; the text then ends with `the outcome is unknown`, unless the request only reads.
    """

    def __init__(self, text: str, code: Code | None = None) -> None:
        super().__init__(text)
        self.code = code


class _Refused(OSError):
    """The node refused the connection and gave a reason; no request was sent."""


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
    """Sends requests to the leader of a group. It finds the leader by asking the nodes, follows their hints,
    and retries until the time-out of each call.

    If the connection breaks during an append, or no answer comes in time, the entry may have been stored, or
    may be stored later. The append is not sent again automatically. A request is sent only after the node's
    hello has come. So if a node refuses a connection, or closes it before the hello, no request was sent.
    """

    def __init__(
        self,
        env: Env,
        peers: Mapping[str, str],
        timeout_s: float = 3.0,
        *,
        group: str | None = None,
        tls: PeerTls | None = None,
    ) -> None:
        """`group` must be given if several groups share a port. `tls` must be given if the peers use TLS."""
        self._env = env
        self._hello = {"client": True} if group is None else {"client": True, "group": group}
        self._tls = tls
        self._addresses = [peers[node] for node in sorted(peers)]
        self._leader: str | None = None
        self._timeout_s = timeout_s
        self._connections: dict[str, PeerConnection] = {}
        self._dials: dict[str, asyncio.Task[PeerConnection]] = {}
        """Connection attempts in flight; all callers that need an address wait for the same one."""
        self._waiting: dict[int, asyncio.Future[_Answer]] = {}
        self._owners: dict[int, PeerConnection] = {}
        self._next_id = 0
        self._place = 0
        """Position of the address that was asked last while no leader was known; the next address comes after
        it."""

    async def __aenter__(self) -> DLedgerClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        dials = list(self._dials.values())
        for dial in dials:
            dial.cancel()
        await asyncio.gather(*dials, return_exceptions=True)
        for connection in self._connections.values():
            connection.close()

    async def append(self, body: bytes) -> int:
        """Append to the group's log, at most MAX_BODY bytes. Return the index once the entry is committed."""
        if len(body) > MAX_BODY:  # nor sent: a frame above a node's limit ends the connection
            text = f"the body has {len(body)} bytes; the limit is {MAX_BODY}"
            raise RequestFailed(text, Code.UNEXPECTED_ARGUMENT)
        answer = await self._to_leader({"op": "append"}, body)
        return int(answer.header["index"])

    async def get(self, index: int, address: str | None = None, *, linearizable: bool = True) -> Entry:
        """Read one committed entry from the leader, or from the node at `address`, which need not be the
        leader.

        A committed entry never changes, so an entry that is found is always right. With `linearizable`, "not
        found" means that the entry was not committed when this call began; otherwise only that the asked node
        does not know it. With `linearizable` a node needs a majority, and fails with WAIT_QUORUM_ACK_TIMEOUT
        if it reaches none. Raises OSError or TimeoutError if no node answers at `address`.
        """
        answer = await self._read(address, {"op": "get", "index": index, "linearizable": linearizable})
        header = answer.header
        return Entry(header["index"], header["term"], header["pos"], header["kind"], answer.payload)

    async def read_index(self, address: str | None = None) -> int:
        """Return an index that is not lower than that of any entry acknowledged before this call (ReadIndex).
        The node that answers has applied it. This is the node at `address`, which need not be the leader, or
        without `address` the leader. Raises the same errors as `get`.
        """
        return int((await self._read(address, {"op": "read_index"})).header["index"])

    async def metadata(self, address: str) -> dict[str, Any]:
        """Return the status of the node at an address."""
        async with asyncio.timeout(self._timeout_s):
            answer = await self._ask(address, {"op": "metadata"}, b"")
        return dict(answer.header["status"])

    # Members. RequestFailed with code CONFIG_PENDING: another change is not committed yet, try again;
    # CONFIG_REFUSED, UNKNOWN_MEMBER, UNEXPECTED_ARGUMENT: the text says why it cannot be done.

    async def members(self) -> dict[str, Any]:
        """Return the members as the leader knows them. The keys are `members` (a list of maps), `preferred`,
        `config_index`, `pending` and `term`."""
        answer = await self._to_leader({"op": "members"}, b"", again=True)
        return {name: value for name, value in answer.header.items() if name not in ("id", "code")}

    async def add_member(self, node: str, address: str, *, stays: bool = False) -> int:
        """Add a learner. The group makes it a voter when it has caught up, unless `stays` is set. Return the
        index of the configuration entry."""
        request = {"op": "add", "node": node, "address": address, "stays": stays}
        return int((await self._to_leader(request, b"")).header["index"])

    async def promote_member(self, node: str) -> int:
        """Promote a learner to a voter; the learner must have caught up. Return the index of the
        configuration entry."""
        return int((await self._to_leader({"op": "promote", "node": node}, b"")).header["index"])

    async def remove_member(self, node: str, *, force: bool = False) -> int:
        """Remove a member. If it is the leader, it first transfers leadership. Return the index of the
        configuration entry.

        With `force` the removal is also allowed without a live majority, and although some other members may
        have programs that cannot read the change."""
        request = {"op": "remove", "node": node, "force": force}
        return int((await self._to_leader(request, b"")).header["index"])

    async def prefer(self, nodes: Sequence[str] | None) -> int:
        """Set the preferred leaders. A leader that is not among them hands over to the first of them that is
        healthy. An empty sequence means no preference. None means that each node's own setting decides.
        Return the index of the entry."""
        request = {"op": "prefer", "nodes": None if nodes is None else list(nodes)}
        return int((await self._to_leader(request, b"")).header["index"])

    async def transfer(self, node: str | None = None) -> str:
        """Transfer leadership to a node, or without `node` to the most advanced one. Return the new leader,
        which may be a different node. Raises RequestFailed with code TERM_CHANGED if the new leader is not
        known yet."""
        return str((await self._to_leader({"op": "transfer", "node": node}, b"")).header["leader"])

    async def delete_before(self, address: str, index: int) -> int:
        """Ask the node at an address to remove entries before `index`, as far as whole segments and snapshots
        allow. Return the first index of its log at the time of the answer; removal continues in the
        background."""
        answer = await self._to_node(address, {"op": "delete_before", "index": index})
        return int(answer.header["first"])

    async def _read(self, address: str | None, request: dict[str, Any]) -> _Answer:
        """Ask the node at an address, or the leader if `address` is None."""
        if address is None:
            return await self._to_leader(request, b"", again=True)
        return await self._to_node(address, request)

    async def _to_node(self, address: str, request: dict[str, Any]) -> _Answer:
        async with asyncio.timeout(self._timeout_s):
            answer = await self._ask(address, request, b"")
        code = Code(answer.header["code"])
        if code is not Code.SUCCESS:
            raise RequestFailed(str(answer.header.get("text") or code.name), code)
        return answer

    async def _to_leader(self, request: dict[str, Any], payload: bytes, *, again: bool = False) -> _Answer:
        """Send a request to the leader. `again` says that repeating the request does no harm; then the
        request is sent again if the answer is lost."""
        number, frame = self._encode(request, payload)
        last = "no node was asked"
        address = ""
        waits = False
        try:
            async with asyncio.timeout(self._timeout_s):
                while True:
                    address = self._leader or self._next_address()
                    try:
                        connection = await self._open(address)
                        waits = True
                        answer = await self._exchange(connection, number, [frame, payload])
                    except OSError as error:
                        if isinstance(error, _Lost) and not again:
                            raise RequestFailed(f"{address}: {error}: {_UNKNOWN}") from error
                        last = f"{address}: {str(error) or 'no connection in time'}"
                        self._leader = None
                    else:
                        code = Code(answer.header["code"])
                        if code is Code.SUCCESS:
                            self._leader = address
                            return answer
                        if code is Code.WAIT_QUORUM_ACK_TIMEOUT and again:
                            last = f"{address}: {answer.header.get('text')}"
                            self._leader = None  # it may be cut off, and another node may know
                            waits = False
                            continue
                        if code is not Code.NOT_LEADER:
                            raise RequestFailed(str(answer.header.get("text") or code.name), code)
                        last = f"{address} does not lead"
                        self._leader = answer.header.get("address")
                    waits = False
                    await asyncio.sleep(RETRY_PAUSE_S)
        except TimeoutError as error:
            self._give_up(address)
            if waits:  # a request that was sent may have been executed, or may still be
                last = f"{address} was asked and has not answered in time" + (
                    "" if again else f": {_UNKNOWN}"
                )
            raise RequestFailed(
                f"no answer from a leader within {self._timeout_s} s; last: {last}"
            ) from error

    def _next_address(self) -> str:
        self._place += 1
        return self._addresses[self._place % len(self._addresses)]

    def _give_up(self, address: str) -> None:
        """Forget a silent node as the leader, and drop its connection unless other requests use it."""
        if self._leader == address:
            self._leader = None
        connection = self._connections.get(address)
        if connection is not None and connection not in self._owners.values():
            connection.abort()

    async def _ask(self, address: str, request: dict[str, Any], payload: bytes) -> _Answer:
        number, frame = self._encode(request, payload)
        return await self._exchange(await self._open(address), number, [frame, payload])

    def _encode(self, request: dict[str, Any], payload: bytes) -> tuple[int, bytes]:
        """Return the number of a request, by which its answer is recognised, and its frame."""
        self._next_id += 1
        try:
            frame = encode_frame(CLIENT_REQUEST, {"id": self._next_id, **request}, len(payload))
        except (ValueError, OverflowError) as error:  # text or a number that the protocol cannot carry
            raise RequestFailed(
                f"this request cannot be encoded: {error}", Code.UNEXPECTED_ARGUMENT
            ) from error
        return self._next_id, frame

    async def _open(self, address: str) -> PeerConnection:
        connection = await self._connect(address)
        if connection.closed:  # since it was made
            raise ConnectionResetError(connection.error or "connection lost")
        return connection

    async def _exchange(self, connection: PeerConnection, number: int, parts: Parts) -> _Answer:
        """Send a request at once, before this coroutine waits for anything. Return the answer."""
        answer: asyncio.Future[_Answer] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        self._owners[number] = connection
        connection.send(parts)
        try:
            return await answer
        finally:
            self._waiting.pop(number, None)
            self._owners.pop(number, None)

    async def _connect(self, address: str) -> PeerConnection:
        connection = self._connections.get(address)
        if connection is not None and not connection.closed:
            return connection
        dial = self._dials.get(address)
        if dial is None:
            dial = asyncio.get_running_loop().create_task(self._dial(address), name=f"dial-{address}")
            self._dials[address] = dial
            dial.add_done_callback(partial(self._dialled, address))
        return await asyncio.shield(dial)

    def _dialled(self, address: str, dial: asyncio.Task[PeerConnection]) -> None:
        del self._dials[address]
        if not dial.cancelled():
            dial.exception()  # mark it as read: waiters got it, or were cancelled

    async def _dial(self, address: str) -> PeerConnection:
        patience_s = min(DIAL_S, self._timeout_s / 3)
        dialler = Dialler(address, self._tls, patience_s)
        connection = await dialler.connect(
            lambda: PeerConnection(self._on_frame, self._on_lost, MAX_FRAME, dialled=address)
        )
        try:
            connection.send_frame(HELLO, self._hello)
            async with asyncio.timeout(patience_s):
                await connection.ready
            self._connections[address] = connection
        except TimeoutError as error:
            raise OSError(f"no hello within {patience_s:.1f} s") from error
        except ConnectionError as error:
            hint = "" if self._tls is not None else " (does it ask for TLS?)"
            raise OSError(f"the connection ended before a hello{hint}") from error
        finally:
            if self._connections.get(address) is not connection:
                connection.abort()
        return connection

    def _on_frame(self, connection: PeerConnection, frame: Frame) -> None:
        header = frame.header()
        if frame.number == CLIENT_RESPONSE and isinstance(header, dict):
            future = self._waiting.get(header.get("id", -1))
            if future is not None and not future.done():
                future.set_result(_Answer(header, bytes(frame.payload)))
        elif frame.number == ERROR:
            if not connection.ready.done():
                connection.ready.set_exception(_Refused(str(header)))
            connection.close(str(header))
        elif frame.number == HELLO:
            self._learn(header)
            if not connection.ready.done():
                connection.ready.set_result(None)
        else:
            raise WireError(f"unexpected frame type {frame.number}")

    def _learn(self, hello: object) -> None:
        """Learn the addresses of members that are not among those that this client was given."""
        addresses = hello.get("addresses") if isinstance(hello, dict) else None
        for address in addresses.values() if isinstance(addresses, dict) else ():
            if (
                isinstance(address, str)
                and address not in self._addresses
                and len(self._addresses) < MAX_KNOWN
            ):
                self._addresses.append(address)

    def _on_lost(self, connection: PeerConnection) -> None:
        for number in [number for number, owner in self._owners.items() if owner is connection]:
            future = self._waiting.get(number)
            if future is not None and not future.done():
                future.set_exception(_Lost(connection.error or "connection lost"))
