"""Replicated state of a broker group: its tables, and the machine that applies the log to them.

* `table`      what all tables have in common, and tables that need no code of their own
* `topics`     topics
* `groups`     consumer groups
* `offsets`    consumer offsets
* `queues`     ends of queues
* `delays`     how far delayed messages are delivered
* `locks`      which client consumes a queue in order
* `pop`        messages that were popped and are not acknowledged
* `versions`   state versions that readers of the log must know
* `transactions`   half messages that wait for their end
* `deletions`  deleted topics
* `timers`     how far timer messages are delivered
* `resends`    ids of repeated sends that are stored
* `resets`     offset resets that no consumer has followed
* `auth`       users and their policies
* `births`     data to recognise late requests: when topics and groups were made, version of users, epochs of
  locks
* `registry`   the list of all tables
* `machine`    apply, copy, snapshots
* `pending`    the state together with what a leader appended and has not applied yet
"""

from dledger.formats.state.auth import (
    ACL_DELETE,
    ACLS,
    MAX_PASSWORD,
    MAX_RESOURCE,
    MAX_SOURCE,
    MAX_SOURCES,
    USER_DELETE,
    USERS,
    AclEntry,
    AclKey,
    ActionName,
    PolicyType,
    User,
)
from dledger.formats.state.births import (
    GROUP_BIRTHS,
    LOCK_EPOCHS,
    LOCK_EPOCHS_OP,
    TOPIC_BIRTHS,
    USER_VERSIONS,
    USERS_KEY,
    Birth,
    GroupBirth,
    LockEpoch,
    TopicBirth,
    UserVersion,
    lock_epochs_op,
    lock_epochs_over_op,
)
from dledger.formats.state.delays import DELAYS, MAX_LEVELS, DelayProgress
from dledger.formats.state.deletions import (
    DELETIONS,
    GROUP_DELETE,
    TOPIC_DELETE,
    TopicDeletion,
    forgotten_by,
    group_deletion,
    was_deleted,
)
from dledger.formats.state.groups import GROUPS, GroupConfig
from dledger.formats.state.locks import (
    LOCK_BATCH,
    LOCKS,
    MAX_LOCK_BATCH,
    UNLOCK_BATCH,
    LockKey,
    QueueLock,
    batch_op,
)
from dledger.formats.state.machine import (
    ReplicatedState,
    StateCopy,
    UnknownOperation,
    holds_state,
    pack_op,
    pack_parts,
    queue_ends,
    unpack_parts,
)
from dledger.formats.state.offsets import offsets_op
from dledger.formats.state.pending import Pending
from dledger.formats.state.pop import (
    MAX_INVISIBLE_MS,
    MAX_POP_MESSAGES,
    POP,
    POP_DONE,
    POP_ORDER,
    POP_ORDERS,
    POPS,
    REQUEST_MODES,
    CheckpointKey,
    OrderKey,
    PopCheckpoint,
    PopOrder,
    RequestMode,
    done_op,
)
from dledger.formats.state.queues import QueueBounds
from dledger.formats.state.registry import TABLES, state_version
from dledger.formats.state.resends import MAX_RESENDS, RESEND, RESEND_LIVE_MS, RESENDS, Resend
from dledger.formats.state.resets import (
    MAX_RESET_QUEUES,
    RESETS,
    OffsetReset,
    heard_op,
)
from dledger.formats.state.table import (
    MAX_INT,
    MAX_NAME,
    MAX_OFFSET,
    MAX_QUEUES,
    PIECE,
    Declared,
    DeclaredTable,
    Malformed,
    Op,
    Row,
    Source,
    StateRow,
)
from dledger.formats.state.timers import (
    MAX_TIMER_ROWS,
    TIMER,
    TIMERS,
    TimerProgress,
)
from dledger.formats.state.topics import TOPICS, Perm, TopicConfig
from dledger.formats.state.transactions import MAX_WAIT_MS, TRANSACTION, TRANSACTIONS, Transaction
from dledger.formats.state.versions import VERSIONS, VersionNote

__all__ = [
    "ACLS",
    "ACL_DELETE",
    "DELAYS",
    "DELETIONS",
    "GROUPS",
    "GROUP_BIRTHS",
    "GROUP_DELETE",
    "LOCKS",
    "LOCK_BATCH",
    "LOCK_EPOCHS",
    "LOCK_EPOCHS_OP",
    "MAX_INT",
    "MAX_INVISIBLE_MS",
    "MAX_LEVELS",
    "MAX_LOCK_BATCH",
    "MAX_NAME",
    "MAX_OFFSET",
    "MAX_PASSWORD",
    "MAX_POP_MESSAGES",
    "MAX_QUEUES",
    "MAX_RESENDS",
    "MAX_RESET_QUEUES",
    "MAX_RESOURCE",
    "MAX_SOURCE",
    "MAX_SOURCES",
    "MAX_TIMER_ROWS",
    "MAX_WAIT_MS",
    "PIECE",
    "POP",
    "POPS",
    "POP_DONE",
    "POP_ORDER",
    "POP_ORDERS",
    "REQUEST_MODES",
    "RESEND",
    "RESENDS",
    "RESEND_LIVE_MS",
    "RESETS",
    "TABLES",
    "TIMER",
    "TIMERS",
    "TOPICS",
    "TOPIC_BIRTHS",
    "TOPIC_DELETE",
    "TRANSACTION",
    "TRANSACTIONS",
    "UNLOCK_BATCH",
    "USERS",
    "USERS_KEY",
    "USER_DELETE",
    "USER_VERSIONS",
    "VERSIONS",
    "AclEntry",
    "AclKey",
    "ActionName",
    "Birth",
    "CheckpointKey",
    "Declared",
    "DeclaredTable",
    "DelayProgress",
    "GroupBirth",
    "GroupConfig",
    "LockEpoch",
    "LockKey",
    "Malformed",
    "OffsetReset",
    "Op",
    "OrderKey",
    "Pending",
    "Perm",
    "PolicyType",
    "PopCheckpoint",
    "PopOrder",
    "QueueBounds",
    "QueueLock",
    "ReplicatedState",
    "RequestMode",
    "Resend",
    "Row",
    "Source",
    "StateCopy",
    "StateRow",
    "TimerProgress",
    "TopicBirth",
    "TopicConfig",
    "TopicDeletion",
    "Transaction",
    "UnknownOperation",
    "User",
    "UserVersion",
    "VersionNote",
    "batch_op",
    "done_op",
    "forgotten_by",
    "group_deletion",
    "heard_op",
    "holds_state",
    "lock_epochs_op",
    "lock_epochs_over_op",
    "offsets_op",
    "pack_op",
    "pack_parts",
    "queue_ends",
    "state_version",
    "unpack_parts",
    "was_deleted",
]
