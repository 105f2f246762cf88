"""Server side of the DLedger client protocol (DLedgerClientProtocol): append, get, metadata, transfer.

Requests are frames of type 64 with a map {"id", "op", ...} and an optional payload, answers of type 65 with
{"id", "code", ...}. Bodies appended here become records of the reserved topic (kind RAW): the broker above
ignores them.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any

from dledger.links import PeerConnection
from dledger.messages import Code
from dledger.wire import CLIENT_RESPONSE, Frame, WireError, encode_frame
from formats.entry import HEADER_SIZE, Kind, unpack_header
from formats.record import CorruptRecord, decode_record

if TYPE_CHECKING:
    from dledger.node import Node

MAX_BODY = 4 * 1024 * 1024
"""Bytes of one appended body."""


class ClientRequests:
    """Handles requests of clients; waiting appends are completed by `committed`."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._waiting: deque[tuple[int, PeerConnection, int]] = deque()

    def handle(self, connection: PeerConnection, frame: Frame) -> None:
        """One request."""
        header = frame.header
        if not isinstance(header, dict) or not isinstance(header.get("id"), int):
            raise WireError("a request is a map with an id")
        number: int = header["id"]
        operation = header.get("op")
        if operation == "append":
            self._append(connection, number, bytes(frame.payload))
        elif operation == "get":
            self._get(connection, number, header.get("index"))
        elif operation == "metadata":
            self._answer(connection, number, Code.SUCCESS, status=self._node.status())
        elif operation == "delete_before" and isinstance(header.get("index"), int):
            self._node.snapshots.retainer.delete_before(header["index"])
            self._answer(connection, number, Code.SUCCESS, first=self._node.log.first_index)
        else:
            self._answer(
                connection,
                number,
                Code.UNEXPECTED_ARGUMENT,
                text=f"unknown operation {str(operation)[:64]!r}",
            )

    def committed(self, index: int) -> None:
        """Entries up to `index` are committed."""
        while self._waiting and self._waiting[0][0] <= index:
            entry, connection, number = self._waiting.popleft()
            self._answer(connection, number, Code.SUCCESS, index=entry, term=self._node.term)

    def stopped_serving(self) -> None:
        """Leadership ended: the outcome of waiting appends is unknown."""
        while self._waiting:
            _, connection, number = self._waiting.popleft()
            self._answer(connection, number, Code.TERM_CHANGED, text="outcome unknown: leadership ended")

    def _append(self, connection: PeerConnection, number: int, body: bytes) -> None:
        node = self._node
        appender = node.appender
        if appender is None:
            leader = node.leader_id
            address = node.config.peers.get(leader) if leader else None
            self._answer(connection, number, Code.NOT_LEADER, leader=leader, address=address)
        elif len(body) > MAX_BODY:
            text = f"body of {len(body)} bytes: at most {MAX_BODY}"
            self._answer(connection, number, Code.UNEXPECTED_ARGUMENT, text=text)
        elif not appender.room:
            self._answer(
                connection, number, Code.LEADER_PENDING_FULL, text="too much is uncommitted: try later"
            )
        else:
            index = appender.add_system(body, node.wall_ms(), Kind.RAW)
            self._waiting.append((index, connection, number))

    def _get(self, connection: PeerConnection, number: int, index: object) -> None:
        node = self._node
        if not isinstance(index, int) or not node.log.first_index <= index <= node.commit_index:
            text = f"committed entries are {node.log.first_index}..{node.commit_index}"
            self._answer(connection, number, Code.UNEXPECTED_ARGUMENT, text=text)
            return
        try:
            pos, size = node.log.locate(index)
        except KeyError:  # an install is replacing the log
            self._answer(connection, number, Code.UNEXPECTED_ARGUMENT, text=f"entry {index} is not here")
            return
        view = node.log.view(pos, size)
        if view is not None:
            self._answer_entry(connection, number, bytes(view))
            return
        node.log.read_later(pos, size).add_done_callback(
            lambda read: self._answer_read(connection, number, read)
        )

    def _answer_read(self, connection: PeerConnection, number: int, read: asyncio.Future[bytes]) -> None:
        if read.cancelled():
            return
        error = read.exception()
        if error is None:
            self._answer_entry(connection, number, read.result())
        else:
            self._answer(connection, number, Code.UNEXPECTED_ARGUMENT, text=f"cannot read: {error}")

    def _answer_entry(self, connection: PeerConnection, number: int, entry: bytes) -> None:
        header = unpack_header(entry)
        body = entry[HEADER_SIZE:]
        if header.kind == Kind.RAW:
            try:
                body = decode_record(body).body
            except CorruptRecord as error:
                self._answer(connection, number, Code.INCONSISTENT_STATE, text=str(error))
                return
        self._answer(
            connection,
            number,
            Code.SUCCESS,
            body,
            index=header.index,
            term=header.term,
            pos=header.pos,
            kind=header.kind,
        )

    def _answer(
        self, connection: PeerConnection, number: int, code: Code, payload: bytes = b"", **fields: Any
    ) -> None:
        header = {"id": number, "code": int(code), **fields}
        connection.send([encode_frame(CLIENT_RESPONSE, header, len(payload)), payload])
