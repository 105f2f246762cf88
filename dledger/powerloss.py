"""ASYNC_FLUSH after a loss of power: who may vote again (safety.md S9). Pure.

Under ASYNC_FLUSH a node acknowledges what is only written. After a power loss without a clean stop it may
have lost such entries, so it neither votes nor counts until a leader has refilled it. If that happened to
all voters at once there is no leader to do it. Then, and only when all of them are connected and say so,
they vote again, and the one with the longest log stands: acknowledged entries may be gone, and the node
says that.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from dledger.election.membership import Hello

META_KEY = "lost_power"
"""In the hello's `meta` of a node in this state: "last term:last index" of its log."""


class Verdict(Enum):
    """What a node in this state may do."""

    WAIT = "wait"
    STAND = "stand"
    """All voters lost power, and no log is longer than this one."""
    VOTE = "vote"
    """All voters lost power, and another one has the longest log."""


def encode_end(last_term: int, last_index: int) -> str:
    """Value of META_KEY."""
    return f"{last_term}:{last_index}"


def judge(
    self_id: str, own_end: tuple[int, int], voters: tuple[str, ...], hellos: Mapping[str, Hello]
) -> Verdict:
    """`own_end` is (last term, last index); `hellos` are those of the peers connected now."""
    best, best_id = own_end, self_id
    if self_id not in voters:
        return Verdict.WAIT
    for voter in voters:
        if voter == self_id:
            continue
        hello = hellos.get(voter)
        end = None if hello is None else _decode_end(hello.meta.get(META_KEY, ""))
        if end is None:
            return Verdict.WAIT
        if (end, voter) > (best, best_id):
            best, best_id = end, voter
    return Verdict.STAND if best_id == self_id else Verdict.VOTE


def _decode_end(text: str) -> tuple[int, int] | None:
    term, separator, index = text.partition(":")
    try:
        return (int(term), int(index)) if separator else None
    except ValueError:
        return None
