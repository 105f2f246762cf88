"""Clients: 34 HEART_BEAT, 35 UNREGISTER_CLIENT, 38 GET_CONSUMER_LIST_BY_GROUP (ClientManageProcessor).

Served by every node, leading or not. The heartbeat is answered without the fields of its version 2, which
keeps clients on version 1: each heartbeat is complete.
"""

from __future__ import annotations

import asyncio

from dledger.broker.client.clients import Clients, Member
from dledger.broker.commit_log import Sealer
from dledger.broker.leader_gate import LeaderGate
from dledger.broker.store.message_store import MessageStore
from dledger.broker.topic.topic_creation import Catalog
from dledger.broker.topic.topic_names import group_problem
from dledger.remoting.bodies import ConsumerIdList, decode_heartbeat
from dledger.remoting.codes import RequestCode, ResponseCode
from dledger.remoting.commands import Request
from dledger.remoting.errors import RemotingError
from dledger.remoting.headers import ConsumerGroupHeader, UnregisterClientHeader
from dledger.remoting.server import Connection, Handler

MAX_CLIENT_ID = 255
"""Characters of a client id."""


class ClientProcessor:
    """Handlers of the client codes."""

    def __init__(self, gate: LeaderGate, catalog: Catalog, store: MessageStore, clients: Clients) -> None:
        self._gate = gate
        self._catalog = catalog
        self._store = store
        self._clients = clients

    def handlers(self) -> dict[int, Handler]:
        """Code -> handler."""
        return {
            RequestCode.HEART_BEAT: self.heartbeat,
            RequestCode.UNREGISTER_CLIENT: self.unregister,
            RequestCode.GET_CONSUMER_LIST_BY_GROUP: self.consumer_list,
        }

    def heartbeat(self, connection: Connection, request: Request) -> None:
        """34: producers and consumers of one client. The leader creates groups that are new.

        A group that cannot be created (a limit) does not fail the heartbeat, which speaks for all groups of
        the client: its members are known, as on the followers, and each of their pulls is told the reason.
        """
        heartbeat = decode_heartbeat(request.body)
        client_id = heartbeat.clientID
        if not 0 < len(client_id) <= MAX_CLIENT_ID:
            raise RemotingError(ResponseCode.INVALID_PARAMETER, "clientID must have 1 to 255 characters")
        for consumer in heartbeat.consumerDataSet:
            problem = group_problem(consumer.groupName)
            if problem is not None:
                raise RemotingError(ResponseCode.INVALID_PARAMETER, problem)
        now = asyncio.get_running_loop().time()
        member = Member(client_id, connection, request.language, request.version, now)
        for producer in heartbeat.producerDataSet:
            self._clients.add_producer(producer.groupName, member)
        for consumer in heartbeat.consumerDataSet:
            if self._gate.sealer is not None:
                self._create_group(self._gate.sealer, consumer.groupName)
            self._clients.add_consumer(consumer, member, keep_subscriptions=heartbeat.withoutSub)
        connection.respond(request, ResponseCode.SUCCESS)

    def unregister(self, connection: Connection, request: Request) -> None:
        """35: a client leaves. C++ sends "" for the group that it does not mean."""
        header = request.header(UnregisterClientHeader)
        if header.producerGroup:
            self._clients.remove_producer(header.producerGroup, header.clientID)
        if header.consumerGroup:
            self._clients.remove_consumer(header.consumerGroup, header.clientID)
        connection.respond(request, ResponseCode.SUCCESS)

    def consumer_list(self, connection: Connection, request: Request) -> None:
        """38: ids of a group's consumers, for dividing its queues."""
        name = request.header(ConsumerGroupHeader).consumerGroup
        group = self._clients.consumers.get(name)
        if group is None:
            raise RemotingError(ResponseCode.SYSTEM_ERROR, f"no consumer for this group, {name}")
        body = ConsumerIdList(sorted(group.members)).encode()
        connection.respond(request, ResponseCode.SUCCESS, body=body)

    def create_known_groups(self, sealer: Sealer) -> None:
        """A term opened: groups whose consumers were here before their leader was."""
        for name in list(self._clients.consumers):
            self._create_group(sealer, name)

    def _create_group(self, sealer: Sealer, name: str) -> None:
        try:
            self._catalog.group_for_consumer(sealer, self._store.state, name)
        except RemotingError:
            return  # a limit: its pulls hear of it (safety.md S29)
