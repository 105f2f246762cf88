"""Requests of tools about connected clients: 203 GET_CONSUMER_CONNECTION_LIST, 204
GET_PRODUCER_CONNECTION_LIST, 300 QUERY_TOPIC_CONSUME_BY_WHO, 343 QUERY_TOPICS_BY_CONSUMER, 345
QUERY_SUBSCRIPTION_BY_CONSUMER (AdminBrokerProcessor).

Only the leader answers, from its own connections and its applied state. A follower may know fewer clients:
consumers send heartbeats to all brokers of a group, but a broker that has just started knows only some of
them, and producers are connected only to leaders.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import msgspec

from dledger.broker.auth import actions, required
from dledger.broker.auth.policies import Action
from dledger.broker.clients.client_table import Member
from dledger.broker.core import Core
from dledger.broker.offset.group_topics import topics_of
from dledger.broker.requests import LeaderCall, Needs, handles
from dledger.remoting.bodies import (
    ClientConnection,
    ConsumerConnections,
    GroupList,
    ProducerConnections,
    QuerySubscription,
)
from dledger.remoting.codes import RequestCode, ResponseCode
from dledger.remoting.errors import RemotingError
from dledger.remoting.headers import ConsumerGroupHeader, GroupHeader, ProducerGroupHeader, TopicHeader
from dledger.remoting.operator_headers import GroupTopicHeader
from dledger.runtime.cooperative import PAUSE_S, Pace

OWN = "the leader's own connections"
APPLIED = "the leader's own connections, and its applied index"
MAX_SHOWN = 2000
"""Largest number of a group's clients in one answer. If there are more, those whose ids come first in sorted
order are listed."""
SLICE = 500
"""Number of groups that are examined before the event loop turns to other work, about 1 ms."""
TOPICS_SLICE = 10_000
"""Number of names that are encoded before the event loop turns to other work, about 1 ms."""


class ConnectionProcessor:
    """Handlers of the requests that ask for connected clients and their subscriptions."""

    def __init__(self, core: Core) -> None:
        self._clients = core.clients
        self._store = core.store
        self._settings = core.settings
        self._background = core.background

    @handles(
        RequestCode.GET_CONSUMER_CONNECTION_LIST,
        ConsumerGroupHeader,
        needs=Needs.LEADER,
        reads=OWN,
        may=required.ACCOUNT,
        does=actions.Does(Action.GET, groups=("consumerGroup",)),
    )
    def consumers(self, call: LeaderCall[ConsumerGroupHeader]) -> None:
        """List the connected consumers of a group, and the subscriptions of the group."""
        name = call.header.consumerGroup
        group = self._clients.consumers.get(name)
        if group is None:
            raise RemotingError(ResponseCode.CONSUMER_NOT_ONLINE, f"the consumer group[{name}] not online")
        body = ConsumerConnections(
            sorted(
                [
                    *_connections(group.members.values()),
                    *(one.client for one in group.elsewhere.values()),
                ],
                key=lambda one: one.clientId,
            )[:MAX_SHOWN],
            group.consume_type,
            group.message_model,
            group.consume_from,
            group.subscriptions,
        )
        call.respond(body=body.encode())

    @handles(
        RequestCode.GET_PRODUCER_CONNECTION_LIST,
        ProducerGroupHeader,
        needs=Needs.LEADER,
        reads=OWN,
        may=required.ACCOUNT,
        does=actions.SHOWN,
    )
    def producers(self, call: LeaderCall[ProducerGroupHeader]) -> None:
        """List the connected producers of a group."""
        name = call.header.producerGroup
        members = self._clients.producers.get(name)
        if members is None:
            raise RemotingError(ResponseCode.SYSTEM_ERROR, f"the producer group[{name}] not exist")
        call.respond(body=ProducerConnections(_connections(members.values())).encode())

    @handles(
        RequestCode.QUERY_TOPIC_CONSUME_BY_WHO,
        TopicHeader,
        needs=Needs.LEADER,
        reads=APPLIED,
        may=required.ACCOUNT,
        does=actions.SHOWN_TOPIC,
    )
    def groups_of_topic(self, call: LeaderCall[TopicHeader]) -> None:
        """List the consumer groups that subscribe to a topic or have offsets in it."""
        topic = call.header.topic

        async def answer() -> None:
            found = {name for name, group in self._clients.consumers.items() if topic in group.subscriptions}
            queues = list(self._store.state.queues.get(topic, ()))
            offsets = self._store.state.offsets
            pace = Pace(SLICE)
            for name in list(offsets):
                await pace.step()
                rows = offsets.get(name, {})
                if any((topic, queue) in rows for queue in queues):
                    found.add(name)
            call.respond(body=GroupList(sorted(found)).encode())

        self._background.start(call.connection, call.request, answer())

    @handles(
        RequestCode.QUERY_TOPICS_BY_CONSUMER,
        GroupHeader,
        needs=Needs.LEADER,
        reads=APPLIED,
        may=required.ACCOUNT,
        does=actions.Does(Action.GET, groups=("group",)),
    )
    def topics_of_group(self, call: LeaderCall[GroupHeader]) -> None:
        """List the topics in which a consumer group has offsets."""
        name = call.header.group

        async def answer() -> None:
            topics = await topics_of(self._store.state, name)
            pieces: list[bytes] = []
            for start in range(0, len(topics), TOPICS_SLICE):
                pieces.append(msgspec.json.encode(topics[start : start + TOPICS_SLICE])[1:-1])
                if len(topics) > TOPICS_SLICE:
                    await asyncio.sleep(PAUSE_S)
            address = msgspec.json.encode(self._settings.now.client_addr)
            call.respond(body=b'{"brokerAddr":%b,"topicList":[%b]}' % (address, b",".join(pieces)))

        self._background.start(call.connection, call.request, answer())

    @handles(
        RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER,
        GroupTopicHeader,
        needs=Needs.LEADER,
        reads=OWN,
        may=required.ACCOUNT,
        does=actions.Does(Action.GET, topics=("topic",), groups=("group",)),
    )
    def subscription(self, call: LeaderCall[GroupTopicHeader]) -> None:
        """Show the subscription of a group to a topic. It is empty if no connected consumer of the group has
        one."""
        header = call.header
        group = self._clients.consumers.get(header.group)
        wanted = None if group is None else group.subscriptions.get(header.topic or "")
        call.respond(body=QuerySubscription(header.group, header.topic, wanted).encode())


def _connections(members: Iterable[Member]) -> list[ClientConnection]:
    shown = sorted(members, key=lambda member: member.client_id)[:MAX_SHOWN]
    return [
        ClientConnection(member.client_id, member.connection.peer, member.language, member.version)
        for member in shown
    ]
