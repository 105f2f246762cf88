"""Request 28101 TELL_CONSUMERS, by which a follower reports to the leader the consumers that send heartbeats
only to the follower.

Clients send heartbeats to the brokers in the route that they fetched last (every 30 s by default). A broker
that was down meanwhile and now leads again is not in these routes. Without reports it would list only a part
of a group's consumers. The listed consumers would take the queues of all others, and forwarded pulls would be
refused because the group is unknown. A follower therefore reports all its consumers after a change of leader
and at intervals, and reports changes at once. The leader lists these consumers in its answers to 38
GET_CONSUMER_LIST_BY_GROUP, 203 GET_CONSUMER_CONNECTION_LIST and 400 QUERY_ASSIGNMENT. It sends 40
NOTIFY_CONSUMER_IDS_CHANGED to the follower, which passes it on to them. A consumer that also sends heartbeats
to the leader counts as the leader's own. None of this is replicated, because heartbeats rebuild it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from dledger.broker.auth import required
from dledger.broker.clients.client_table import ConsumerGroup
from dledger.broker.commit_log import CommitLogWriter
from dledger.broker.core import Core
from dledger.broker.forwarding import Origins
from dledger.broker.member_requests import with_proof
from dledger.broker.requests import LeaderCall, Needs, handles
from dledger.broker.services import LeaderService
from dledger.remoting.bodies import ClientConnection, ConsumersHere, decode_told, told_body
from dledger.remoting.client import RemotingClient
from dledger.remoting.codes import RequestCode, ResponseCode
from dledger.remoting.commands import Request
from dledger.remoting.errors import RemotingError

TELL_AGAIN_S = 30.0
"""Seconds after which everything is reported again. The leader may have lost a connection without this broker
noticing."""
SETTLE_S = 0.05
"""Changes within this many seconds are reported together."""
RETRY_S = 1.0
"""Seconds until a report that the leader did not accept is sent again."""
TIMEOUT_S = 3.0
MAX_TELL = 192 * 1024
"""Limit, in bytes, of a report; a longer one is refused."""
MAX_CLIENTS = 500
"""Largest number of clients that are reported of one group. If the group has more, those whose ids come first
in sorted order are reported. A group with this many clients fits into one request if its subscriptions are
left out."""
MAX_CHANGED = 10_000
"""Largest number of groups whose changes wait to be reported. If more change, all groups are reported."""


class ClientTelling(LeaderService):
    """Reports the consumers of this broker while it is a follower, and accepts reports while it is leader."""

    def __init__(self, core: Core, client: RemotingClient, origins: Origins) -> None:
        self._clients = core.clients
        self._client = client
        self._gate = core.gate
        self._node = core.node
        self._origins = origins
        self._settings = core.settings
        self._log = core.env.log.child("telling")
        self._changed: dict[str, None] | None = {}
        """Names of the groups to report; None for all groups."""
        self._told: dict[str, None] = {}
        """Names of the groups that were reported to the leader."""
        self._leader: str | None = None
        self._wake = asyncio.Event()
        core.clients.on_members = self._members_changed

    # -- the leader -----------------------------------------------------------------------------------

    @handles(
        RequestCode.TELL_CONSUMERS,
        needs=Needs.LEADER,
        reads="its memory",
        max_body=MAX_TELL,
        may=required.ADMIN,
    )
    def take(self, call: LeaderCall[None]) -> None:
        """Accept a report of consumers that send heartbeats to another broker of the group."""
        if not self._origins.is_members_own(call.connection, call.request):
            raise RemotingError(ResponseCode.NO_PERMISSION, "only brokers of this group may report consumers")
        now = asyncio.get_running_loop().time()
        for here in decode_told(call.request.body):
            self._clients.told(call.connection, here, now)
        call.respond()

    def begin(self, writer: CommitLogWriter) -> None:
        """Start as leader. A leader has nothing to report; the followers report to it."""
        self._changed = {}
        self._told.clear()

    def end(self, reason: str) -> None:
        """Forget what followers reported, because this broker no longer leads."""
        self._clients.forget_elsewhere()

    # -- a follower -----------------------------------------------------------------------------------

    def leads(self, address: str | None) -> None:
        """Note the address of the leader as far as this broker knows it. A new leader knows none of this
        broker's consumers, so all of them are reported."""
        if address != self._leader:
            self._leader = address
            self._changed = None
            self._told.clear()
            self._wake.set()

    def lost(self, address: str) -> None:
        """Note that a connection to another broker ended. If the broker is the leader, it has forgotten what
        was reported over the connection, so everything is reported again."""
        if address == self._leader:
            self._changed = None
            self._wake.set()

    def _members_changed(self, group: str) -> None:
        if self._changed is not None and self._gate.writer is None:
            self._changed[group] = None
            if len(self._changed) > MAX_CHANGED:
                self._changed = None
            self._wake.set()

    def pass_on(self, request: Request) -> None:
        """Notify the members of a group that are connected to this broker. The leader sends this request when
        the group has changed."""
        group = self._clients.consumers.get(request.ext().get("consumerGroup", ""))
        if group is not None:
            self._clients.notify(group)

    async def run_following(self) -> None:
        """Report consumers to the leader, until cancelled."""
        while True:
            try:
                async with asyncio.timeout(TELL_AGAIN_S):
                    await self._wake.wait()
            except TimeoutError:
                self._changed = None
            self._wake.clear()
            leader, own = self._leader, self._settings.now.client_addr
            if leader is None or leader == own or not self._settings.now.forward_to_leader:
                continue
            changed, self._changed = self._changed, {}
            try:
                await self._tell(leader, changed)
            except RemotingError as error:
                self._log.debug("consumers not reported to the leader", leader=leader, error=error)
                self._changed = None
                await asyncio.sleep(RETRY_S)
                self._wake.set()
            else:
                await asyncio.sleep(SETTLE_S)

    async def _tell(self, leader: str, changed: dict[str, None] | None) -> None:
        """Send reports of the groups in `changed`; None means all groups."""
        if changed is None:
            changed = dict.fromkeys((*self._clients.consumers, *self._told))
        for body in self._bodies(changed):
            fields = with_proof(self._node, leader, RequestCode.TELL_CONSUMERS, {}, body)
            answer = await self._client.invoke(leader, RequestCode.TELL_CONSUMERS, fields, body, TIMEOUT_S)
            if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                return  # a leader with an older version
            if answer.code != ResponseCode.SUCCESS:
                raise RemotingError(answer.code, answer.remark or "not accepted")
            if leader != self._leader:
                return

    def _bodies(self, names: dict[str, None]) -> Iterator[bytes]:
        """Yield the bodies of the requests that report the groups with these names."""
        told: list[bytes] = []
        size = 0
        for name in names:
            group = self._clients.consumers.get(name)
            if group is None and name not in self._told:
                continue
            if group is None:
                del self._told[name]
            else:
                self._told[name] = None
            here = _here(name, group).encode()
            if len(here) > MAX_TELL // 2:
                here = _here(name, group, subscriptions=False).encode()
            if told and size + len(here) > MAX_TELL // 2:
                yield told_body(told)
                told, size = [], 0
            told.append(here)
            size += len(here) + 1
        if told:
            yield told_body(told)


def _here(name: str, group: ConsumerGroup | None, *, subscriptions: bool = True) -> ConsumersHere:
    if group is None:
        return ConsumersHere(name, "", "", "")
    clients = [
        ClientConnection(one.client_id, one.connection.peer, one.language, one.version)
        for _, one in sorted(group.members.items())[:MAX_CLIENTS]
    ]
    wanted = list(group.subscriptions.values()) if subscriptions else []
    return ConsumersHere(name, group.consume_type, group.message_model, group.consume_from, wanted, clients)
