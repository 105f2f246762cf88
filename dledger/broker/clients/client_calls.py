"""Requests from the broker to a client, which may be connected to this broker or to another member of the
group.

After a change of leader, a client may not be connected to the new leader. A broker that does not know the
client passes the request on to the other members, one after the other. A member that gets such a request does
not pass it on again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dledger.broker.core import Core, Members
from dledger.broker.forwarding import FORWARD_TIMEOUT_S, forwarded_fields
from dledger.broker.requests import Call
from dledger.remoting.client import RemotingClient
from dledger.remoting.codes import ResponseCode
from dledger.remoting.commands import FLAG_FORWARDED, Response
from dledger.remoting.errors import RemotingError
from dledger.remoting.server import Connection

NOT_CONNECTED = "clientNotConnected"
"""Header field with which a member answers that it does not know the client."""
CALL_TIMEOUT_S = 10.0
"""Seconds within which a client has to answer."""


class Reaching:
    """Finds the broker to which a client is connected."""

    def __init__(self, core: Core, client: RemotingClient, members: Members) -> None:
        self._settings = core.settings
        self._client = client
        self._members = members
        self._node = core.node

    def reach(
        self,
        call: Call[Any],
        connection: Connection | None,
        here: Callable[[Connection], None],
        nowhere: str,
    ) -> None:
        """Call `here` if the client is connected to this broker. Otherwise another member of the group
        answers the request. If no member can, the request is refused with the remark `nowhere`."""
        if connection is not None and not connection.closed:
            here(connection)
        elif call.request.flag & FLAG_FORWARDED:
            call.respond(ResponseCode.SYSTEM_ERROR, ext={NOT_CONNECTED: "true"}, remark=nowhere)
        else:
            others = {*self._members().values()} - {"", self._settings.now.client_addr}
            self._pass_on(call, sorted(others), nowhere)

    def _pass_on(self, call: Call[Any], addresses: list[str], nowhere: str) -> None:
        if not addresses:
            call.respond(ResponseCode.SYSTEM_ERROR, remark=nowhere)
            return
        address, *others = addresses

        def answered(result: Response | RemotingError) -> None:
            if isinstance(result, RemotingError) or NOT_CONNECTED in result.ext:
                self._pass_on(call, others, nowhere)
            else:
                call.respond(result.code, ext=result.ext, body=result.body, remark=result.remark)

        fields = forwarded_fields(self._node, call.connection, call.request, address)
        self._client.forward(address, call.request, fields, FORWARD_TIMEOUT_S, answered)
