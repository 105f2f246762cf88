"""Decides whether a request may be served now (safety.md S24).

A request that needs the leader is served while this node serves as the leader. It waits up to 200 ms while
the term of this node opens. At another node it is forwarded to the leader (`broker.forwarding`). If no leader
is known, it waits up to a second for the election of one.

Requests of this project's client and of other brokers ask for a redirect instead. They are answered 14
SERVICE_NOT_AVAILABLE, which means "certainly not executed". The leader's address is in the field `leaderAddr`
and in the remark. No request is answered 12 FLUSH_SLAVE_TIMEOUT, because clients take it for success.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from dledger.broker.commit_log import CommitLogWriter
from dledger.broker.config import BrokerConfig, route_id
from dledger.broker.ports import Node
from dledger.host import Role
from dledger.node.reads import ReadRefused
from dledger.remoting.codes import ResponseCode
from dledger.remoting.commands import FLAG_REDIRECT, Request
from dledger.remoting.errors import RemotingError
from dledger.remoting.limits import REQUEST_OVERHEAD
from dledger.remoting.server import Connection
from dledger.runtime.live_settings import LiveSettings
from dledger.runtime.standstill import Standstill

LEADER_ADDR = "leaderAddr"
"""Header field of a refusal: the leader's address for clients. This project's client follows it at once."""

CONFIRM_S = 3.0
"""Longest time, in seconds, that the answer to a request which changes nothing waits for the confirmation of
a quorum."""
_Held = tuple[float, Connection, Request]
"""A request that waits: the loop time at which it is refused, its connection, and the request."""


class LeaderGate:
    """Holds the writer of the current leadership, if there is one, and the requests that wait for a
    leader."""

    def __init__(
        self, node: Node, settings: LiveSettings[BrokerConfig], standstill: Standstill | None = None
    ) -> None:
        """`standstill`: reports that the event loop stood still; requests that waited then are dropped."""
        self._node = node
        self._settings = settings
        self.writer: CommitLogWriter | None = None
        """Log writer of the current leadership. It is set exactly while this node serves."""
        self._opened: tuple[int, float] = (-1, 0.0)
        """Term of the last leadership, and the loop time at which it began to serve."""
        self.forward: Callable[[Connection, Request, str], bool] = lambda connection, request, address: False
        """Function that forwards a request to the leader at an address. It returns False if it cannot take
        more requests."""
        self._held: list[_Held] = []
        self._held_bytes = 0
        self._timer: asyncio.TimerHandle | None = None
        self.refused: int = 0
        """Number of requests answered 14 SERVICE_NOT_AVAILABLE since start."""
        self._standstill = standstill
        if standstill is not None:
            standstill.listeners.append(self._stood_still)

    def wait_or_refuse(self, connection: Connection, request: Request) -> None:
        """Handle a request that came while `writer` is None: keep it until the term opens, forward it to the
        leader, or refuse it."""
        if not connection.is_current():
            return  # it came before a standstill, so it may be late
        if self._node.role is Role.LEADER:
            self._hold(connection, request, self._settings.now.hold_while_opening_s)
        elif request.flag & FLAG_REDIRECT or not self._settings.now.forward_to_leader:
            self.refuse(connection, request)
        else:
            address = self.leader_address
            if address is None:
                self.wait_for_leader(connection, request)
            elif not self.forward(connection, request, address):
                self.refuse(connection, request)

    def wait_for_leader(self, connection: Connection, request: Request, lost: str | None = None) -> None:
        """Handle a request that was certainly not executed, also not by the earlier leader at the address
        `lost`. It goes to the next leader if one is elected soon."""
        if not connection.is_current():
            return
        if self._node.role is Role.LEADER or self.leader_address not in (None, lost):
            connection.again(request)
        else:
            self._hold(connection, request, self._settings.now.hold_while_electing_s)

    def confirm(self, connection: Connection, request: Request, then: Callable[[], None]) -> None:
        """Call `then` as soon as a quorum has confirmed that this node led when the request came. `then`
        answers that nothing needs to change. Without the confirmation, a leader that was cut off would answer
        from a state that its successor has changed. (A request that changes something needs no confirmation,
        because it waits for its commit.) If the quorum does not confirm in time, the request is refused or
        waits for a leader. Raises RemotingError with code 2 SYSTEM_BUSY if too many requests wait."""
        writer = self.writer

        def done(index: int | None) -> None:
            if index is not None and self.writer is writer is not None:
                then()
            elif self.writer is None:
                self.wait_or_refuse(connection, request)  # it may safely be handled again
            else:
                self.refuse(connection, request)

        try:
            self._node.ask_read_point(CONFIRM_S, done)
        except ReadRefused as error:
            raise RemotingError(ResponseCode.SYSTEM_BUSY, f"{error}: not executed") from error

    @property
    def serving_s(self) -> float:
        """Seconds since this leadership began to serve clients, or since the last standstill of the event
        loop if that was later. Only valid while `writer` is set."""
        return asyncio.get_running_loop().time() - self._opened[1]

    @property
    def leader_address(self) -> str | None:
        """Address for clients of the leader, if another node leads and its address is known; otherwise
        None."""
        leader = self._node.leader_id
        if leader is None or leader == self._settings.now.self_id:
            return None
        return self._node.peer_meta(leader).get("client_addr")

    @property
    def leader_route_id(self) -> int:
        """The brokerId of the present leader in routes that are older than its leadership; 0 if no other node
        leads."""
        leader = self._node.leader_id
        return 0 if leader is None or leader == self._settings.now.self_id else route_id(leader)

    def refuse(self, connection: Connection, request: Request) -> None:
        """Answer 14 SERVICE_NOT_AVAILABLE, with the leader's address if it is known."""
        self.refused += 1
        name = self._settings.now.broker_name
        address = self.leader_address
        if address is None:
            remark = f"{name}: this node does not lead, and no leader is known yet"
            connection.respond(request, ResponseCode.SERVICE_NOT_AVAILABLE, remark=remark)
            return
        remark = f"{name}: this node does not lead, the leader is {self._node.leader_id} at {address}"
        connection.respond(
            request, ResponseCode.SERVICE_NOT_AVAILABLE, ext={LEADER_ADDR: address}, remark=remark
        )

    def open(self, writer: CommitLogWriter) -> None:
        """Serve requests, because the term is open. Requests that waited come first."""
        self.writer = writer
        if writer.term != self._opened[0]:  # after a failed hand-over the same leadership continues
            self._opened = (writer.term, asyncio.get_running_loop().time())
        for _, connection, request in self._take_held():
            connection.again(request)

    def pause(self) -> None:
        """Let requests wait while leadership is handed over, until `open` is called (it failed) or `close`
        (it succeeded)."""
        self.writer = None

    def close(self) -> None:
        """Called when this node no longer leads, did not win an election, or learns of another leader.
        Requests that wait are redirected, or forwarded to the leader. If no leader is known, they wait for
        one until their time is over."""
        self.writer = None
        address = self.leader_address
        for held in self._take_held():
            _, connection, request = held
            if request.flag & FLAG_REDIRECT or not self._settings.now.forward_to_leader:
                self.refuse(connection, request)
            elif address is None:
                self._keep(held)
            elif not self.forward(connection, request, address):
                self.refuse(connection, request)

    def _hold(self, connection: Connection, request: Request, seconds: float) -> None:
        if self._held_bytes + _cost(request) > self._settings.now.hold_while_opening_bytes:
            self.refuse(connection, request)
        else:
            self._keep((asyncio.get_running_loop().time() + seconds, connection, request))

    def _keep(self, held: _Held) -> None:
        self._held.append(held)
        self._held_bytes += _cost(held[2])
        if self._timer is None or held[0] < self._timer.when():
            self._set_timer(held[0])

    def _set_timer(self, when: float | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if when is None else asyncio.get_running_loop().call_at(when, self._expire)

    def _take_held(self) -> list[_Held]:
        if self._standstill is not None:
            self._standstill.check()
        return self._forget_held()

    def _stood_still(self, paused_s: float) -> None:
        self._forget_held()
        self._opened = (self._opened[0], asyncio.get_running_loop().time())  # all connections were closed

    def _forget_held(self) -> list[_Held]:
        held, self._held = self._held, []
        self._held_bytes = 0
        self._set_timer(None)
        return held

    def _expire(self) -> None:
        self._timer = None
        now = asyncio.get_running_loop().time()
        for held in self._take_held():
            if held[0] <= now:
                self.refuse(held[1], held[2])
            else:
                self._keep(held)


def _cost(request: Request) -> int:
    return len(request.body) + REQUEST_OVERHEAD
