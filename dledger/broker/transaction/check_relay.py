"""Checks of transactions whose producers are connected to another member of the group (39
CHECK_TRANSACTION_STATE).

A producer is connected to the brokers that were leaders in its last route. A new leader learns of the
producer with the producer's next heartbeat (30 s). Until then the leader asks the other members, one after
the other, to send its checks to the producer. Such a member sends a check only to a producer, never to a
third member. It accepts the request only from brokers of the group (`Origins.is_members_own`), which need no
account (`Broker._authorize`).
"""

from __future__ import annotations

from collections.abc import Mapping

from dledger.broker.auth import required
from dledger.broker.core import Core, Members
from dledger.broker.forwarding import Origins
from dledger.broker.member_requests import MEMBER_PROOF, with_proof
from dledger.broker.requests import Call, Needs, handles
from dledger.remoting.client import RemotingClient
from dledger.remoting.codes import RequestCode, ResponseCode
from dledger.remoting.commands import Response
from dledger.remoting.errors import RemotingError
from dledger.remoting.headers import RelayedCheckHeader
from dledger.remoting.limits import MAX_FRAME_SIZE

RELAY_TIMEOUT_S = 3.0
"""Seconds that a member has to answer whether it is connected to a producer of the group."""


class CheckRelay:
    """Handler of request 39 CHECK_TRANSACTION_STATE. The leader sends this request to another member of the
    group, which sends it to a producer that is connected to that member."""

    def __init__(self, core: Core, origins: Origins) -> None:
        self._clients = core.clients
        self._origins = origins

    @handles(
        RequestCode.CHECK_TRANSACTION_STATE,
        RelayedCheckHeader,
        needs=Needs.ANY,
        reads="the brokers' own connections",
        max_body=MAX_FRAME_SIZE,
        may=required.ADMIN,
    )
    def relay(self, call: Call[RelayedCheckHeader]) -> None:
        """Send a check of the leader to a producer of the group that is connected to this node."""
        if not self._origins.is_members_own(call.connection, call.request):
            raise RemotingError(
                ResponseCode.NO_PERMISSION, "only brokers of this group may relay transaction checks"
            )
        group = call.header.producerGroup
        connection = self._clients.a_producer(group)
        if connection is None:
            raise RemotingError(
                ResponseCode.SYSTEM_ERROR, f"no producer of the group {group} is connected here"
            )
        fields = call.request.ext()
        fields.pop("producerGroup", None)
        fields.pop(MEMBER_PROOF, None)
        connection.send_oneway(RequestCode.CHECK_TRANSACTION_STATE, fields, bytes(call.request.body))
        call.respond()


class Elsewhere:
    """The leader's side: asks other members to send checks to producers."""

    def __init__(self, core: Core, client: RemotingClient, members: Members) -> None:
        self._settings = core.settings
        self._client = client
        self._members = members
        self._node = core.node
        self._log = core.env.log.child("transactions")
        self.asked: int = 0
        """Number of checks that other members sent to a producer."""

    def ask(self, group: str, fields: Mapping[str, str], body: bytes) -> None:
        """Have another member ask a producer of the group. Members are tried one after the other until one is
        connected to a producer of this group."""
        others = {*self._members().values()} - {"", self._settings.now.client_addr}
        self._pass_on(sorted(others), {**fields, "producerGroup": group}, body)

    def _pass_on(self, addresses: list[str], fields: Mapping[str, str], body: bytes) -> None:
        if not addresses:
            self._log.info(
                "no producer connected that can be asked about a transaction", group=fields["producerGroup"]
            )
            return
        address, *others = addresses

        def answered(result: Response | RemotingError) -> None:
            if isinstance(result, Response) and result.code == ResponseCode.SUCCESS:
                self.asked += 1
            else:
                self._pass_on(others, fields, body)

        code = RequestCode.CHECK_TRANSACTION_STATE
        proven = with_proof(self._node, address, code, fields, body)
        self._client.invoke_nowait(address, code, proven, body, RELAY_TIMEOUT_S, answered)
