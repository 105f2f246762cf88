"""A group of pure cores: electors and replication wired by a bag of messages, over lists instead of logs.

No loop, no disk, no clock: time is a number that the caller moves, a message is delivered when the caller
says so, and an fsync ends when the caller says so (or at once). It does with effects what `dledger.node.node`
and `dledger.peers.replicator` do with them, in the same order. Scripts (tests/scripts) and random schedules
(tests/dledger) run on it; after every step `check` looks at what Raft promises of the whole group.
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
