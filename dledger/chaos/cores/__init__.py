"""A simulated group of pure cores. Its electors and replications exchange messages through a bag, and work on
lists instead of logs.

A pure core is election or replication code without an event loop, a disk or a clock. The bag holds the
messages in flight, and a list stands for each log. Time is a number that the caller moves. A message is
delivered when the caller says so, and an fsync ends when the caller says so (or at once). The group performs
effects in the same order as `dledger.node.node` and `dledger.peers.replicator`.

Scripts (tests/scripts) and random schedules (tests/dledger) run on this group. After every step `check`
verifies what Raft promises of the whole group.
"""

from dledger.chaos.cores.group import SETTINGS, CoreGroup, CoreNode, FixedChance, PromiseBroken
from dledger.chaos.cores.list_log import Entry, ListLog
from dledger.chaos.cores.mail import Envelope, describe

__all__ = [
    "SETTINGS",
    "CoreGroup",
    "CoreNode",
    "Entry",
    "Envelope",
    "FixedChance",
    "ListLog",
    "PromiseBroken",
    "describe",
]
