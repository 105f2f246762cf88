"""Server side of the DLedger client protocol (DLedgerClientProtocol): append, get, read_index, metadata.

A request is a frame of type 64 with a map {"id", "op", ...} and an optional payload. Its answer is a frame of
type 65 with {"id", "code", ...}. Bodies that are appended with this protocol become records of the reserved
topic (kind RAW), which the broker ignores.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

from dledger.config import NodeConfig
from dledger.context.node_context import NodeContext
from dledger.errors import OUT_OF_MEANS
from dledger.formats.entry import HEADER_SIZE, CorruptEntry, Kind, unpack_header
from dledger.formats.record import CorruptRecord, decode_record, system_record_size
from dledger.log.index_units import ColdUnit
from dledger.log.reading import check_stored
from dledger.messages import Code
from dledger.node.member_requests import MemberRequests
from dledger.node.parts import NodeParts
from dledger.node.reads import ReadRefused
from dledger.node.status import NodeStatus
from dledger.peers.links import PeerConnection
from dledger.peers.wire import CLIENT_RESPONSE, MAX_BODY, Frame, WireError, encode_frame

MAX_TEXT = 1024
"""Limit, in characters, of the explanation in an answer; the rest is cut off."""
MAX_UNSENT = 256 * 1024 * 1024
"""Limit, in bytes and over all connections together, of entries that are being read from the disk for
clients, or that wait until clients receive them. Above it no further entry is read, and a client is asked to
repeat its request later."""
CHANGES = ("delete_before", "add", "promote", "remove", "prefer", "transfer")
"""Operations that change the group or its log, except appends, which are the purpose of a log."""
_REFUSALS = {
    Code.DISK_FULL: "the leader's disk is full: nothing was stored",
    Code.LEADER_PENDING_FULL: "too many bytes are uncommitted: try again later",
}
_NO_APPENDS = (
    "nothing was stored: this is the log of a broker group, which takes messages only. "
    "Send them to a broker's listenPort, or correct --peers"
)


def _max_body(config: NodeConfig) -> int:
    return min(MAX_BODY, config.max_entry_bytes - HEADER_SIZE - system_record_size(0))


class ClientRequests:
    """Handles requests of clients. `committed` answers the appends that wait for their commit."""

    def __init__(self, context: NodeContext, parts: NodeParts, status: NodeStatus) -> None:
        self._config = context.config
        self._log = context.log
        self._elector = context.elector
        self._replicator = context.replicator
        self._leadership = parts.leadership
        self._membership = parts.membership
        self._reads = parts.reads
        self._snapshots = parts.snapshots
        self._status = status
        self._sources = context.peers.sources
        self._unsent = context.peers.unsent
        self._read_now = 0
        """Number of bytes of entries that are being read from the disk for answers."""
        self._waiting: deque[tuple[int, PeerConnection, int]] = deque()
        self._members = MemberRequests(context, parts, self._answer, self._await_commit)

    def handle(self, connection: PeerConnection, frame: Frame) -> None:
        """Handle one request."""
        header = frame.header()
        if not isinstance(header, dict) or not isinstance(header.get("id"), int):
            raise WireError("a request must be a map with an id")
        number: int = header["id"]
        operation = header.get("op")
        if not isinstance(operation, str):  # nor looked at: a thousand lists in one another overflow str()
            raise WireError("a request must name its operation")
        if operation in CHANGES and not self._sources.admits(connection.host):
            self._sources.look()
            text = (
                f"{operation} changes the group: it is accepted only from this machine and from the "
                f"addresses of members, not from {connection.host}. Run it on the machine of a "
                "member, or add this address to peerAllowedSources of the nodes, or use TLS "
                "(tls.peer.*)"
            )
            self._answer(connection, number, Code.UNEXPECTED_ARGUMENT, text=text)
        elif operation == "append":
            self._append(connection, number, bytes(frame.payload))
        elif operation == "get":
            self._get(connection, number, header.get("index"), header.get("linearizable") is True)
        elif operation == "read_index":
            self._read_point(
                connection,
                number,
                lambda index: self._answer(connection, number, Code.SUCCESS, index=index),
            )
        elif operation == "metadata":
            self._answer(connection, number, Code.SUCCESS, status=self._status.report())
        elif operation == "delete_before" and isinstance(header.get("index"), int):
            self._snapshots.retainer.delete_before(header["index"])
            self._answer(connection, number, Code.SUCCESS, first=self._log.first_index)
        elif not self._members.handle(connection, number, header):
            self._answer(
                connection,
                number,
                Code.UNEXPECTED_ARGUMENT,
                text=f"unknown operation {operation[:64]!r}",
            )

    def committed(self, index: int) -> None:
        """Note that entries up to `index` are committed."""
        while self._waiting and self._waiting[0][0] <= index:
            entry, connection, number = self._waiting.popleft()
            self._answer(connection, number, Code.SUCCESS, index=entry, term=self._elector.term)

    def stopped_serving(self) -> None:
        """Note that leadership ended: for appends that wait, the outcome is unknown."""
        while self._waiting:
            _, connection, number = self._waiting.popleft()
            self._answer(connection, number, Code.TERM_CHANGED, text="outcome unknown: leadership ended")

    def _append(self, connection: PeerConnection, number: int, body: bytes) -> None:
        appender = self._leadership.appender
        if not self._config.client_appends:  # also said by followers: the leader would refuse it, too
            self._answer(connection, number, Code.UNEXPECTED_ARGUMENT, text=_NO_APPENDS)
        elif appender is None:
            leader = self._elector.leader_id
            address = self._membership.address(leader) if leader else None
            self._answer(connection, number, Code.NOT_LEADER, leader=leader, address=address)
        elif len(body) > (limit := _max_body(self._config)):
            text = f"the body has {len(body)} bytes; the limit is {limit}"
            self._answer(connection, number, Code.UNEXPECTED_ARGUMENT, text=text)
        elif (refusal := appender.refusal) is not None:
            self._answer(connection, number, refusal, text=_REFUSALS[refusal])
        else:
            index = appender.add_system(body, Kind.RAW)
            self._await_commit(index, connection, number)

    def _await_commit(self, index: int, connection: PeerConnection, number: int) -> None:
        self._waiting.append((index, connection, number))

    def _read_point(self, connection: PeerConnection, number: int, then: Callable[[int], None]) -> None:
        """Call `then` with a read point that is applied here. If there is none, answer the client that there
        is none."""

        def done(index: int | None) -> None:
            if index is None:
                text = f"no read point in time: {self._reads.why()}"
                self._answer(connection, number, Code.WAIT_QUORUM_ACK_TIMEOUT, text=text)
            else:
                then(index)

        try:
            self._reads.ask(self._config.read_timeout_s, done)
        except ReadRefused as error:
            self._answer(connection, number, Code.LEADER_PENDING_FULL, text=str(error))

    def _get(self, connection: PeerConnection, number: int, index: object, linearizable: bool) -> None:
        """Answer with an entry. A committed entry never changes, so a read point is needed only for the
        answer "not found"."""
        log, committed = self._log, self._replicator.commit_index
        if linearizable and isinstance(index, int) and index > committed:
            self._read_point(connection, number, lambda _: self._get(connection, number, index, False))
            return
        if not isinstance(index, int) or not log.first_index <= index <= committed:
            text = f"committed entries are {log.first_index}..{committed}"
            self._answer(connection, number, Code.UNEXPECTED_ARGUMENT, text=text)
            return
        try:
            pos, size = log.locate(index)
        except ColdUnit as cold:
            connection.hold()
            cold.fetched.add_done_callback(lambda read: self._get_again(connection, number, index, read))
            return
        except KeyError:
            log.note_damage(index, index)
        if index in log.faulty:
            self._answer_rotten(connection, number, index)
            return
        if self._unsent.bytes + self._read_now + size > MAX_UNSENT:
            text = (
                f"clients of this node have not read {self._unsent.bytes} bytes of responses: try again later"
            )
            self._answer(connection, number, Code.LEADER_PENDING_FULL, text=text)
            return
        view = log.view(pos, size)
        if view is not None:
            self._answer_entry(connection, number, index, bytes(view))
            return
        connection.hold()
        self._read_now += size
        log.read_later(pos, size).add_done_callback(
            lambda read: self._answer_read(connection, number, index, size, read)
        )

    def _get_again(
        self, connection: PeerConnection, number: int, index: int, fetched: asyncio.Future[None]
    ) -> None:
        connection.release()
        if not (fetched.cancelled() or connection.closed):
            self._get(connection, number, index, False)

    def _answer_rotten(self, connection: PeerConnection, number: int, index: int) -> None:
        text = f"entry {index} is corrupt on this node and waits for repair: try again later"
        self._answer(connection, number, Code.INCONSISTENT_STATE, text=text)

    def _answer_read(
        self, connection: PeerConnection, number: int, index: int, size: int, read: asyncio.Future[bytes]
    ) -> None:
        self._read_now -= size
        connection.release()
        if read.cancelled():
            return
        error = read.exception()
        if error is None:
            self._answer_entry(connection, number, index, read.result())
        elif isinstance(error, OSError) and error.errno in OUT_OF_MEANS:
            text = f"entry {index} cannot be read now: {error}: try again later"
            self._answer(connection, number, Code.INCONSISTENT_STATE, text=text)
        else:
            self._log.note_damage(index, index)
            self._answer_rotten(connection, number, index)

    def _answer_entry(self, connection: PeerConnection, number: int, index: int, entry: bytes) -> None:
        header = unpack_header(entry)
        try:
            check_stored(entry, index, index, header.pos, None)
        except CorruptEntry:
            self._log.note_damage(index, index)
            self._answer_rotten(connection, number, index)
            return
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
        if "text" in header:
            header["text"] = header["text"][:MAX_TEXT]  # it may repeat what a client sent, of any length
        connection.send([encode_frame(CLIENT_RESPONSE, header, len(payload)), payload])
