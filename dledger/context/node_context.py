"""What every part of a node may use."""

from __future__ import annotations

from dataclasses import dataclass

from dledger.config import NodeConfig
from dledger.context.config_log import ConfigLog
from dledger.context.elections import Elections
from dledger.election.elector import Elector
from dledger.host import Host
from dledger.log.store import LogStore
from dledger.peers.held import HeldMessages
from dledger.peers.peers import Peers
from dledger.peers.replicator import Replicator
from dledger.runtime import Env
from dledger.versions import Versions


@dataclass(frozen=True)
class NodeContext:
    """What a node is made of before any of its parts: they look at it, and act through its methods."""

    env: Env
    config: NodeConfig
    log: LogStore
    host: Host
    members: ConfigLog
    """Which configurations there are, and who this node is."""
    versions: Versions
    peers: Peers
    held: HeldMessages
    elector: Elector
    """To be asked; what it answers to an event is for `elections` to perform."""
    elections: Elections
    replicator: Replicator
    """Knows the commit index."""
