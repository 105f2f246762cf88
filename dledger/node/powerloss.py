"""ASYNC_FLUSH after a loss of power: who may vote again (safety.md S9). Pure.

Under ASYNC_FLUSH a node acknowledges what is only written. After a power loss without a clean stop it may
have lost such entries, so it neither votes nor counts until a leader has refilled it. Where those that kept
everything are no majority, there is no leader to do it, and never will be. Then, and only when all voters
are connected and each tells where its log ends, who lost power votes again as well, and the one with the
longest log stands: acknowledged entries may be gone, and the node says that.

Why all of them. Who is away may hold what nobody else does. When all are here the group has what it has: an
entry that none of the logs told of holds is gone, and the longest one holds what a majority of those that
kept everything agreed on.

What a hello told may be out of date, as it is of the time when the connection was made (after this node's
own loss of power):

* *Lost power*, and a leader has refilled it since. That leader was followed by a majority which kept
  everything, so all that was acknowledged is on a majority again, without this node: its vote cannot help
  a shorter log past them. Who was told to vote by this very verdict tells that it kept everything at its next
  hello, and counts so: a group whose members come to the verdict one after the other, over connections that
  break in between, gets there all the same.
* *Kept everything*, and it lost power since. Then it counts for too much, and this node waits for longer: the
  next connection tells.
* *Where its log ends*: decides only who stands first. Votes compare the logs as they are.
* *Connected*, and the machine is silent already. If it has the longest log the others leave standing to it
  for some seconds only, and then go on without it.

The caller acts only on a verdict that holds for a while in which no leader is heard: one that is there
refills.

Members. Who lost power may have lost configurations, and count by an old one. Over one step that elects
nobody apart, as the majorities of neighbouring configurations meet; over more it could, beside a leader whom
somebody that kept everything follows. So nobody acts on a verdict of its own where some voter kept everything
and a peer shows a newer configuration, and a log that goes further. (If it does not go as far as this one,
that configuration was never committed: this log would hold it.) A peer whose store is not the one that the
configuration names is not here at all: the caller leaves it out.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from dledger.election.identity import Hello

META_KEY = "lost_power"
"""In the hello's `meta` of a node in this state: "last term:last index" of its log."""
KEPT_KEY = "log_end"
"""The same of a node that votes. Who tells neither (older programs; other reasons to be refilled) is waited
for."""


class Verdict(Enum):
    """What a node in this state may do."""

    WAIT = "wait"
    STAND = "stand"
    """Too many voters lost power, and no log is longer than this one."""
    VOTE = "vote"
    """Too many voters lost power, and another one has the longest log."""


def encode_end(last_term: int, last_index: int) -> str:
    """Value of META_KEY and KEPT_KEY."""
    return f"{last_term}:{last_index}"


def judge(
    mine: Hello,
    own_end: tuple[int, int],
    voters: tuple[str, ...],
    hellos: Mapping[str, Hello],
) -> Verdict:
    """`mine` is the own hello, `own_end` (last term, last index); `hellos` are of the peers connected now."""
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
