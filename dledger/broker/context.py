"""What a processor or a service of a broker may use: one frozen value, made once by `Broker`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dledger.broker.audit.audit_jobs import AuditJobs
from dledger.broker.auth.required import Needed
from dledger.broker.background import Background
from dledger.broker.clients.client_table import Clients
from dledger.broker.config import BrokerConfig
from dledger.broker.forwarding import Origins
from dledger.broker.intake.resends import Resends
from dledger.broker.intake.send_checks import SendChecks
from dledger.broker.latency.slow_consumers import SlowConsumers
from dledger.broker.leader_gate import LeaderGate
from dledger.broker.offset.pending_offsets import PendingOffsets
from dledger.broker.offset.pull_offsets import PullOffsets
from dledger.broker.pending_responses import PendingResponses
from dledger.broker.pop.pop_ledger import PopLedger
from dledger.broker.ports import Node
from dledger.broker.ratelimit.rate_limits import RateLimits
from dledger.broker.registration.name_servers import NameServers
from dledger.broker.registration.registrar import Registrar
from dledger.broker.stats.broker_stats import BrokerStats
from dledger.broker.store.index_service import IndexService
from dledger.broker.store.message_store import MessageStore
from dledger.broker.store.reader import Reader
from dledger.broker.timer.timer_claims import TimerClaims
from dledger.broker.topic.announcements import TopicAnnouncements
from dledger.broker.topic.deletion import Deletions
from dledger.broker.topic.topic_creation import TopicCreation
from dledger.broker.topic.topic_table import TopicTable
from dledger.remoting.client import RemotingClient
from dledger.remoting.commands import Request
from dledger.remoting.server import Connection
from dledger.remoting.settings_requests import SettingsRequests
from dledger.runtime.env import Env
from dledger.runtime.live_settings import LiveSettings


@dataclass(frozen=True)
class BrokerContext:
    """The parts of one broker. What changes hangs off them, never off this."""

    env: Env
    settings: LiveSettings[BrokerConfig]
    """What counts now: who needs a value reads it there each time."""
    node: Node
    """The replicated log as its host sees it."""
    gate: LeaderGate
    """The log writer of the current leadership, if this node serves."""
    store: MessageStore
    """Applied state and queues: the read point of most answers."""
    reader: Reader
    index: IndexService
    """Messages by key."""
    creation: TopicCreation
    """Rules by which topics and groups come to be."""
    announcements: TopicAnnouncements
    """First acknowledgements in topics that sends created."""
    deletions: Deletions
    """And by which they go."""
    clients: Clients
    client: RemotingClient
    """Connections of our own, to other members and to NameServers."""
    name_servers: NameServers
    offsets: PendingOffsets
    pull_offsets: PullOffsets
    """How far groups have pulled."""
    pops: PopLedger
    """What was popped and is not acknowledged."""
    timers: TimerClaims
    """Up to what time timer messages are being delivered."""
    committed: PendingResponses
    """Answers that wait for the commit of their entry."""
    applied: PendingResponses
    """Answers that wait until their entry is applied here."""
    stats: BrokerStats
    background: Background
    """Answers that need the device."""
    slow_consumers: SlowConsumers
    rates: RateLimits
    send_checks: SendChecks
    """Reasons to refuse what producers send."""
    resends: Resends
    """Messages that are sent again."""
    topic_table: TopicTable
    registrar: Registrar
    audit_jobs: AuditJobs
    members: Callable[[], dict[str, str]]
    """Node id -> `host:port` for clients of every broker of the group, empty while it is not connected."""
    origins: Origins
    """Where forwarded requests come from."""
    check_needed: Callable[[Connection, Request, Needed], None]
    """RemotingError 16 unless who makes a request, which was let in, may do this as well: for what comes out
    when a message is read. Anybody may where nobody has to sign in."""
    by_super_user: Callable[[Request], bool]
    """Whether a request, which was let in, is a super user's; anybody is one where nobody has to sign in."""
    settings_requests: SettingsRequests
    """Changes of settings, one after the other."""
    figures: Callable[[], dict[str, str]]
    """What 28 GET_BROKER_RUNTIME_INFO shows."""
