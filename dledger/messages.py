"""Every message between peers, as values. `docs/protocol.md` explains the exchanges.

| message | from -> to | answered by | purpose |
|---|---|---|---|
| VoteRequest | candidate -> voters | VoteResponse | pre-vote (`pre`) and vote |
| Heartbeat | leader -> all | HeartbeatResponse | keep leadership, check the quorum |
| TimeoutNow | leader -> successor | - | leadership transfer |
| Compare | leader -> peer | PushResponse | find where the logs agree |
| Truncate | leader -> peer | PushResponse | cut a suffix that conflicts |
| Append | leader -> peer | PushResponse | entries |
| Commit | leader -> peer | - | commit index, when no Append carries it |

Names of codes are DLedger's (DLedgerResponseCode, VoteResponse.RESULT).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum


class VoteResult(IntEnum):
    """Answer to a vote request (VoteResponse.RESULT)."""

    UNKNOWN = 0
    """This node does not vote at all: learner, or its store is not to be trusted yet."""
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


@dataclass(frozen=True, slots=True)
class VoteResponse:
    """`term` is the voter's, `asked_term` and `pre` repeat the request."""

    term: int
    asked_term: int
    pre: bool
    result: VoteResult


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """Sent by the leader of `term` each interval."""

    term: int
    leader: str


@dataclass(frozen=True, slots=True)
class HeartbeatResponse:
    """`term` is the responder's."""

    term: int
    code: Code


@dataclass(frozen=True, slots=True)
class TimeoutNow:
    """Stand for election at once (Raft dissertation 3.10)."""

    term: int
    leader: str


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

    `stored` and `durable`: last index that agrees with the leader and is written / fsynced (two
    watermarks, S16). `end`: the last index the follower has at all. On INCONSISTENT_STATE, `hint_index`
    and `hint_term` name the last entry that may still agree.
    """

    term: int
    code: Code
    stored: int
    durable: int
    end: int
    hint_index: int = -1
    hint_term: int = -1


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
)
"""Any peer message."""

REPLIES = (VoteResponse, HeartbeatResponse, PushResponse)
"""These go back over the connection that the request came by."""
