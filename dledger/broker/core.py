"""The parts that every feature of a broker uses. A feature gets everything else through its own
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
    """The parts that nearly all features use. State that changes is in these parts, not here."""

    env: Env
    settings: LiveSettings[BrokerConfig]
    """The current settings: a part reads a value here each time that it needs it."""
    node: Node
    """The replicated log, as its host sees it."""
    gate: LeaderGate
    """The gate, which has the log writer of the current leadership if this node serves."""
    store: MessageStore
    """Applied state and queues: the read point of most answers."""
    reader: Reader
    """Reads messages of the log."""
    background: Background
    """Requests that need the device."""
    committed: PendingResponses
    """Answers that wait for the commit of their entry."""
    applied: PendingResponses
    """Answers that wait until their entry is applied here."""
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
    """Make the parts that are not given. `totals`: returns how many messages were received and given out
    since the start."""
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
"""Node id -> `host:port` for clients, for every broker of the group; empty for one that is not connected."""
CheckNeeded = Callable[[Connection, Request, Needed], None]
"""Checks one more permission of the sender of an accepted request, which is known only after a message was
read. Raises RemotingError 16 if it is missing. Without access control everything passes."""
BySuperUser = Callable[[Request], bool]
"""Whether a request that passed the checks comes from a super user; always true if requests need no
signature."""
Figures = Callable[[], dict[str, str]]
"""The content of 28 GET_BROKER_RUNTIME_INFO, by key."""
