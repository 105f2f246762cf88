"""The whole state of the core as plain data, and core objects made from such data.

The tables name every attribute with its type. `tests/flight` checks that they name all attributes of the
core, so a new attribute has to be added here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from dledger.election.elector import MAX_OPEN_ROUNDS, Chance, ElectionSettings, Elector, LogTip
from dledger.election.transitions import State
from dledger.flight.tape import ENCODER
from dledger.messages import VoteResult
from dledger.replication import LogView
from dledger.replication.follower import FollowerReplication
from dledger.replication.leader import LeaderReplication, Progress

_Names = tuple[str, ...]
_Core = TypeVar("_Core", Elector, LeaderReplication, FollowerReplication)

ELECTOR_STATE: Mapping[str, Any] = {
    "_settings": ElectionSettings,
    "_self_id": str,
    "_peers": _Names,
    "_voters": _Names,
    "may_vote": bool,
    "may_stand": bool,
    "health": int,
    "term": int,
    "vote": str | None,
    "state": State,
    "leader_id": str | None,
    "commanded_term": int,
    "stepped_down": str,
    "entered": str,
    "patience_s": float,
    "_quiet_until": float,
    "_deadline": float,
    "_next_heartbeat": float,
    "_leader_heard": float,
    "_leader_gone": bool,
    "_absent": str | None,
    "_results": dict[str, VoteResult],
    "_votes": dict[str, VoteResult],
    "_failed_rounds": int,
    "_round_ends": float,
    "_save_s": float,
    "_gave_way": int,
    "_round": int,
    "_confirmed": int,
    "_answered": dict[str, int],
    "_rounds_sent": deque[tuple[int, float]],
    "_lease_from": float,
    "_handed_over": bool,
    "_contact": dict[str, float],
    "_peer_health": dict[str, int],
    "_ask_again": dict[str, float],
    "_quorum_deadline": float,
}
LEADER_STATE: Mapping[str, Any] = {
    "term": int,
    "commit_index": int,
    "opening_index": int,
    "progress": dict[str, Progress],
    "self_id": str,
    "push_bytes": int,
    "_window": int,
    "_frames": int,
    "_windows": int,
    "_voters": _Names,
    "_leaving": _Names,
}
FOLLOWER_STATE: Mapping[str, Any] = {
    "term": int,
    "leader": str,
    "matched": int,
    "leader_commit": int,
    "trusted": bool,
    "_reported": tuple[int, int],
}
SAME_OBJECT = ("_votes", "_results")
"""Two attributes of the elector that are one object while a candidate asks for votes."""


SET_FROM_OUTSIDE = ("leader.push_bytes",)
"""Attributes that the shell may set at any time, without a call of the core. They change nothing but a value
that the core passes to the log, whose answer is recorded."""


class CoreState(msgspec.Struct, frozen=True):
    """The state of all core objects of a node, as plain data. `leader` and `follower` are None before the
    first leadership, and before the first leader that this node followed."""

    elector: dict[str, Any]
    leader: dict[str, Any] | None
    follower: dict[str, Any] | None
    votes_are_results: bool
    """Whether both attributes in SAME_OBJECT are one object."""


def dump(
    elector: Elector, leader: LeaderReplication | None, follower: FollowerReplication | None
) -> CoreState:
    """Return the state of the core as plain data, independent of the objects."""
    state = CoreState(
        _values(elector, ELECTOR_STATE),
        None if leader is None else _values(leader, LEADER_STATE),
        None if follower is None else _values(follower, FOLLOWER_STATE),
        elector._votes is elector._results,
    )
    return msgspec.msgpack.decode(ENCODER.encode(state), type=CoreState)


def differences(one: CoreState, other: CoreState) -> list[str]:
    """Return the names of the attributes in which two states differ, such as `leader.commit_index`."""
    found = [] if one.votes_are_results == other.votes_are_results else ["elector._votes"]
    for core in ("elector", "leader", "follower"):
        left, right = getattr(one, core) or {}, getattr(other, core) or {}
        names = sorted(left.keys() | right.keys())
        found += [f"{core}.{name}" for name in names if left.get(name) != right.get(name)]
    return [name for name in found if name not in SET_FROM_OUTSIDE]


def restore_elector(state: CoreState, log: LogTip, chance: Chance) -> Elector:
    """Make an elector in this state. Raises msgspec.ValidationError if the state does not fit."""
    elector = _restored(Elector.__new__(Elector), state.elector, ELECTOR_STATE)
    elector._log, elector._rng = log, chance
    elector._rounds_sent = deque(elector._rounds_sent, maxlen=MAX_OPEN_ROUNDS)
    if state.votes_are_results:
        elector._votes = elector._results
    return elector


def restore_leader(state: CoreState, log: LogView, offer: Any) -> LeaderReplication | None:
    """Make the replication of the leadership in this state; None if there is none. `offer` is called for the
    snapshot that may be offered. Raises msgspec.ValidationError if the state does not fit."""
    if state.leader is None:
        return None
    leader = _restored(LeaderReplication.__new__(LeaderReplication), state.leader, LEADER_STATE)
    leader._log, leader._offer = log, offer
    return leader


def restore_follower(state: CoreState, log: LogView) -> FollowerReplication | None:
    """Make the replication of the follower in this state; None if there is none. Raises
    msgspec.ValidationError if the state does not fit."""
    if state.follower is None:
        return None
    follower = _restored(FollowerReplication.__new__(FollowerReplication), state.follower, FOLLOWER_STATE)
    follower._log = log
    return follower


def _values(core: object, table: Mapping[str, Any]) -> dict[str, Any]:
    return {name: getattr(core, name) for name in table}


def _queue(type_: type, value: Any) -> object:
    """Decode what msgspec does not know (queues)."""
    return deque(tuple(item) for item in value)


def _restored(core: _Core, values: Mapping[str, Any], table: Mapping[str, Any]) -> _Core:
    missing = sorted(table.keys() ^ values.keys())
    if missing:
        raise msgspec.ValidationError(f"the state does not fit the core: {missing[0]}")
    for name, type_ in table.items():
        setattr(core, name, msgspec.convert(values[name], type_, dec_hook=_queue))
    return core
