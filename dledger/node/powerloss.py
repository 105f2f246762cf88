"""ASYNC_FLUSH after a loss of power: which nodes may vote again (safety.md S9). Pure.

Under ASYNC_FLUSH a node acknowledges entries that are only written. After a power loss without a clean stop
it may have lost such entries, so it neither votes nor counts until a leader has refilled it. If the nodes
that kept everything are no majority, no leader can be elected to do that. Then there is a way out, but only
when all voters are connected and each reports where its log ends. The nodes that lost power vote again as
well, and the one with the longest log stands. Acknowledged entries may be lost, and the node says so.

All voters must be connected, because a missing one may hold entries that no other node has. When all are
connected, an entry in none of the reported logs is lost in any case, and the longest log holds what a
majority of those that kept everything agreed on.

The content of a hello may be out of date, as it dates from when the connection was made (after this node's
own loss of power):

* *Lost power*, but a leader has refilled it since. A majority that kept everything followed that leader. So
  all acknowledged entries are on a majority again, without this node, and its vote cannot help a shorter log
  to win. A node that votes because of this verdict reports at its next hello that it kept everything, and
  counts so. So a group succeeds even if its members reach the verdict one after the other, over connections
  that break in between.
* *Kept everything*, but it lost power since. Then it counts for too much, and this node waits longer; the
  next connection corrects that.
* *Where its log ends*: this only decides which node stands first. Votes compare the logs as they are.
* *Connected*, but the machine is silent already. If it has the longest log, the others wait only some seconds
  for it to stand, and then continue without it.

The caller acts only on a verdict that holds for a while without a leader; an existing leader would refill
this node.

Members: a node that lost power may have lost configurations, and may count by an old one. If the old
configuration is one step behind, that cannot elect two leaders, as the majorities of neighbouring
configurations meet. Over more steps it could, beside a leader followed by a node that kept everything. So no
node acts on its own verdict if some voter kept everything and a peer shows a newer configuration and a longer
log. (If that log is not longer than this one, its configuration was never committed: this log would hold it.)
A peer whose store is not the one that the configuration names counts as absent: the caller leaves it out.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from dledger.election.identity import Hello

META_KEY = "lost_power"
"""Key in the hello's `meta` of a node in this state: "last term:last index" of its log."""
KEPT_KEY = "log_end"
"""Key for the same value in the hello of a node that votes. If a node sends neither key (older programs, or
another reason to be refilled), the others wait for it."""


class Verdict(Enum):
    """The decision about a node that lost power."""

    WAIT = "wait"
    STAND = "stand"
    """Too many voters lost power, and no log is longer than this one."""
    VOTE = "vote"
    """Too many voters lost power, and another voter has the longest log."""


def encode_end(last_term: int, last_index: int) -> str:
    """The value for META_KEY and KEPT_KEY."""
    return f"{last_term}:{last_index}"


def judge(
    mine: Hello,
    own_end: tuple[int, int],
    voters: tuple[str, ...],
    hellos: Mapping[str, Hello],
) -> Verdict:
    """Decide what this node may do. `mine` is its own hello, `own_end` is (last term, last index) of its log;
    `hellos` are those of the peers connected now."""
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
