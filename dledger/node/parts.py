"""All parts of a node in one object, for modules that need many of them: requests and reports."""

from __future__ import annotations

from dataclasses import dataclass

from dledger.context.applier import Applier
from dledger.log.scrub import Scrubber
from dledger.members.effects import MemberEffects
from dledger.members.joining import Joining
from dledger.node.health import HealthWatch
from dledger.node.leadership import Leadership
from dledger.node.metrics import NodeMetrics
from dledger.node.reads import ReadPoints
from dledger.node.reconfiguration import Reconfiguration
from dledger.node.repair import Repairer
from dledger.node.trust import Trust
from dledger.snapshots.service import Snapshots


@dataclass(frozen=True)
class NodeParts:
    """All parts of one node. The docstring of `dledger.node` lists them."""

    applier: Applier
    snapshots: Snapshots
    membership: MemberEffects
    joining: Joining
    trust: Trust
    leadership: Leadership
    reconfiguration: Reconfiguration
    reads: ReadPoints
    repairer: Repairer
    scrubber: Scrubber
    health: HealthWatch
    metrics: NodeMetrics
