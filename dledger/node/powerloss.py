"""ASYNC_FLUSH after a loss of power: which nodes may vote again (safety.md S9). Pure.

Under ASYNC_FLUSH a node acknowledges entries that are only written. After a power loss without a clean stop
it may have lost such entries, so it neither votes nor counts until a leader has refilled it. If the nodes
that kept everything are no majority, no leader can be elected to refill the others. Then there is a way out,
but only if all voters are connected and each reports where its log ends. The nodes that lost power vote again
as well, and the node with the longest log stands for election. Acknowledged entries may be lost, and the node
says so.

All voters must be connected, because a missing voter may hold entries that no other node has. When all are
connected, an entry in none of the reported logs is lost in any case. The longest log holds everything on
which a majority of the nodes that kept everything agreed.

A hello dates from when the connection was made, which was after this node's own loss of power. So what it
says may be out of date:

* It says *lost power*, but a leader has refilled the node since then. A majority that kept everything
  followed that leader. So all acknowledged entries are on a majority again, without this node, and its vote
  cannot help a shorter log to win. A node that votes because of this verdict says in its next hello that it
  kept everything, and counts as such a node. So a group succeeds even if its members reach the verdict one
  after the other, over connections that break in between.
* It says *kept everything*, but the node has lost power since then. Then the node counts although it should
  not, and this node waits longer; the hello of the next connection corrects that.
* It says *where the log ends*, but the log has changed. This only decides which node stands for election
  first, because votes compare the logs as they are.
* The node is *connected*, but its machine does not answer any more. If it has the longest log, the others
  wait only some seconds for it to stand, and then continue without it.

The caller acts on a verdict only if it stays the same for a while and there is no leader. (A leader would
refill this node.)

A node that lost power may also have lost configurations, and may count votes by an old one. If the old
configuration is one step behind, this cannot elect two leaders, because majorities of neighbouring
configurations have a node in common. If it is several steps behind, it could: there might be another leader,
which a node that kept everything follows. So a node does not act if some voter kept everything, and a peer
shows a newer configuration and a longer log. (If the peer's log is not longer than this node's log, the newer
configuration was never committed, because otherwise this log would hold it.) A peer whose store is not the
one that the configuration names counts as absent; the caller leaves it out.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from dledger.election.identity import Hello

META_KEY = "lost_power"
"""Key in the `meta` of the hello of a node that has lost power: the value is "last term:last index" of its
log."""
KEPT_KEY = "log_end"
"""Key for the same value in the hello of a node that votes. If a node sends neither key, because its program
is older or because it must be refilled for another reason, the others wait for it."""


class Verdict(Enum):
    """The decision about a node that lost power."""

    WAIT = "wait"
    STAND = "stand"
    """The node votes again, and stands for election: too many voters lost power, and no log is longer than
    this one."""
    VOTE = "vote"
    """The node votes again, but lets another voter stand: too many voters lost power, and the other has the
    longest log."""


def encode_end(last_term: int, last_index: int) -> str:
    """Encode the value for META_KEY and KEPT_KEY."""
    return f"{last_term}:{last_index}"


def judge(
    mine: Hello,
    own_end: tuple[int, int],
    voters: tuple[str, ...],
    hellos: Mapping[str, Hello],
) -> Verdict:
    """Decide what this node may do. `mine` is its own hello, and `own_end` is (last term, last index) of its
    log. `hellos` are those of the peers that are connected now."""
    self_id = mine.node
    best, best_id = own_end, self_id
    kept = 0
    if self_id not in voters:
        return Verdict.WAIT
    for voter in voters:
        if voter == self_id:
            continue
        end = _end_of(hellos[voter]) if voter in hellos else None
        if end is None:
            return Verdict.WAIT
        kept += META_KEY not in hellos[voter].meta
        if (end, voter) > (best, best_id):
            best, best_id = end, voter
    if kept > len(voters) // 2:
        return Verdict.WAIT
    newer = [_end_of(hello) for hello in hellos.values() if hello.shows_newer(mine)]
    if kept and any(end is None or end > own_end for end in newer):
        return Verdict.WAIT
    return Verdict.STAND if best_id == self_id else Verdict.VOTE


def _end_of(hello: Hello) -> tuple[int, int] | None:
    return _decode_end(hello.meta.get(META_KEY, hello.meta.get(KEPT_KEY, "")))


def _decode_end(text: str) -> tuple[int, int] | None:
    term, separator, index = text.partition(":")
    try:
        return (int(term), int(index)) if separator else None
    except ValueError:
        return None
