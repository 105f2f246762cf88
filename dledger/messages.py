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
| InstallSnapshot | leader -> peer | InstallResponse | a part of a snapshot, for a peer that is far behind |
| RepairRequest | any -> any | RepairResponse | copies of entries that are corrupt here (safety.md S4) |
| ReadIndexRequest | follower -> leader | ReadIndexResponse | a linearizable read point (dissertation 6.4) |

The last three and their answers, and the fields with a default, belong to protocol version 2: they are sent
only to a peer whose hello offers it.

Names of codes are DLedger's (DLedgerResponseCode, VoteResponse.RESULT).
"""

from __future__ import annotations

from enum import IntEnum, IntFlag
from typing import Annotated

import msgspec

Number = Annotated[int, msgspec.Meta(ge=-1, le=(1 << 63) - 1)]
"""Terms, indexes and offsets are signed 64-bit numbers on disk; -1 means "none"."""


class PeerMessage(msgspec.Struct, frozen=True, array_like=True):
    """Base class of the messages. On the wire a message is the list of its fields in order
    (`dledger.peers.wire`). A field `data` is always last, and is sent separately."""


class VoteResult(IntEnum):
    """Answer to a vote request (VoteResponse.RESULT)."""

    UNKNOWN = 0
    """This node does not vote at all, because its store cannot be trusted yet."""
    ACCEPT = 1
    REJECT_ALREADY_VOTED = 2
    REJECT_ALREADY_HAS_LEADER = 3
    REJECT_TERM_SMALL_THAN_LEDGER = 4
    REJECT_EXPIRED_VOTE_TERM = 5
    REJECT_EXPIRED_LEDGER_TERM = 6
    REJECT_SMALL_LEDGER_END_INDEX = 7
    REJECT_TERM_NOT_READY = 8


class Code(IntEnum):
    """Outcome of heartbeats, pushes and client requests. The names are those of DLedgerResponseCode, the
    numbers are this project's own."""

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
    """A change of the members, or a transfer of leadership, is not possible. The text of the answer says
    why."""


class VoteRequest(PeerMessage, frozen=True):
    """Asks for a vote. `term` is the term for which the candidate wants to be elected. In a pre-vote it is
    the candidate's term + 1, which the candidate has not entered yet."""

    term: Number
    candidate: str
    last_index: Number
    last_term: Number
    pre: bool = False
    transfer: bool = False
    """Whether the leader asked the candidate to stand for election. If so, a voter may vote although it has
    heard from a leader recently (S19)."""
    commanded: bool = False
    """Whether an operator asked for this transfer of leadership. If so, it does not count as a failure of the
    old leader (`dledger.election.preferred`)."""


class VoteResponse(PeerMessage, frozen=True):
    """The answer to a vote request. `term` is the voter's term; `asked_term` and `pre` repeat the request."""

    term: Number
    asked_term: Number
    pre: bool
    result: VoteResult


class Health(IntFlag):
    """State of a node as reported to its leader, so that leadership does not move to a node that cannot keep
    it."""

    GOOD = 0
    DISK_FULL = 1
    FAULTY = 2
    """The node's log has corrupt entries that are not repaired yet."""
    STALLED = 4
    """The node's disk did not answer within the limit."""
    SLOW = 8
    """The node was leader, and its disk could not keep up with the disks of the others."""
    LEAVING = 16
    """The node is about to shut down in good order."""
    CLOCK = 32
    """The node's clock is too far ahead of most clocks of the group. (A program that does not know this flag,
    or a later one, treats the node as unhealthy, so that it leads only if no other node can.)"""


def health_text(flags: int) -> str:
    """The names of these `Health` flags. Flags that only a newer program knows are shown as a number."""
    known = [flag for flag in Health if flag and flag & flags]
    rest = flags & ~sum(known)
    names = [flag.name or "" for flag in known] + ([f"unknown ({rest})"] if rest else [])
    return "+".join(names) or "GOOD"


class Holding(IntEnum):
    """What a node knows about an entry that a peer asks for (safety.md S4)."""

    HAVE = 0
    FAULTY = 1
    NEVER_HAD = 2


class Heartbeat(PeerMessage, frozen=True):
    """Sent by the leader of `term` at each interval, and at once when a read point is needed.

    `round` numbers the leader's rounds of heartbeats within its term. `clock_ms` is the leader's wall clock,
    0 if it is not sent.
    """

    term: Number
    leader: str
    round: Number = 0
    clock_ms: Number = 0


class HeartbeatResponse(PeerMessage, frozen=True):
    """The answer to a heartbeat. `term` is the responder's term, `round` repeats the heartbeat's number, and
    `health` is a set of `Health` flags. `clock_ms` is the responder's wall clock, 0 if it is not sent."""

    term: Number
    code: Code
    round: Number = 0
    health: Number = 0
    clock_ms: Number = 0


