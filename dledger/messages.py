"""Every message between peers, as values. `docs/reference/protocol.md` explains the exchanges.

| message | from -> to | answered by | purpose |
|---|---|---|---|
| VoteRequest | candidate -> voters | VoteResponse | pre-vote (`pre`) and vote |
| Heartbeat | leader -> all | HeartbeatResponse | keep leadership, check the quorum |
| TimeoutNow | leader -> successor | - | leadership transfer |
| Compare | leader -> peer | PushResponse | find where the logs agree |
| Truncate | leader -> peer | PushResponse | cut a suffix that conflicts |
| Append | leader -> peer | PushResponse | entries |
| Commit | leader -> peer | - | commit index, when no Append carries it |
| InstallSnapshot | leader -> peer | InstallResponse | a piece of a snapshot, for a peer far behind |
| RepairRequest | any -> any | RepairResponse | entries that are rotten here (safety.md S4) |
| ReadIndexRequest | follower -> leader | ReadIndexResponse | a linearizable read point (dissertation 6.4) |

The last three and their answers, and the fields with a default, belong to protocol version 2: they are
sent only to a peer whose hello offers it.

Names of codes are DLedger's (DLedgerResponseCode, VoteResponse.RESULT).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, IntFlag


class VoteResult(IntEnum):
    """Answer to a vote request (VoteResponse.RESULT)."""

    UNKNOWN = 0
    """This node does not vote at all: its store is not to be trusted yet."""
    ACCEPT = 1
    REJECT_ALREADY_VOTED = 2
    REJECT_ALREADY_HAS_LEADER = 3
    REJECT_TERM_SMALL_THAN_LEDGER = 4
    REJECT_EXPIRED_VOTE_TERM = 5
    REJECT_EXPIRED_LEDGER_TERM = 6
    REJECT_SMALL_LEDGER_END_INDEX = 7
    REJECT_TERM_NOT_READY = 8


class Code(IntEnum):
    """Outcome of heartbeats, pushes and client requests (DLedgerResponseCode; the numbers are ours)."""

    SUCCESS = 0
    EXPIRED_TERM = 1
    INCONSISTENT_LEADER = 2
    INCONSISTENT_STATE = 3
    UNKNOWN_MEMBER = 4
    UNKNOWN_GROUP = 5
    NOT_LEADER = 6
    LEADER_PENDING_FULL = 7
    DISK_FULL = 8
    UNEXPECTED_ARGUMENT = 9
    TERM_CHANGED = 10
    WAIT_QUORUM_ACK_TIMEOUT = 11
    CONFIG_PENDING = 20
    """Another change of the members is not committed yet."""
    CONFIG_REFUSED = 21
    """A change of the members, or a transfer, that cannot be made; the text says why."""


@dataclass(frozen=True, slots=True)
class VoteRequest:
    """`term` is the term asked for (in a pre-vote: the current term + 1, which is not yet taken)."""

    term: int
    candidate: str
    last_index: int
    last_term: int
    pre: bool = False
    transfer: bool = False
    """The leader told the candidate to stand: stickiness does not apply (S19)."""
    commanded: bool = False
    """An operator had it do so: no failure of that leader (`dledger.election.preferred`)."""


@dataclass(frozen=True, slots=True)
class VoteResponse:
    """`term` is the voter's, `asked_term` and `pre` repeat the request."""

    term: int
    asked_term: int
    pre: bool
    result: VoteResult


class Health(IntFlag):
    """What a node tells its leader of itself, so that leadership does not go where it cannot stay."""

    GOOD = 0
    DISK_FULL = 1
    FAULTY = 2
    """Entries of its log are rotten and not yet repaired."""
    STALLED = 4
    """Its disk did not answer for longer than the limit."""
    SLOW = 8
    """It led, and its disk could not keep up with those of the others."""
    LEAVING = 16
    """It is about to end in good order."""


class Holding(IntEnum):
    """What a node knows of an entry that a peer asks for (safety.md S4)."""

    HAVE = 0
    FAULTY = 1
    NEVER_HAD = 2


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """Sent by the leader of `term` each interval, and at once when a read point is wanted.

    `round` numbers the leader's rounds of heartbeats within its term.
    """

    term: int
    leader: str
    round: int = 0


@dataclass(frozen=True, slots=True)
class HeartbeatResponse:
    """`term` is the responder's, `round` repeats the heartbeat's, `health` is a set of `Health` flags."""

    term: int
    code: Code
    round: int = 0
    health: int = 0


