"""The objects that every part of a node may use."""

from __future__ import annotations

from dataclasses import dataclass

from dledger.config import NodeConfig
from dledger.context.config_log import ConfigLog
from dledger.context.elections import Elections
from dledger.election.elector import Elector
from dledger.flight.recorder import FlightRecorder
from dledger.host import Host
from dledger.log.store import LogStore
from dledger.peers.held import HeldMessages
from dledger.peers.peers import Peers
from dledger.peers.replicator import Replicator
from dledger.runtime import Env
from dledger.versions import Versions


@dataclass(frozen=True)
class NodeContext:
    """The objects of a node that are made before its parts. The parts use them, and change them only through
    their methods."""

    env: Env
    config: NodeConfig
    log: LogStore
    host: Host
    members: ConfigLog
    """The known configurations, and this node's identity."""
    versions: Versions
    peers: Peers
    held: HeldMessages
    elector: Elector
    """The elector of this node. The effects that it returns for an event must be passed to `elections`."""
    elections: Elections
    replicator: Replicator
    """Replicates entries to the peers; it also knows the commit index."""
    recorder: FlightRecorder
    """Makes the objects of the pure core, and records their calls if that is switched on."""
