"""The route tables (RouteInfoManager). Pure: no I/O, `now` (seconds of a monotonic clock) is an argument.

A broker group is one brokerName. Its nodes register with broker ids; the master has 0. Only the master's
registration says which topics there are. Rules:

* When an address registers under another id, its old id is removed first (a slave became the master, or the
  master a slave).
* Fencing (safety.md S23): the master's DataVersion.stateVersion is the term of its leadership. The highest
  term of each brokerName is remembered while the address that reported it is registered. A registration with
  id 0 and a lower term from another address is refused. A NameServer does not know the members of a group,
  and any sender can claim a high term. So a claim to a term that is at least `SETTLED_S` old can be
  overridden. This happens when more of the group's addresses contradict the claim than support it
  (`_contradicted`). (A true leader was elected by a majority, whose registrations have its term.)
* A registration ends when its connection closes, when it is withdrawn, or when nothing was heard from the
  node for the registration's time-out. A late event about an old owner of an id never removes the new owner.
* The topics of a group stay while any node of the group is registered.

A method that changes many topics is a generator, which yields after each `PIECE` topics. Requests that arrive
meanwhile are answered from the present state. No other change may begin before the generator has ended
(`namesrv.changes`).
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping
from dataclasses import dataclass, field

from dledger.remoting.bodies import (
    MASTER_ID,
    PERM_READ,
    PERM_WRITE,
    BrokerData,
    BrokerMemberGroup,
    ClusterInfo,
    QueueData,
    TopicRoute,
)
from dledger.remoting.codes import ResponseCode
from dledger.remoting.errors import RemotingError
from dledger.remoting.registration import DataVersion, Registration, TopicConfig

DEFAULT_TIMEOUT_S = 120.0
"""Time, in seconds, without a sign of life after which a registration expires
(DEFAULT_BROKER_CHANNEL_EXPIRED_TIME)."""

SETTLED_S = 60.0
"""Time, in seconds, for which a master's claim to a term holds before other members may override it. Members
register every 30 s. When a new leader registers first, some members may not have heard of it yet."""
MAX_BROKER_NAMES = 10_000
"""Largest number of broker groups; a further name is refused."""
MAX_TOPICS = 1_000_000
"""Largest number of topics; a registration that would exceed it is refused."""
PIECE = 1000
"""Number of topics that are changed in one step, which takes a millisecond or two."""


@dataclass(frozen=True)
class BrokerIdentity:
    """Name, id and address with which a broker registers."""

    cluster: str
    name: str
    id: int
    address: str


@dataclass
class LiveBroker:
    """One registered node. `channel` is the number of its connection. `data_version` is None if the
    registration was incomplete."""

    identity: BrokerIdentity
    channel: int
    last_seen: float
    timeout_s: float
    ha_address: str
    data_version: DataVersion | None
    term: int
    """stateVersion of the broker's last registration."""
    registered: float
    """When the broker registered last."""
    filter_servers: list[str] = field(default_factory=list)


@dataclass
class Group:
    """One broker group: the addresses of its brokers by id, and its topics."""

    cluster: str
    addresses: dict[int, str] = field(default_factory=dict)
    enable_acting_master: bool = False
    zone: str | None = None
    topics: dict[str, QueueData] = field(default_factory=dict)


@dataclass(frozen=True)
class Term:
    """The highest stateVersion (term) with which an address registered as the master of a group."""

    value: int
    address: str
    since: float
    """When the address first registered with this term."""


@dataclass(frozen=True)
class Registered:
    """Answer to a registration: for a slave, the address of its master."""

    master_address: str | None = None
    ha_address: str | None = None


