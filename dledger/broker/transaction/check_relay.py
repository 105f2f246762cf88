"""Checks of transactions whose producers are connected to another member of the group (39).

A producer is connected to the brokers that are leaders in its last route; a new leader learns of it with its
next heartbeat (30 s). Until then the leader asks the other members, one after the other, to pass its checks
on; they do not pass them on further. They accept this only from brokers of the group
(`Origins.is_members_own`), which need no account (`Broker._authorize`).
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
"""Seconds that a member has to answer whether it knows a producer."""


class CheckRelay:
    """Handler of 39 at a member."""

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
        """Pass a check of the leader on to a producer of the group."""
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
    """The leader's side: asks other members to pass checks on."""

    def __init__(self, core: Core, client: RemotingClient, members: Members) -> None:
        self._settings = core.settings
        self._client = client
        self._members = members
        self._node = core.node
        self._log = core.env.log.child("transactions")
        self.asked: int = 0
        """Checks that other members passed on."""

    def ask(self, group: str, fields: Mapping[str, str], body: bytes) -> None:
        """Have a producer of the group asked, at whichever member it is connected."""
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
