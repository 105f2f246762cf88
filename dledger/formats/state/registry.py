"""The list of all tables. To add a kind of replicated state, write a module with its table, and add a line
here.

The following use the list and need no change: replay by brokers, audit and Spark; boundary snapshots and the
state file; the leader's view of pending operations; the state version that voters must know before a table is
written; Spark's view `state`. The simulator's oracle is written by hand on purpose
(dledger/chaos/scenarios/oracle); a test fails if a table is missing there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from dledger.formats.state.auth import ACLS, USERS
from dledger.formats.state.births import GROUP_BIRTHS, LOCK_EPOCHS, TOPIC_BIRTHS, USER_VERSIONS
from dledger.formats.state.delays import DELAYS
from dledger.formats.state.deletions import DELETIONS
from dledger.formats.state.groups import GROUPS
from dledger.formats.state.locks import LOCKS
from dledger.formats.state.offsets import OffsetTable
from dledger.formats.state.pop import POP_ORDERS, POPS, REQUEST_MODES
from dledger.formats.state.queues import QueueEnds
from dledger.formats.state.resends import RESENDS
from dledger.formats.state.resets import RESETS
from dledger.formats.state.table import Source, Table
from dledger.formats.state.timers import TIMERS
from dledger.formats.state.topics import TOPICS
from dledger.formats.state.transactions import TRANSACTIONS
from dledger.formats.state.versions import VERSIONS


@dataclass(frozen=True)
class Compact:
    """Entry of the registry for a table with a class of its own (`kind`), which stores many rows in little
    memory."""

    name: str
    since: int
    kind: Callable[[], Table]

    def make(self) -> Table:
        """Make an empty table."""
        return self.kind()


OFFSETS = Compact("offsets", 1, OffsetTable)
QUEUES = Compact("queues", 1, QueueEnds)

TABLES: tuple[Source, ...] = (
    TOPICS,
    GROUPS,
    OFFSETS,
    QUEUES,
    DELAYS,
    LOCKS,
    POPS,
    POP_ORDERS,
    REQUEST_MODES,
    VERSIONS,
    RESETS,
    TRANSACTIONS,
    DELETIONS,
    TIMERS,
    RESENDS,
    USERS,
    ACLS,
    TOPIC_BIRTHS,
    GROUP_BIRTHS,
    USER_VERSIONS,
    LOCK_EPOCHS,
)


def state_version(tables: Iterable[Source] = TABLES) -> int:
    """Return the newest state version that a program with these tables knows: the highest version of a table.

    A leader writes operations of a table only when every voter of the group knows the version of the table
    (`dledger.versions`).
    """
    return max(table.since for table in tables)
