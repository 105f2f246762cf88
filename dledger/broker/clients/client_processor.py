"""Requests by which clients register: 34 HEART_BEAT, 35 UNREGISTER_CLIENT, 38 GET_CONSUMER_LIST_BY_GROUP, 46
CHECK_CLIENT_CONFIG (ClientManageProcessor).

Every node answers these requests, leader or follower. Only 38 GET_CONSUMER_LIST_BY_GROUP needs the leader.

If `com.rocketmq.heartbeat.v2` is set, Java clients leave out their subscriptions while these have not changed
(heartbeat version 2). The broker accepts such a heartbeat if nothing in the client's groups has changed since
the last heartbeat over the connection. Otherwise the answer asks for the full heartbeat.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from hashlib import blake2b

from dledger.broker.auth import actions, required
from dledger.broker.clients.client_table import ConsumerGroup, Member
from dledger.broker.commit_log import CommitLogWriter
from dledger.broker.core import Core
from dledger.broker.filter.message_filter import CLASS_FILTER, filter_of
from dledger.broker.requests import Call, LeaderCall, Needs, handles
from dledger.broker.services import LeaderService
from dledger.broker.topic.topic_creation import TopicCreation
from dledger.broker.topic.topic_names import RETRY_PREFIX, group_problem
from dledger.remoting.bodies import ConsumerIdList, decode_client_config, decode_heartbeat
from dledger.remoting.codes import RequestCode, ResponseCode
from dledger.remoting.errors import RemotingError
from dledger.remoting.headers import ConsumerGroupHeader, UnregisterClientHeader

MAX_HEARTBEAT = 128 * 1024
"""Limit, in bytes, of a heartbeat (about 1,000 subscriptions); a longer one is refused."""
MAX_GROUPS = 1000
"""Largest number of groups in one heartbeat; more are refused."""
MAX_NEW_GROUPS = 100
"""Largest number of groups for which one heartbeat creates the group or its retry topic. The remaining groups
are created by the first pull of their consumers."""
SAID_AGAIN_S = 60.0
"""After a warning about a group, the log gets no further warning about this group for this many seconds.
Without this limit, each member that comes or goes would cause another warning."""
MAX_WARNING = 2000
"""Limit, in characters, of the warnings in the answer to a heartbeat; longer ones are cut."""
SECOND_SUPPORTED, SEND_ALL = "IS_SUPPORT_HEART_BEAT_V2", "IS_SUB_CHANGE"
"""Fields of the answer to a heartbeat of version 2: the broker supports this version, and the client must
send the full heartbeat."""
MAX_CLIENT_ID = 255
"""Limit, in characters, of a client id; a longer one is refused."""


_HEARD = "heartbeat"
"""Name of the connection attribute that contains the last heartbeat."""


@dataclass(frozen=True, slots=True)
class _Heard:
    """The last heartbeat over a connection. It is kept because most requests of idle clients are repeated,
    unchanged heartbeats, which go to all brokers."""

    digest: bytes
    member: Member
    groups: tuple[tuple[ConsumerGroup, int], ...]
    """The groups in the heartbeat. Beside each group stands how often its subscriptions had changed when the
    heartbeat came."""
    second: bool
    """Whether it was a heartbeat of version 2."""

    @property
    def current(self) -> bool:
        """Whether the table of clients still agrees with this heartbeat."""
        return self.member.whole and all(group.changes == changes for group, changes in self.groups)

    def still(self, digest: bytes) -> bool:
        """Return whether a new heartbeat with this digest would change nothing except the time at which the
        client was last seen."""
        return digest == self.digest and self.current


class ClientProcessor(LeaderService):
    """Handlers of the requests by which clients register."""

    def __init__(self, core: Core, creation: TopicCreation) -> None:
        self._settings = core.settings
        self._gate = core.gate
        self._creation = creation
        self._store = core.store
        self._clients = core.clients
        self._log = core.env.log.child("clients")

    @handles(
        RequestCode.HEART_BEAT,
        needs=Needs.ANY,
        max_body=MAX_HEARTBEAT,
        may=required.Rule(special=required.of_heartbeat),
    )
    def heartbeat(self, call: Call[None]) -> None:
        """Note the producers and consumers of one client. The leader also creates groups that do not exist
        yet.

        If a group cannot be created because of a limit, the heartbeat does not fail, because it is for all
        groups of the client. The members of that group are noted nevertheless, and each of their pulls is
        refused with the reason.
        """
        now = asyncio.get_running_loop().time()
        digest = blake2b(call.request.body, digest_size=16).digest()
        heard = call.connection.attributes.get(_HEARD)
        if isinstance(heard, _Heard) and heard.still(digest):
            heard.member.last_seen = now
            self._answer(call, [group for group, _ in heard.groups], now, second=heard.second)
            return
        heartbeat = decode_heartbeat(call.request.body)
        client_id = heartbeat.clientID
        if not 0 < len(client_id) <= MAX_CLIENT_ID:
            raise RemotingError(ResponseCode.INVALID_PARAMETER, "clientID must have 1 to 255 characters")
        groups = len(heartbeat.consumerDataSet) + len(heartbeat.producerDataSet)
        if groups > MAX_GROUPS:
            remark = f"the heartbeat names {groups} groups; the limit for one client is {MAX_GROUPS}"
            raise RemotingError(ResponseCode.INVALID_PARAMETER, remark)
        for consumer in heartbeat.consumerDataSet:
            problem = group_problem(consumer.groupName)
            if problem is not None:
                raise RemotingError(ResponseCode.INVALID_PARAMETER, problem)
        unknown = heartbeat.withoutSub and not (isinstance(heard, _Heard) and heard.current)
        member = Member(client_id, call.connection, call.request.language, call.request.version, now)
        for producer in heartbeat.producerDataSet:
            self._clients.add_producer(producer.groupName, member)
        groups_of: list[ConsumerGroup] = []
        created = 0
        for consumer in heartbeat.consumerDataSet:
            name, writer = consumer.groupName, self._gate.writer
            if writer is not None and created < MAX_NEW_GROUPS and writer.slot(RETRY_PREFIX + name) is None:
                created += 1
                self._create_group(writer, name)
            self._clients.add_consumer(consumer, member, keep_subscriptions=heartbeat.withoutSub)
            groups_of.append(self._clients.consumers[consumer.groupName])
        told = tuple((group, group.changes) for group in groups_of)
        second = heartbeat.heartbeatFingerprint != 0 or heartbeat.withoutSub
        if unknown:
            call.connection.attributes.pop(_HEARD, None)
        else:
            call.connection.attributes[_HEARD] = _Heard(digest, member, told, second)
        self._answer(call, groups_of, now, second=second, unknown=unknown)

    def _answer(
        self,
        call: Call[None],
        groups: list[ConsumerGroup],
        now: float,
        *,
        second: bool,
        unknown: bool = False,
    ) -> None:
        warnings: list[str] = []
        for group in groups:
            self._warn(group, now, warnings)
        # Clients that do not know these fields look only at the code.
        ext = {SECOND_SUPPORTED: "true", SEND_ALL: str(unknown).lower()} if second else None
        call.respond(ext=ext, remark="; ".join(warnings)[:MAX_WARNING] or None)

    def _warn(self, group: ConsumerGroup, now: float, warnings: list[str]) -> None:
        text = group.warning if group.agreement.variants > 1 or group.agreement.shared else ""
        if text:
            warnings.append(text)
        if text and text != group.said and now - group.said_at >= SAID_AGAIN_S:
            group.said, group.said_at = text, now
            self._log.warning(
                "members of a consumer group disagree about their subscriptions", group=group.name, text=text
            )

    @handles(
        RequestCode.CHECK_CLIENT_CONFIG,
        needs=Needs.ANY,
        reads="nothing",
        may=required.Rule(special=required.of_client_config),
    )
    def check_config(self, call: Call[None]) -> None:
        """Check whether the broker can serve a subscription. Java clients ask this before they start with a
        subscription by an expression other than tags. If the answer has a code other than 0, 1 and 23, they
        assume that the broker is too old to know this request."""
        wanted = decode_client_config(call.request.body).subscriptionData
        if wanted is not None:
            kind = CLASS_FILTER if wanted.classFilterMode else wanted.expressionType
            filter_of(kind, wanted.subString, by_property=self._settings.now.property_filter)
        call.respond()

    @handles(
        RequestCode.UNREGISTER_CLIENT, UnregisterClientHeader, needs=Needs.ANY, may=required.OF_CONSUMER_GROUP
    )
    def unregister(self, call: Call[UnregisterClientHeader]) -> None:
        """Remove a client from its groups. The request has a field for a producer group and one for a
        consumer group. C++ clients send an empty text in the field that they do not use."""
        header = call.header
        if header.producerGroup:
            self._clients.remove_producer(header.producerGroup, header.clientID)
        if header.consumerGroup:
            self._clients.remove_consumer(header.consumerGroup, header.clientID)
        call.respond()

    @handles(
        RequestCode.GET_CONSUMER_LIST_BY_GROUP,
        ConsumerGroupHeader,
        needs=Needs.LEADER,
        reads="the leader's own connections",
        may=required.OF_CONSUMER_GROUP,
        does=actions.Does(actions.SEEN, groups=("consumerGroup",)),
    )
    def consumer_list(self, call: LeaderCall[ConsumerGroupHeader]) -> None:
        """Return the ids of a group's consumers. The consumers divide the queues among themselves by this
        list. All of them must get the same list, so only the leader answers. A leader that has just started
        knows only the consumers that have sent a heartbeat since then."""
        name = call.header.consumerGroup
        group = self._clients.consumers.get(name)
        if group is None:
            raise RemotingError(ResponseCode.SYSTEM_ERROR, f"no consumer for this group, {name}")
        body = ConsumerIdList(group.client_ids).encode()
        call.respond(body=body)

    def begin(self, writer: CommitLogWriter) -> None:
        """Create the groups whose consumers sent heartbeats before this node became leader."""
        for name in list(self._clients.consumers):
            self._create_group(writer, name)

    def _create_group(self, writer: CommitLogWriter, name: str) -> None:
        try:
            self._creation.group_for_consumer(writer, self._store.state, name)
            self._creation.retry_topic_for_consumer(writer, name)
        except RemotingError:
            return  # a limit; the group's pulls get the error (safety.md S29)
