"""Who may be served now (safety.md S24).

A request that needs the leader passes while this node serves; waits up to 200 ms while its term opens;
and is otherwise answered 14, which means "certainly not executed", with the leader's address in the field
`leaderAddr` and in the remark. Never 12: clients take that for success.
"""

from __future__ import annotations

import asyncio
from collections import deque

from dledger.broker.commit_log import CommitLogWriter
from dledger.broker.config import BrokerConfig
from dledger.broker.ports import Node
from dledger.host import Role
from dledger.remoting.codes import ResponseCode
from dledger.remoting.commands import Request
from dledger.remoting.limits import REQUEST_OVERHEAD
from dledger.remoting.server import Connection
from dledger.runtime.live_settings import LiveSettings

LEADER_ADDR = "leaderAddr"
"""Header field of a refusal: where the leader listens for clients. Our client follows it at once."""


class LeaderGate:
    """Holds the writer of the current leadership, if there is one, and what waits for it."""

    def __init__(self, node: Node, settings: LiveSettings[BrokerConfig]) -> None:
        self._node = node
        self._settings = settings
        self.writer: CommitLogWriter | None = None
        """Not None exactly while this node serves."""
        self._held: deque[tuple[float, Connection, Request]] = deque()
        self._held_bytes = 0
        self._timer: asyncio.TimerHandle | None = None
        self.refused = 0
        """Requests answered 14 since start."""

    def wait_or_refuse(self, connection: Connection, request: Request) -> None:
        """For a request that came while `writer` is None: it is handled again when the term opens."""
        if self._node.role is not Role.LEADER:
            self.refuse(connection, request)
            return
        size = _cost(request)
        if self._held_bytes + size > self._settings.now.hold_while_opening_bytes:
            self.refuse(connection, request)
            return
        loop = asyncio.get_running_loop()
        self._held.append((loop.time() + self._settings.now.hold_while_opening_s, connection, request))
        self._held_bytes += size
        if self._timer is None:
            self._timer = loop.call_at(self._held[0][0], self._expire)

    def refuse(self, connection: Connection, request: Request) -> None:
        """Answer 14 with what is known of the leader."""
        self.refused += 1
        config = self._settings.now
        leader = self._node.leader_id
        address = None
        if leader is not None and leader != config.self_id:
            address = self._node.peer_meta(leader).get("client_addr")
        if address is None:
            remark = f"{config.broker_name}: this node does not lead, and no leader is known yet"
            connection.respond(request, ResponseCode.SERVICE_NOT_AVAILABLE, remark=remark)
            return
        remark = f"{config.broker_name}: this node does not lead, the leader is {leader} at {address}"
        connection.respond(
            request, ResponseCode.SERVICE_NOT_AVAILABLE, ext={LEADER_ADDR: address}, remark=remark
        )

    def open(self, writer: CommitLogWriter) -> None:
        """The term is open: serve, first those who waited."""
        self.writer = writer
        held = self._take_held()
        for _, connection, request in held:
            connection.again(request)

    def pause(self) -> None:
        """A hand-over begins: hold what comes, until `open` (it failed) or `close` (it worked)."""
        self.writer = None

    def close(self) -> None:
        """Leadership ended, or was not reached."""
        self.writer = None
        for _, connection, request in self._take_held():
            self.refuse(connection, request)

    def _take_held(self) -> deque[tuple[float, Connection, Request]]:
        held, self._held = self._held, deque()
        self._held_bytes = 0
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        return held

    def _expire(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = None
        now = loop.time()
        while self._held and self._held[0][0] <= now:
            _, connection, request = self._held.popleft()
            self._held_bytes -= _cost(request)
            self.refuse(connection, request)
        if self._held:
            self._timer = loop.call_at(self._held[0][0], self._expire)


def _cost(request: Request) -> int:
    return len(request.body) + REQUEST_OVERHEAD
