"""Forwarding of requests that only the leader can answer, by a follower, for clients that do not follow hints
to the leader.

An unmodified client sends to the leader's address in its last route, until it asks for routes again (30 s by
default, safety.md S30). If that broker is now a follower, the client may not notice that another broker
leads. Three rules keep forwarding safe:

* A forwarded request is never forwarded again: it asks to be redirected instead (FLAG_REDIRECT).
* The answer says what is known about the request (S24). If it certainly did not leave this broker, or was
  refused by a broker that does not lead either, it may wait for a leader or is answered 14
  SERVICE_NOT_AVAILABLE. If it left this broker and got no answer, it is answered 1 SYSTEM_ERROR, "outcome
  unknown". Pulls change nothing, so they are sent again.
* A record keeps the address of its client. The leader accepts that address only from members of its group,
  which add a proof (`broker.member_requests`). If a request is marked as forwarded but has no proof, it
  counts as a request of its sender. It may still be late, so the restrictions of forwarded requests apply to
  it.
"""

from __future__ import annotations

from collections.abc import Callable

from dledger.broker.leader_gate import LEADER_ADDR, LeaderGate
from dledger.broker.longpolling.suggestions import SUGGESTED, pull_fields, suggested_here
from dledger.broker.member_requests import MEMBER_PROOF, content_of, with_proof
from dledger.broker.ports import Node
from dledger.formats.addresses import split_address
from dledger.formats.message_ids import pack_ipv4_host
from dledger.remoting.client import RemotingClient
from dledger.remoting.codes import RequestCode, ResponseCode
from dledger.remoting.commands import FLAG_FORWARDED, Request, Response
from dledger.remoting.errors import BadHeader, ConnectFailed, Overloaded, RemotingError, TooLarge
from dledger.remoting.headers import PullMessageHeader
from dledger.remoting.limits import REQUEST_OVERHEAD
from dledger.remoting.server import Connection

FORWARDED_FOR = "forwardedFor"
"""Header field of a forwarded request. It holds the address of its client as "ip:port"."""
FORWARD_TIMEOUT_S = 60.0
"""Seconds to wait for an answer. It is the longest time that a pull may wait at the leader, plus the time of
the way there."""
ADDED_FIELDS = (FORWARDED_FOR, MEMBER_PROOF)
"""Header fields that a follower adds to a request that it forwards. The client has not signed them."""
MAX_FORWARDED = 16_384
"""Largest number of requests in flight to the leader. A further request is answered 14 SERVICE_NOT_AVAILABLE,
with the leader's address."""
MAX_FORWARDED_BYTES = 64 * 1024 * 1024
"""Limit, in bytes, of the bodies of all requests in flight to the leader. Beyond it, a further request is
answered 14 SERVICE_NOT_AVAILABLE, with the leader's address."""

_CHANGE_NOTHING = (
    RequestCode.PULL_MESSAGE,
    RequestCode.LITE_PULL_MESSAGE,
    RequestCode.QUERY_ASSIGNMENT,
    RequestCode.PEEK_MESSAGE,
    RequestCode.NOTIFICATION,
    RequestCode.POP_MESSAGE,
    RequestCode.ACK_MESSAGE,
    RequestCode.BATCH_ACK_MESSAGE,
)
"""Requests that are sent again when the leader is lost, because otherwise their consumers would pause for 3
s. A repeated acknowledgement of a popped message changes nothing. If the answer to a pop is lost, its
messages are delivered again later, to any consumer that asks."""


class _Forwarded:
    """One forwarded request that is in flight."""

    __slots__ = ("address", "connection", "done", "request", "size")

    def __init__(self, connection: Connection, request: Request, address: str) -> None:
        self.connection = connection
        self.request = request
        self.address = address
        self.size = len(request.body) + REQUEST_OVERHEAD
        self.done = False


