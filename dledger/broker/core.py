"""The parts that every feature of a broker uses. A feature gets all other parts through its own
constructor."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dledger.broker.auth.required import Needed
from dledger.broker.background import Background
from dledger.broker.clients.client_table import Clients
from dledger.broker.config import BrokerConfig
from dledger.broker.leader_gate import LeaderGate
from dledger.broker.pending_responses import PendingResponses
from dledger.broker.ports import Node
from dledger.broker.stats.broker_stats import BrokerStats
from dledger.broker.store.message_store import MessageStore
from dledger.broker.store.reader import Reader
from dledger.remoting.commands import Request
from dledger.remoting.server import Connection
from dledger.runtime.env import Env
from dledger.runtime.live_settings import LiveSettings


@dataclass(frozen=True)
class Core:
    """The parts that nearly all features use. This object itself never changes; state that changes is inside
    the parts."""

    env: Env
    settings: LiveSettings[BrokerConfig]
    """The current settings. A part reads a value here each time that it needs it."""
    node: Node
    """The replicated log, as the broker sees it."""
    gate: LeaderGate
    """Decides which requests are served now. While this node serves, it has the log writer of the current
    leadership."""
    store: MessageStore
    """Applied state and queues. Most answers are read from them."""
    reader: Reader
    """Reads messages from the log."""
    background: Background
    """Runs requests that must read from the device."""
    committed: PendingResponses
    """Answers that wait until their entries are committed."""
    applied: PendingResponses
    """Answers that wait until their entries are applied on this node."""
    stats: BrokerStats
    clients: Clients
    """Producers and consumers that are connected to brokers of the group."""


def make_core(
    env: Env,
    settings: LiveSettings[BrokerConfig],
    node: Node,
    gate: LeaderGate,
    store: MessageStore,
    totals: Callable[[], tuple[int, int]],
) -> Core:
    """Make the parts that are not given, and put all parts together. `totals`: a function that returns how
    many messages were received and how many were delivered since the start."""
    return Core(
        env=env,
        settings=settings,
        node=node,
        gate=gate,
        store=store,
        reader=Reader(env, store, node.log),
        background=Background(),
        committed=PendingResponses(),
        applied=PendingResponses(),
        stats=BrokerStats(env, settings.now.cluster_name, totals),
        clients=Clients(),
    )


Members = Callable[[], dict[str, str]]
"""Function that returns the address for clients, `host:port`, of every broker of the group, by node id. The
address is empty for a broker that is not connected."""
CheckNeeded = Callable[[Connection, Request, Needed], None]
"""Function that checks one more permission of the sender of an accepted request. It is for a permission that
is known only after a message was read. Raises RemotingError with code 16 NO_PERMISSION if it is missing.
Without access control every request passes."""
BySuperUser = Callable[[Request], bool]
"""Function that returns whether a request that passed the checks comes from a super user. It returns True for
every request if requests need no signature."""
Figures = Callable[[], dict[str, str]]
"""Function that returns the content of 28 GET_BROKER_RUNTIME_INFO, by key."""
HealthReport = Callable[[], dict[str, object]]
"""Function that returns the object that /health shows."""