@dataclass(frozen=True, slots=True)
class TimeoutNow:
    """Stand for election at once (Raft dissertation 3.10)."""

    term: int
    leader: str
    commanded: bool = False
    """By an operator: the vote request says so."""


@dataclass(frozen=True, slots=True)
class Compare:
    """Does your entry at `index` have `entry_term`? index -1 (term -1) always agrees."""

    term: int
    leader: str
    index: int
    entry_term: int
    commit_index: int


@dataclass(frozen=True, slots=True)
class Truncate:
    """Cut from `index` on if your entry there is not of `entry_term` (the leader's is)."""

    term: int
    leader: str
    index: int
    entry_term: int
    commit_index: int


@dataclass(frozen=True, slots=True)
class Append:
    """Entries `first..last`, bytes as the leader wrote them, the first at log offset `pos`."""

    term: int
    leader: str
    prev_index: int
    prev_term: int
    first: int
    last: int
    pos: int
    commit_index: int
    data: bytes | memoryview


@dataclass(frozen=True, slots=True)
class Commit:
    """The commit index, when nothing else carries it (S22)."""

    term: int
    leader: str
    commit_index: int


@dataclass(frozen=True, slots=True)
class PushResponse:
    """State of the follower's log as verified against this leader.

    Two watermarks (S16) of what agrees with the leader: `durable` is the last index that may count for
    commit; `stored` the last that has left the follower's memory for its disk, which is more than `durable`
    where something is rotten, or the store is being refilled. `end`: the last index the follower has at all.
    On INCONSISTENT_STATE, `hint_index` and `hint_term` name the last entry that may still agree.
    """

    term: int
    code: Code
    stored: int
    durable: int
    end: int
    hint_index: int = -1
    hint_term: int = -1


@dataclass(frozen=True, slots=True)
class InstallSnapshot:
    """Bytes `offset..` of the snapshot that is true exactly at `index` (term `entry_term`, safety.md S20).

    The log goes on at byte `pos` with chain value `chain`. `total` is the size of the whole snapshot;
    InstallResponse.offset asks for the pieces, so that an install goes on where it was cut off.
    """

    term: int
    leader: str
    index: int
    entry_term: int
    pos: int
    chain: int
    total: int
    offset: int
    data: bytes | memoryview
    digest: str = ""
    """Of the snapshot's manifest. Equal (index, total, digest) is the same snapshot whoever sends it."""


@dataclass(frozen=True, slots=True)
class InstallResponse:
    """`offset`: next byte wanted of the snapshot at `index`; `total` when it is installed and durable.

    INCONSISTENT_STATE: the bytes were not the snapshot that was announced; they are forgotten.
    """

    term: int
    code: Code
    index: int
    offset: int


@dataclass(frozen=True, slots=True)
class RepairRequest:
    """Please send entries `first..last`. `number` is repeated by the answer."""

    number: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class RepairResponse:
    """`holding` says what is known of entry `first`; for HAVE `data` holds entries `first..last`, checked."""

    number: int
    first: int
    last: int
    holding: Holding
    pos: int
    data: bytes | memoryview


@dataclass(frozen=True, slots=True)
class ReadIndexRequest:
    """Which index must be applied before a read that starts now? `number` is repeated by the answer."""

    term: int
    node: str
    number: int


@dataclass(frozen=True, slots=True)
class ReadIndexResponse:
    """`index` is the read point when `code` is SUCCESS."""

    term: int
    code: Code
    number: int
    index: int


Message = (
    VoteRequest
    | VoteResponse
    | Heartbeat
    | HeartbeatResponse
    | TimeoutNow
    | Compare
    | Truncate
    | Append
    | Commit
    | PushResponse
    | InstallSnapshot
    | InstallResponse
    | RepairRequest
    | RepairResponse
    | ReadIndexRequest
    | ReadIndexResponse
)
"""Any peer message."""

REPLIES = (VoteResponse, HeartbeatResponse, PushResponse, InstallResponse, RepairResponse, ReadIndexResponse)
"""These go back over the connection that the request came by."""

SINCE_2 = (
    InstallSnapshot,
    InstallResponse,
    RepairRequest,
    RepairResponse,
    ReadIndexRequest,
    ReadIndexResponse,
)
"""A peer of protocol version 1 does not know these."""

BULK = (Compare, Truncate, Append, Commit, InstallSnapshot, RepairResponse)
"""Entries and snapshots, and what must stay in order with them. All else may overtake these."""