class Forwarder:
    """Forwards requests to the leader, and passes its answers on."""

    def __init__(self, node: Node, gate: LeaderGate, client: RemotingClient) -> None:
        self._node = node
        self._gate = gate
        self._client = client
        self._under_way: dict[int, _Forwarded] = {}
        self._serial = 0
        self._bytes = 0
        self.forwarded: int = 0
        """Number of requests forwarded since start."""

    def __len__(self) -> int:
        return len(self._under_way)

    def start(self, connection: Connection, request: Request, address: str) -> bool:
        """Forward a request to the leader at `address`. Returns False if too many are in flight."""
        item = _Forwarded(connection, request, address)
        if len(self._under_way) >= MAX_FORWARDED or self._bytes + item.size > MAX_FORWARDED_BYTES:
            return False
        try:
            fields = forwarded_fields(self._node, connection, request, address)
        except BadHeader as error:  # never raise: the caller may forward more requests (S29)
            connection.respond(request, ResponseCode.SYSTEM_ERROR, remark=error.remark)
            return True
        self._serial = serial = self._serial + 1
        self.forwarded += 1
        if not request.oneway:
            self._under_way[serial] = item
            self._bytes += item.size

        def answered(result: Response | RemotingError) -> None:
            self._answered(serial, item, result)

        self._client.forward(address, request, fields, FORWARD_TIMEOUT_S, answered)
        return True

    def leads(self, address: str | None) -> None:
        """Stop waiting for answers of earlier leaders. `address`: the broker that leads now; None if no
        leader is known."""
        for serial, item in list(self._under_way.items()):
            if item.address != address:
                # Without a successor this broker only knows that it heard nothing. If this broker itself was
                # stopped (SIGSTOP, a suspended machine), the leader may still lead.
                why = (
                    "this broker lost contact with the leader and does not know yet whether it still leads"
                    if address is None
                    else f"another broker leads now: {address}"
                )
                self._answered(serial, item, RemotingError(None, f"{item.address}: {why}"))

    def farewell(self) -> None:
        """Answer the pulls that wait at the leader, because this broker stops. The answer says that there is
        no message, and that the client should ask the leader. Some clients do not notice that the connection
        of a pull ends."""
        for serial, item in list(self._under_way.items()):
            if item.request.code not in (RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE):
                continue
            try:
                offset = item.request.header(PullMessageHeader).queueOffset
            except BadHeader:
                continue  # the leader will refuse it
            # A client that was advised to read here knows the leader; other clients took this broker for it.
            where = 0 if suggested_here(item.connection) else self._gate.leader_route_id
            self._over(serial, item)
            item.connection.respond(
                item.request,
                ResponseCode.PULL_NOT_FOUND,
                ext=pull_fields(where, offset, 0, offset),
                remark="this broker is stopping",
            )

    def _answered(self, serial: int, item: _Forwarded, result: Response | RemotingError) -> None:
        if item.done:
            return
        self._over(serial, item)
        connection, request = item.connection, item.request
        if isinstance(result, Response):
            if result.code == ResponseCode.SERVICE_NOT_AVAILABLE and LEADER_ADDR in result.ext:
                self._gate.wait_for_leader(connection, request, item.address)
                return
            ext = result.ext | {LEADER_ADDR: item.address}
            if SUGGESTED in ext and (here := suggested_here(connection)):
                ext[SUGGESTED] = str(here)
            connection.respond(request, result.code, ext=ext, body=result.body, remark=result.remark)
        elif request.oneway:
            return
        elif isinstance(result, (ConnectFailed, Overloaded, TooLarge)) or request.code in _CHANGE_NOTHING:
            self._gate.wait_for_leader(connection, request, item.address)
        else:
            remark = f"outcome unknown: the leader sent no response ({result.remark})"
            connection.respond(request, ResponseCode.SYSTEM_ERROR, remark=remark)

    def _over(self, serial: int, item: _Forwarded) -> None:
        item.done = True
        if self._under_way.pop(serial, None) is not None:
            self._bytes -= item.size


def forwarded_fields(node: Node, connection: Connection, request: Request, address: str) -> dict[str, str]:
    """Return the header fields of a forwarded request to the broker at `address`. Raises BadHeader if the
    header of the request cannot be read."""
    fields = request.ext() | {FORWARDED_FOR: connection.peer}
    return with_proof(node, address, request.code, fields, request.body, FLAG_FORWARDED)


class Origins:
    """Finds out where requests come from, including requests that members of the group forwarded."""

    def __init__(self, node: Node, older_ips: Callable[[], set[str]]) -> None:
        """`older_ips`: a function that returns the IP addresses of those brokers of the group whose programs
        are too old to make proofs."""
        self._node = node
        self._older_ips = older_ips

    def host(self, connection: Connection, request: Request) -> bytes:
        """Return the host field of the client, 8 bytes. If the client's address cannot be stored (IPv6), it
        is the address of the forwarding broker."""
        forwarded = self.forwarded_for(connection, request)
        if forwarded is None:
            return connection.peer_host
        try:
            host, port = split_address(forwarded)
            return pack_ipv4_host(host.removeprefix("::ffff:"), port)
        except ValueError:
            return connection.peer_host

    def forwarded_for(self, connection: Connection, request: Request) -> str | None:
        """Return the address of the client, "ip:port", of a request that a member of the group forwarded, as
        the member reported it. Returns None for other requests."""
        if not request.flag & FLAG_FORWARDED or not self._proven(connection, request):
            return None
        return request.ext().get(FORWARDED_FOR)

    def is_members_own(self, connection: Connection, request: Request) -> bool:
        """Whether the request comes from another broker of the group itself, which did not forward it for a
        client."""
        return not request.flag & FLAG_FORWARDED and self._proven(connection, request)

    def _proven(self, connection: Connection, request: Request) -> bool:
        """Whether a member of the group sent this request. The proof is checked once for each request,
        because a proof is not valid a second time."""
        known = request.by_member
        if known is None:
            known = request.by_member = self._judge(connection, request)
        return known

    def _judge(self, connection: Connection, request: Request) -> bool:
        fields = request.ext()
        proof = fields.pop(MEMBER_PROOF, None)
        if proof is None:
            return peer_ip(connection) in self._older_ips()
        return self._node.proves(proof, content_of(request.code, request.flag, fields, request.body))


def peer_ip(connection: Connection) -> str:
    """Return the IP address of the other end of a connection. An IPv4 address has its usual form even if the
    listener accepts both IPv4 and IPv6."""
    return connection.peer.rpartition(":")[0].removeprefix("::ffff:")
