"""The table of connected producers and consumers, by group (ProducerManager, ConsumerManager).

Every node has this table in memory. Clients send heartbeats to all brokers of a group. All brokers must list
the same consumers, otherwise the clients divide the queues differently. If the leader was restarted, a client
may not know its address yet, and sends it no heartbeats. Then the brokers that receive the client's
heartbeats report the client to the leader (`membership_relay`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from itertools import islice

from dledger.broker.clients.agreement import Agreement, interests_of
from dledger.broker.clients.notices import Notices
from dledger.remoting.bodies import ClientConnection, ConsumerData, ConsumersHere, Subscription
from dledger.remoting.codes import RequestCode, ResponseCode
from dledger.remoting.errors import RemotingError
from dledger.remoting.server import Connection

MAX_MEMBERSHIPS = 200_000
"""Largest number of pairs of a client and a group; a heartbeat that would add more is refused."""
MAX_ELSEWHERE = 100_000
"""Largest number of pairs of a client and a group that only other brokers report. A pair that two brokers
report counts twice. Further pairs are ignored."""
MAX_LOOKS = 10
"""Largest number of producers that are examined to find one to which a request can be sent now."""


@dataclass(slots=True)
class Member:
    """One client as a member of groups. `last_seen` is the time of its last heartbeat, in seconds of the
    event loop's clock."""

    client_id: str
    connection: Connection
    language: str
    version: int
    last_seen: float
    whole: bool = True
    """False once the client left one of the groups that its heartbeat named, or sent a new heartbeat for
    it."""


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """A client that sends its heartbeats only to another broker. `connection` is the connection to that
    broker, and `client` is what that broker reports about the client."""

    connection: Connection
    client: ClientConnection
    last_told: float


@dataclass
class ConsumerGroup:
    """A consumer group that has members. All members should have the same subscriptions. If they differ,
    those of the newest heartbeat are used."""

    name: str
    consume_type: str
    message_model: str
    consume_from: str
    members: dict[str, Member] = field(default_factory=dict)
    told: dict[int, dict[str, Elsewhere]] = field(default_factory=dict)
    """Members that send heartbeats only to other brokers. Maps the serial number of the other broker's
    connection to a map from client id to member. Empty unless this broker leads (`membership_relay`)."""
    subscriptions: dict[str, Subscription] = field(default_factory=dict)
    changes: int = 0
    """How often the subscriptions have changed."""
    agreement: Agreement = field(default_factory=Agreement)
    version: int = 0
    """Number that changes with the members and their subscriptions. No two groups ever have the same number
    (`Clients.version_of`)."""
    said: str = ""
    """The last warning about this group in the log."""
    said_at: float = -math.inf

    @property
    def elsewhere(self) -> dict[str, Elsewhere]:
        """Maps client ids to members that send heartbeats only to other brokers. A member that several
        brokers report appears once."""
        found: dict[str, Elsewhere] = {}
        for told in self.told.values():
            found = told | found
        return found

    def knows(self, client_id: str) -> bool:
        """Return whether the group has this client as a member, connected to this broker or to another
        one."""
        return client_id in self.members or any(client_id in told for told in self.told.values())

    @property
    def client_ids(self) -> list[str]:
        """Ids of all members, sorted."""
        return sorted({*self.members, *(name for told in self.told.values() for name in told)})

    @property
    def connections(self) -> dict[int, Connection]:
        """Connections over which the members are reached, by serial number. For a member that is connected to
        another broker, it is the connection of that broker."""
        here = {member.connection.serial: member.connection for member in self.members.values()}
        return here | {one.connection.serial: one.connection for one in self.elsewhere.values()}

    @property
    def warning(self) -> str:
        """Text about members with different subscriptions or with the same client id; empty if there are
        none. In broadcasting mode it is always empty, because every consumer gets all messages, so that
        members may subscribe differently."""
        if self.message_model == "BROADCASTING":
            return ""
        return self.agreement.warning(self.name, topics_apart=self.consume_type == "CONSUME_POP")

    def subscribe(self, subscriptions: list[Subscription]) -> bool:
        """Replace the subscriptions of the group by those of a heartbeat. Returns whether anything except
        their version numbers changed."""
        changed = False
        for new in subscriptions:
            old = self.subscriptions.get(new.topic)
            if old is None:
                changed = True
            elif new.subVersion > old.subVersion:
                changed |= new.subString != old.subString or new.expressionType != old.expressionType
            else:
                continue
            self.changes += 1
            self.subscriptions[new.topic] = new
        wanted = {subscription.topic: None for subscription in subscriptions}
        for topic in list(self.subscriptions):
            if topic not in wanted:
                del self.subscriptions[topic]
                self.changes += 1
                changed = True
        return changed


