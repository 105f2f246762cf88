"""All features of a broker. They are made one after the other, so that a feature comes after the features
that it uses.

A new feature is a folder with a `feature.py`, and in this module a field of `Features` and a line of
`make_features`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields

from dledger.broker.admin.feature import AdminFeature
from dledger.broker.audit.feature import AuditFeature
from dledger.broker.auth.feature import AuthFeature
from dledger.broker.clients.feature import ClientsFeature
from dledger.broker.core import Core, Figures, HealthReport, Members
from dledger.broker.feature import Feature
from dledger.broker.forwarding import Origins
from dledger.broker.intake.feature import IntakeFeature
from dledger.broker.intake.send_checks import SendChecks
from dledger.broker.latency.feature import LatencyFeature
from dledger.broker.loadbalance.feature import LoadBalanceFeature
from dledger.broker.longpolling.feature import LongPollingFeature
from dledger.broker.offset.feature import OffsetFeature
from dledger.broker.pop.feature import PopFeature
from dledger.broker.ratelimit.feature import RateLimitFeature
from dledger.broker.registration.feature import RegistrationFeature
from dledger.broker.schedule.feature import ScheduleFeature
from dledger.broker.stats.feature import StatsFeature
from dledger.broker.store.feature import StoreFeature
from dledger.broker.store.index_service import IndexService
from dledger.broker.timer.feature import TimerFeature
from dledger.broker.topic.feature import TopicFeature
from dledger.broker.topic.topic_table import TopicTable
from dledger.broker.transaction.feature import TransactionFeature
from dledger.remoting.client import RemotingClient


@dataclass(frozen=True)
class Features:
    """One object of each feature class."""

    registration: RegistrationFeature
    topic: TopicFeature
    offset: OffsetFeature
    latency: LatencyFeature
    ratelimit: RateLimitFeature
    timer: TimerFeature
    auth: AuthFeature
    intake: IntakeFeature
    longpolling: LongPollingFeature
    clients: ClientsFeature
    pop: PopFeature
    schedule: ScheduleFeature
    transaction: TransactionFeature
    stats: StatsFeature
    loadbalance: LoadBalanceFeature
    audit: AuditFeature
    store: StoreFeature
    admin: AdminFeature

    def __iter__(self) -> Iterator[Feature]:
        """Iterate over the features in the order of the fields, which is the order in which services
        begin."""
        return (getattr(self, field.name) for field in fields(self))

    def all_of(self, name: str) -> Callable[..., None]:
        """Return a function that calls the method `name` of all features that override it, in the order of
        the fields."""
        hooks = [getattr(one, name) for one in self if getattr(type(one), name) is not getattr(Feature, name)]

        def call(*values: object) -> None:
            for hook in hooks:
                hook(*values)

        return call


@dataclass(frozen=True)
class Shared:
    """Parts that some features share and that do not belong to `Core`."""

    client: RemotingClient
    """This broker's own connections, to other members and to NameServers."""
    index: IndexService
    """The index of messages by key."""
    table: TopicTable
    members: Members
    origins: Origins
    """Finds out where forwarded requests come from."""
    figures: Figures
    health: HealthReport
    settings_file: str
    """The file that the settings came from, or empty if there is no file."""


def make_features(core: Core, shared: Shared) -> Features:
    """Make one object of each feature class."""
    client, members, origins = shared.client, shared.members, shared.origins
    registration = RegistrationFeature(core, client, shared.table)
    topic = TopicFeature(core, shared.table, registration.registrar)
    offset = OffsetFeature(core, topic)
    latency = LatencyFeature(core)
    ratelimit = RateLimitFeature(core)
    timer = TimerFeature(core)
    auth = AuthFeature(core, origins, shared.settings_file)
    checks = SendChecks()
    rates, slow_consumers = ratelimit.rates, latency.slow_consumers
    features = Features(
        registration=registration,
        topic=topic,
        offset=offset,
        latency=latency,
        ratelimit=ratelimit,
        timer=timer,
        auth=auth,
        intake=IntakeFeature(core, shared.index, origins, checks, auth, topic, timer),
        longpolling=LongPollingFeature(
            core, client, members, origins, topic.creation, offset, rates, slow_consumers
        ),
        clients=ClientsFeature(core, client, members, origins, topic),
        pop=PopFeature(core, topic, offset.offsets, rates),
        schedule=ScheduleFeature(core, members),
        transaction=TransactionFeature(core, client, members, origins, auth.check_needed),
        stats=StatsFeature(core, offset, registration.registrar),
        loadbalance=LoadBalanceFeature(core, client, topic.creation, registration.name_servers),
        audit=AuditFeature(core, members),
        store=StoreFeature(core, shared.index, shared.table, registration.registrar),
        admin=AdminFeature(
            core, shared.index, members, registration.registrar, shared.figures, shared.health
        ),
    )
    checks.ask([check for feature in features for check in feature.send_checks])
    return features