class Routes:
    """All route tables. `revision` changes with every change that a reader can see."""

    def __init__(self) -> None:
        self.revision: int = 0
        self.terms: dict[str, Term] = {}
        self._groups: dict[str, Group] = {}
        self._live: dict[str, LiveBroker] = {}  # by address
        self._topics: dict[str, dict[str, QueueData]] = {}  # topic -> brokerName -> queues

    # --- registration ---------------------------------------------------------------------------------

    def register(
        self,
        now: float,
        identity: BrokerIdentity,
        registration: Registration,
        *,
        channel: int,
        ha_address: str = "",
        timeout_s: float = DEFAULT_TIMEOUT_S,
        enable_acting_master: bool = False,
        whole_table: bool = False,
        zone: str | None = None,
    ) -> Generator[None, None, Registered]:
        """Enter a node, or renew its registration. Raises RemotingError (code 1) if it is refused; then
        nothing was changed.

        With `whole_table`, topics that are missing in the registration are removed from the group. (Apache's
        brokers may report only changes.)"""
        self._check(identity, registration)
        version = registration.data_version
        if identity.id == MASTER_ID:
            self._remember_term(now, identity, version)
        known = self._live.get(identity.address)
        if known is not None and known.identity != identity:
            if known.identity.name != identity.name:
                yield from self._remove(known)
            else:  # another role: its group stays, even if it is the only node
                del self._groups[identity.name].addresses[known.identity.id]
                self.revision += 1
            known = None
        group = self._groups.get(identity.name)
        if group is None:
            group = self._groups[identity.name] = Group(identity.cluster)
            self.revision += 1
        told = identity.cluster, enable_acting_master, zone
        if (group.cluster, group.enable_acting_master, group.zone) != told:
            group.cluster, group.enable_acting_master, group.zone = told
            self.revision += 1
        previous = group.addresses.get(identity.id)
        if previous != identity.address:
            if previous is not None:
                self._forget(identity.name, previous)  # the displaced owner of this id
            group.addresses[identity.id] = identity.address
            self.revision += 1
        first = known is None
        if identity.id == MASTER_ID and (known is None or known.data_version != version):
            yield from self._apply_topics(identity.name, group, registration.topics)
            if whole_table:
                gone = group.topics.keys() - registration.topics.keys()
                yield from self._drop_topics(identity.name, group, gone)
        # A first registration with a single topic may be an increment from a broker that thinks we know the
        # rest. Its version is not trusted, so that 322 asks for the full table. (Apache refuses it.)
        partial = first and len(registration.topics) == 1
        filter_servers = known.filter_servers if known is not None else []
        if registration.filter_servers is not None and registration.filter_servers != filter_servers:
            filter_servers = registration.filter_servers
            self.revision += 1
        self._live[identity.address] = LiveBroker(
            identity,
            channel,
            now,
            timeout_s,
            ha_address,
            None if partial else version,
            version.stateVersion,
            now,
            filter_servers,
        )
        return self._master_of(group) if identity.id != MASTER_ID else Registered()

    def _check(self, identity: BrokerIdentity, registration: Registration) -> None:
        if not identity.name or not identity.address or not identity.cluster:
            raise _refused("brokerName, brokerAddr and clusterName must not be empty")
        if identity.id < 0:
            raise _refused(f"brokerId {identity.id} is negative")
        if identity.name not in self._groups and len(self._groups) >= MAX_BROKER_NAMES:
            raise _refused(f"{MAX_BROKER_NAMES} broker groups are registered, and that is the limit")
        if len(self._topics) + len(registration.topics) > MAX_TOPICS:
            new = sum(1 for topic in registration.topics if topic not in self._topics)
            if len(self._topics) + new > MAX_TOPICS:
                raise _refused(f"the limit of {MAX_TOPICS} topics is reached")

    def _remember_term(self, now: float, identity: BrokerIdentity, version: DataVersion) -> None:
        """Refuse a master of an older term, and remember the highest term (safety.md S23)."""
        highest = self.terms.get(identity.name)
        if (
            highest is not None
            and version.stateVersion < highest.value
            and highest.address != identity.address
            and not self._contradicted(now, identity, highest)
        ):
            raise _refused(
                f"{identity.address} registers as master of {identity.name} with stateVersion (term) "
                f"{version.stateVersion}, but {highest.address} is registered with {highest.value}. "
                "If that term is wrong, the reports of the other members of the group override it "
                f"after {SETTLED_S:.0f} s"
            )
        claim = Term(version.stateVersion, identity.address, now)
        if highest is not None and (highest.value, highest.address) == (claim.value, claim.address):
            return
        self.terms.pop(identity.name, None)
        if claim.value > 0:
            self.terms[identity.name] = claim

    def _contradicted(self, now: float, identity: BrokerIdentity, claim: Term) -> bool:
        """Whether more addresses of the group contradict the claim to a term than support it. An address
        contradicts the claim if it has registered with a lower term since the claim was made. It supports the
        claim if it has that term, a higher one, or is not registered."""
        group = self._groups.get(identity.name)
        if group is None or now - claim.since < SETTLED_S:
            return False
        others = {*group.addresses.values(), claim.address} - {identity.address}
        against, behind = 1, 0  # the address that registers now contradicts the claim
        for address in others:
            broker = self._live.get(address)
            if broker is not None and broker.term < claim.value:
                against += broker.registered > claim.since
            else:
                behind += 1
        return against > behind

    def _apply_topics(
        self, name: str, group: Group, topics: Mapping[str, TopicConfig]
    ) -> Generator[None, None, None]:
        for count, (topic, config) in enumerate(topics.items(), 1):
            if count % PIECE == 0:
                yield
            data = QueueData(
                name, config.readQueueNums, config.writeQueueNums, config.perm, config.topicSysFlag
            )
            if group.topics.get(topic) != data:
                self._set_topic(name, group, topic, data)

    def _set_topic(self, name: str, group: Group, topic: str, data: QueueData) -> None:
        group.topics[topic] = data
        self._topics.setdefault(topic, {})[name] = data
        self.revision += 1

    def _master_of(self, group: Group) -> Registered:
        master = self._live.get(group.addresses.get(MASTER_ID, ""))
        return Registered(master.identity.address, master.ha_address) if master is not None else Registered()

    def unregister(self, identity: BrokerIdentity) -> Generator[None, None, bool]:
        """Withdraw a registration. Returns False if the address no longer has that id."""
        known = self._live.get(identity.address)
        if known is None or known.identity.name != identity.name or known.identity.id != identity.id:
            return False
        yield from self._remove(known)
        return True

    def heartbeat(self, now: float, address: str, timeout_s: float | None = None) -> bool:
        """Note a sign of life without content (904 BROKER_HEARTBEAT, 322 QUERY_DATA_VERSION). Returns False
        if the address is not registered."""
        known = self._live.get(address)
        if known is None:
            return False
        known.last_seen = now
        if timeout_s is not None:
            known.timeout_s = timeout_s
        return True

    def channel_closed(self, channel: int) -> Generator[None, None, list[BrokerIdentity]]:
        """Remove the nodes whose last registration came over this connection."""
        gone = [broker for broker in self._live.values() if broker.channel == channel]
        for broker in gone:
            yield from self._remove(broker)
        return [broker.identity for broker in gone]

    def expire(self, now: float) -> Generator[None, None, list[LiveBroker]]:
        """Remove the nodes that were silent for longer than their time-out."""
        silent = [broker for broker in self._live.values() if broker.last_seen + broker.timeout_s < now]
        gone = []
        for broker in silent:
            if broker.last_seen + broker.timeout_s < now:  # it may have been heard while others were removed
                gone.append(broker)
                yield from self._remove(broker)
        return gone

    def _remove(self, broker: LiveBroker) -> Generator[None, None, None]:
        identity = broker.identity
        self.revision += 1
        self._forget(identity.name, identity.address)
        group = self._groups.get(identity.name)
        if group is None:
            return
        if group.addresses.get(identity.id) == identity.address:
            del group.addresses[identity.id]
        if not group.addresses:
            yield from self._drop_topics(identity.name, group, group.topics)
            del self._groups[identity.name]

    def _forget(self, name: str, address: str) -> None:
        """Note that an address is no longer registered. This also ends its claim to a term."""
        self._live.pop(address, None)
        claim = self.terms.get(name)
        if claim is not None and claim.address == address:
            del self.terms[name]

    def _drop_topics(self, name: str, group: Group, topics: Iterable[str]) -> Generator[None, None, None]:
        for count, topic in enumerate(list(topics), 1):
            if count % PIECE == 0:
                yield
            self._drop_topic(name, group, topic)

    def _drop_topic(self, name: str, group: Group, topic: str) -> None:
        del group.topics[topic]
        by_broker = self._topics[topic]
        del by_broker[name]
        if not by_broker:
            del self._topics[topic]
        self.revision += 1

    def data_version(self, identity: BrokerIdentity) -> DataVersion | None:
        """Return the version of the last full registration of this node."""
        known = self._live.get(identity.address)
        return known.data_version if known is not None and known.identity == identity else None

    # --- topics ---------------------------------------------------------------------------------------

    def add_write_perm(self, name: str) -> Generator[None, None, int]:
        """Allow producers to write to a group again (327 ADD_WRITE_PERM_OF_BROKER); returns the number of
        topics."""
        return self._change_perm(name, PERM_READ | PERM_WRITE, 0)

    def wipe_write_perm(self, name: str) -> Generator[None, None, int]:
        """Stop producers from writing to a group until its topics change (205 WIPE_WRITE_PERM_OF_BROKER);
        returns the number of topics."""
        return self._change_perm(name, 0, PERM_WRITE)

    def _change_perm(self, name: str, add: int, remove: int) -> Generator[None, None, int]:
        group = self._groups.get(name)
        if group is None:
            return 0
        for count, (topic, data) in enumerate(list(group.topics.items()), 1):
            if count % PIECE == 0:
                yield
            perm = (data.perm | add) & ~remove
            changed = QueueData(name, data.readQueueNums, data.writeQueueNums, perm, data.topicSysFlag)
            self._set_topic(name, group, topic, changed)
        return len(group.topics)

    def delete_topic(self, topic: str, cluster: str | None = None) -> bool:
        """Forget a topic, in one cluster or everywhere (216 DELETE_TOPIC_IN_NAMESRV)."""
        names = [
            name
            for name in self._topics.get(topic, {})
            if cluster is None or self._groups[name].cluster == cluster
        ]
        for name in names:
            self._drop_topic(name, self._groups[name], topic)
        return bool(names)

    def register_topic(self, topic: str, queues: list[QueueData]) -> None:
        """Add a topic to the named broker groups, as far as they are known (217
        REGISTER_TOPIC_IN_NAMESRV)."""
        for data in queues:
            group = self._groups.get(data.brokerName)
            if group is not None:
                self._set_topic(data.brokerName, group, topic, data)

    # --- questions ------------------------------------------------------------------------------------

    def route(self, topic: str, order_conf: str | None = None) -> TopicRoute | None:
        """Return the route of a topic; None if no group has it."""
        by_broker = self._topics.get(topic)
        if not by_broker:
            return None
        names = sorted(by_broker)
        filters = {}
        for name in names:
            for address in self._groups[name].addresses.values():
                broker = self._live.get(address)
                if broker is not None and broker.filter_servers:
                    filters[address] = broker.filter_servers
        return TopicRoute(
            [by_broker[name] for name in names],
            [self._broker_data(name) for name in names],
            filters,
            order_conf,
        )

    def _broker_data(self, name: str) -> BrokerData:
        group = self._groups[name]
        return BrokerData(group.cluster, name, dict(group.addresses), group.enable_acting_master, group.zone)

    def cluster_info(self) -> ClusterInfo:
        """Return all groups and clusters."""
        clusters: dict[str, list[str]] = {}
        for name in sorted(self._groups):
            clusters.setdefault(self._groups[name].cluster, []).append(name)
        return ClusterInfo({name: self._broker_data(name) for name in sorted(self._groups)}, clusters)

    def member_group(self, cluster: str, name: str) -> BrokerMemberGroup | None:
        """Return the nodes of one group."""
        group = self._groups.get(name)
        if group is None or group.cluster != cluster:
            return None
        return BrokerMemberGroup(cluster, name, dict(group.addresses))

    @property
    def group_count(self) -> int:
        """Number of broker groups."""
        return len(self._groups)

    def has_group(self, name: str) -> bool:
        """Whether a node of this broker group is registered."""
        return name in self._groups

    @property
    def topic_count(self) -> int:
        """Number of topics of all broker groups."""
        return len(self._topics)

    def topics(self) -> list[str]:
        """Return all topics."""
        return sorted(self._topics)

    def topics_of_cluster(self, cluster: str) -> list[str]:
        """Return the topics of a cluster."""
        found = {
            topic: None
            for group in self._groups.values()
            if group.cluster == cluster
            for topic in group.topics
        }
        return sorted(found)

    def system_topics(self) -> tuple[list[str], str | None]:
        """Return the names of clusters and groups, which are topics as well, and the address of some master
        (304 GET_SYSTEM_TOPIC_LIST_FROM_NS)."""
        clusters = sorted({group.cluster for group in self._groups.values()})
        masters = sorted(
            group.addresses[MASTER_ID] for group in self._groups.values() if MASTER_ID in group.addresses
        )
        return clusters + sorted(self._groups), masters[0] if masters else None

    def live(self) -> list[LiveBroker]:
        """Every registered node, in the order of the registrations."""
        return list(self._live.values())


def _refused(remark: str) -> RemotingError:
    return RemotingError(ResponseCode.SYSTEM_ERROR, f"register broker failed: {remark}")