class TimeoutNow(PeerMessage, frozen=True):
    """Stand for election at once (Raft dissertation 3.10)."""

    term: Number
    leader: str
    commanded: bool = False
    """Whether an operator asked for the transfer of leadership. The vote request repeats this field."""


class Compare(PeerMessage, frozen=True):
    """Asks whether the peer's entry at `index` has the term `entry_term`. Index -1 with term -1 always
    agrees."""

    term: Number
    leader: str
    index: Number
    entry_term: Number
    commit_index: Number


class Truncate(PeerMessage, frozen=True):
    """Tells the peer to cut its log from `index` on, unless its entry at `index` has the term `entry_term`.
    That is the term of the leader's entry."""

    term: Number
    leader: str
    index: Number
    entry_term: Number
    commit_index: Number


class Append(PeerMessage, frozen=True):
    """Carries the entries `first..last`, byte for byte as the leader wrote them. The first one begins at log
    offset `pos`."""

    term: Number
    leader: str
    prev_index: Number
    prev_term: Number
    first: Number
    last: Number
    pos: Number
    commit_index: Number
    data: bytes | memoryview


class Commit(PeerMessage, frozen=True):
    """Carries the commit index when no other message does (S22)."""

    term: Number
    leader: str
    commit_index: Number


class PushResponse(PeerMessage, frozen=True):
    """The answer to Compare, Truncate and Append: the state of the follower's log, compared with the log of
    this leader.

    It has two watermarks (S16) for the part that agrees with the leader. `durable` is the last index that may
    count for commit. `stored` is the last index that has moved from the follower's memory to its disk. It is
    higher than `durable` if entries before it are corrupt, or while the store is being refilled. `end` is the
    last index of the follower's log, whether it agrees or not.

    With code INCONSISTENT_STATE, `hint_index` and `hint_term` name the last entry that may still agree.
    """

    term: Number
    code: Code
    stored: Number
    durable: Number
    end: Number
    hint_index: Number = -1
    hint_term: Number = -1


class InstallSnapshot(PeerMessage, frozen=True):
    """Carries bytes of a snapshot, beginning with byte number `offset`. The snapshot is the state exactly at
    `index` (term `entry_term`, safety.md S20).

    After the snapshot the log continues at byte `pos` with chain value `chain`. `total` is the size of the
    whole snapshot. The receiver asks for each part with InstallResponse.offset, so an interrupted install
    resumes where it stopped.
    """

    term: Number
    leader: str
    index: Number
    entry_term: Number
    pos: Number
    chain: Number
    total: Number
    offset: Number
    digest: str = ""
    """Digest of the snapshot's manifest. Equal (index, total, digest) means the same snapshot, whichever node
    sends it."""
    data: bytes | memoryview = b""


class InstallResponse(PeerMessage, frozen=True):
    """The answer to InstallSnapshot. `offset` is the next byte that the receiver wants of the snapshot at
    `index`. It equals `total` when the whole snapshot is installed and durable.

    INCONSISTENT_STATE means that the bytes were not those of the announced snapshot and have been dropped.
    """

    term: Number
    code: Code
    index: Number
    offset: Number


class RepairRequest(PeerMessage, frozen=True):
    """Asks a peer to send the entries `first..last`. The answer repeats `number`."""

    number: Number
    first: Number
    last: Number


class RepairResponse(PeerMessage, frozen=True):
    """The answer to RepairRequest. `holding` says what the peer knows about entry `first`. If it is HAVE,
    `data` holds the entries `first..last`, already checked."""

    number: Number
    first: Number
    last: Number
    holding: Holding
    pos: Number
    data: bytes | memoryview


class ReadIndexRequest(PeerMessage, frozen=True):
    """Asks the leader which index must be applied before a read that starts now. The answer repeats
    `number`."""

    term: Number
    node: str
    number: Number


class ReadIndexResponse(PeerMessage, frozen=True):
    """The answer to ReadIndexRequest. If `code` is SUCCESS, `index` is the read point."""

    term: Number
    code: Code
    number: Number
    index: Number


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
"""Messages that are answers. They go back over the connection on which the request came."""

SINCE_2 = (
    InstallSnapshot,
    InstallResponse,
    RepairRequest,
    RepairResponse,
    ReadIndexRequest,
    ReadIndexResponse,
)
"""Messages that a peer of protocol version 1 does not know."""

BULK = (Compare, Truncate, Append, Commit, InstallSnapshot, RepairResponse)
"""Messages that carry entries and snapshots, and messages that must stay in order with them. All other
messages may overtake these."""