class Clients:
    """The table of groups and their members."""

    def __init__(self) -> None:
        self.consumers: dict[str, ConsumerGroup] = {}
        self.producers: dict[str, dict[str, Member]] = {}
        self._notices = Notices(self._to_members)
        self.on_subscribed: Callable[[str], None] = lambda group: None
        """Called with the name of a group after a consumer sent its subscriptions."""
        self.on_members: Callable[[str], None] = lambda group: None
        """Called with the name of a consumer group after its members at this broker, or their subscriptions,
        have changed."""
        self._versions = 0
        """Counts the changes of members, in all groups together."""
        self._last_dropped = 0
        """Version that is reported for all groups without members."""
        self._memberships = 0
        self._by_connection: dict[int, dict[tuple[str, str, str], None]] = {}
        self._connection_of: dict[str, Connection] = {}
        self._consumer_over: dict[tuple[int, str], str] = {}
        """Maps (serial number of a connection, name of a consumer group) to the client id in the last
        heartbeat for this group over this connection."""
        self._elsewhere = 0
        self._told_by: dict[int, dict[str, None]] = {}
        """Maps the serial number of another broker's connection to the groups that the broker has reported
        over it."""

    def add_producer(self, group: str, member: Member) -> None:
        """Note a heartbeat of a producer."""
        members = self.producers.setdefault(group, {})
        self._check_room(member.client_id in members)
        before = members.get(member.client_id)
        self._memberships += before is None
        if before is not None:
            before.whole = False
        members[member.client_id] = member
        self._remember(member.connection, "producer", group, member.client_id)

    def add_consumer(self, data: ConsumerData, member: Member, keep_subscriptions: bool = False) -> None:
        """Note a heartbeat of a consumer. If the group changed, its members are notified (request 40
        NOTIFY_CONSUMER_IDS_CHANGED)."""
        group = self.consumers.get(data.groupName)
        known = group is not None and member.client_id in group.members
        self._check_room(known)
        if group is None:
            group = self.consumers[data.groupName] = ConsumerGroup(
                data.groupName, data.consumeType, data.messageModel, data.consumeFromWhere
            )
        group.consume_type, group.message_model = data.consumeType, data.messageModel
        group.consume_from = data.consumeFromWhere
        before = member.connection
        if known:
            group.members[member.client_id].whole = False
            before = group.members[member.client_id].connection
        moved = before is not member.connection
        if moved and not before.closed:
            group.agreement.moved(member.client_id, before.serial, member.connection.serial)
        group.members[member.client_id] = member
        for told in group.told.values():
            self._elsewhere -= told.pop(member.client_id, None) is not None
        self._memberships += not known
        self._remember(member.connection, "consumer", data.groupName, member.client_id)
        if not keep_subscriptions:
            group.agreement.wants(member.client_id, interests_of(data))
        changed = False if keep_subscriptions else group.subscribe(data.subscriptionDataSet)
        if changed or moved or not known:
            self.on_members(data.groupName)
            self._changed(group)
        if not keep_subscriptions:
            self.on_subscribed(data.groupName)

    def remove_producer(self, group: str, client_id: str) -> None:
        """Remove a producer that unregistered, expired or disconnected."""
        members = self.producers.get(group)
        gone = None if members is None else members.pop(client_id, None)
        if members is not None and gone is not None:
            gone.whole = False
            self._memberships -= 1
            if not members:
                del self.producers[group]

    def remove_consumer(self, group_name: str, client_id: str) -> None:
        """Remove a consumer that unregistered, expired or disconnected. The other members are notified."""
        group = self.consumers.get(group_name)
        gone = None if group is None else group.members.pop(client_id, None)
        if group is None or gone is None:
            return
        gone.whole = False
        self._memberships -= 1
        group.agreement.left(client_id)
        self.on_members(group_name)
        self._tell_or_drop(group)

    def told(self, connection: Connection, here: ConsumersHere, now: float) -> None:
        """Note another broker's report of all members of one group that send heartbeats to that broker. `now`
        is the loop time of the report. Members that also send heartbeats to this broker are left out."""
        group = self.consumers.get(here.groupName)
        if group is None:
            if not here.clients:
                return
            group = self.consumers[here.groupName] = ConsumerGroup(
                here.groupName, here.consumeType, here.messageModel, here.consumeFromWhere
            )
        before = group.told.pop(connection.serial, {})
        self._elsewhere -= len(before)
        heard: dict[str, Elsewhere] = {}
        for client in here.clients:
            if client.clientId not in group.members:
                if self._elsewhere + len(heard) >= MAX_ELSEWHERE:
                    break
                heard[client.clientId] = Elsewhere(connection, client, now)
        differ = any(not group.knows(client_id) for client_id in before.keys() ^ heard.keys())
        if heard:
            group.told[connection.serial] = heard
            self._elsewhere += len(heard)
        self._told_by.setdefault(connection.serial, {})[here.groupName] = None
        changed = False
        if not group.members and heard and here.subscriptions:
            changed = group.subscribe(here.subscriptions)
            self.on_subscribed(here.groupName)
        if changed or differ or not (group.members or group.told):
            self._tell_or_drop(group)

    def forget_elsewhere(self) -> None:
        """Forget all members that only other brokers have reported. Called when this broker stops leading,
        because the reports then go to another leader."""
        for group in list(self.consumers.values()):
            if group.told:
                group.told.clear()
                if not group.members:
                    self._drop(group)
        self._elsewhere = 0
        self._told_by.clear()

    def _tell_or_drop(self, group: ConsumerGroup) -> None:
        if group.members or any(group.told.values()):
            self._changed(group)
        elif self.consumers.get(group.name) is group:
            self._drop(group)

    def _drop(self, group: ConsumerGroup) -> None:
        del self.consumers[group.name]
        self._versions += 1
        self._last_dropped = self._versions

    def _changed(self, group: ConsumerGroup) -> None:
        self._versions += 1
        group.version = self._versions
        self.notify(group)

    def version_of(self, name: str) -> int:
        """Return a number that changes whenever the members of a group or their subscriptions change. Numbers
        of different processes cannot be compared. For a group without members, the number changes whenever
        any group loses its last member."""
        group = self.consumers.get(name)
        return self._last_dropped if group is None else group.version

    def notify(self, group: ConsumerGroup) -> None:
        """Notify all members of a group that it changed (request 40 NOTIFY_CONSUMER_IDS_CHANGED). The members
        then divide the queues again."""
        self._notices.changed(group.name)

    def _to_members(self, name: str) -> Iterable[Callable[[], None]]:
        group = self.consumers.get(name)
        if group is None:
            return
        brokers = {one.connection.serial: one.connection for one in group.elsewhere.values()}
        own = [member.connection for member in group.members.values()]
        for connection in (*own, *brokers.values()):  # other brokers notify their clients
            yield partial(_tell, connection, name)

    def notify_over(self, name: str, connection: Connection) -> None:
        """Notify at once those members of a group that use this connection that the group changed."""
        group = self.consumers.get(name)
        if group is not None and any(one.connection is connection for one in group.members.values()):
            _tell(connection, name)

    def connection_closed(self, connection: Connection) -> None:
        """Forget the clients of a closed connection, except those that have sent heartbeats over another
        connection since."""
        for kind, group, client_id in self._by_connection.pop(connection.serial, {}):
            self._consumer_over.pop((connection.serial, group), None)
            if self._connection_of.get(client_id) is connection:
                del self._connection_of[client_id]
            member = self._member(kind, group, client_id)
            if member is not None and member.connection is connection:
                self._remove(kind, group, client_id)
        for name in self._told_by.pop(connection.serial, {}):
            self._not_told(name, connection.serial)

    def _not_told(self, name: str, serial: int) -> None:
        """Forget the members of a group that another broker reported over the connection with this serial
        number."""
        group = self.consumers.get(name)
        lost = None if group is None else group.told.pop(serial, None)
        if group is not None and lost is not None:
            self._elsewhere -= len(lost)
            if any(not group.knows(client_id) for client_id in lost):
                self._tell_or_drop(group)

    def expire(self, before: float) -> int:
        """Forget members without a heartbeat since loop time `before`. Returns how many clients were
        removed."""
        stale = [
            ("producer", group, member.client_id)
            for group, members in self.producers.items()
            for member in members.values()
            if member.last_seen < before
        ]
        stale += [
            ("consumer", group.name, member.client_id)
            for group in self.consumers.values()
            for member in group.members.values()
            if member.last_seen < before
        ]
        for kind, name, client_id in stale:
            self._remove(kind, name, client_id)
        for group in list(self.consumers.values()):
            for serial, told in list(group.told.items()):
                if any(one.last_told < before for one in islice(told.values(), 1)):  # all have the same time
                    self._not_told(group.name, serial)
        return len(stale)

    def connection_of(self, client_id: str) -> Connection | None:
        """Return the connection that a client uses; None if the client is not connected."""
        connection = self._connection_of.get(client_id)
        return None if connection is None or connection.closed else connection

    def client_over(self, connection: Connection, group: str) -> str | None:
        """Return the client id of that member of a consumer group which uses this connection; None if there
        is none."""
        client_id = self._consumer_over.get((connection.serial, group))
        member = None if client_id is None else self._member("consumer", group, client_id)
        return client_id if member is not None and member.connection is connection else None

    def a_producer(self, group: str) -> Connection | None:
        """Return the connection of a producer of this group to which a request can be sent now; None if there
        is none. Each call tries the producers in turn, so it returns another one
        (ProducerManager.getAvailableChannel)."""
        members = self.producers.get(group, {})
        for _ in range(min(len(members), MAX_LOOKS)):
            member = members.pop(next(iter(members)))
            members[member.client_id] = member
            if not member.connection.closed and not member.connection.slow:
                return member.connection
        return None

    def _check_room(self, known: bool) -> None:
        if not known and self._memberships >= MAX_MEMBERSHIPS:
            raise RemotingError(
                ResponseCode.SYSTEM_BUSY, f"the limit of {MAX_MEMBERSHIPS} clients in groups is reached"
            )

    def _remember(self, connection: Connection, kind: str, group: str, client_id: str) -> None:
        self._by_connection.setdefault(connection.serial, {})[kind, group, client_id] = None
        self._connection_of[client_id] = connection
        if kind == "consumer":
            self._consumer_over[connection.serial, group] = client_id

    def _member(self, kind: str, group: str, client_id: str) -> Member | None:
        if kind == "producer":
            return self.producers.get(group, {}).get(client_id)
        consumers = self.consumers.get(group)
        return None if consumers is None else consumers.members.get(client_id)

    def _remove(self, kind: str, group: str, client_id: str) -> None:
        if kind == "producer":
            self.remove_producer(group, client_id)
        else:
            self.remove_consumer(group, client_id)


def _tell(connection: Connection, group: str) -> None:
    connection.send_oneway(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, {"consumerGroup": group})
