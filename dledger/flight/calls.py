"""The methods of the core that are recorded: the events of its three classes.

Each has a number, which is written to the file, and the types of its arguments. A change of this table
changes the version of the core, so old numbers may be used again. `tests/flight` checks that no event of the
core is missing here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from dledger.formats.checksum import crc32
from dledger.formats.store_files import HardState
from dledger.messages import (
    Append,
    Commit,
    Compare,
    Heartbeat,
    HeartbeatResponse,
    InstallResponse,
    PushResponse,
    TimeoutNow,
    Truncate,
    VoteRequest,
    VoteResponse,
)

ELECTOR, LEADER, FOLLOWER = "elector", "leader", "follower"
LEAD, FOLLOW = 1, 2
"""Numbers of the two calls that make a core object: the replication of a new leadership, and the replication
of a follower of a new leader."""

_Names = tuple[str, ...]
_MESSAGES: tuple[type[msgspec.Struct], ...] = (
    VoteRequest,
    VoteResponse,
    Heartbeat,
    HeartbeatResponse,
    TimeoutNow,
    Compare,
    Truncate,
    Append,
    Commit,
)
_NUMBERS = {type_: number for number, type_ in enumerate(_MESSAGES)}
_APPEND = _NUMBERS[Append]


class BodyNote(msgspec.Struct, frozen=True, array_like=True):
    """What a recording keeps of the entries of an Append: their length in bytes and their CRC-32."""

    size: int
    crc: int


class AppendNote(msgspec.Struct, frozen=True, array_like=True):
    """An Append without its entries."""

    term: int
    leader: str
    prev_index: int
    prev_term: int
    first: int
    last: int
    pos: int
    commit_index: int
    body: BodyNote


def pack_message(message: msgspec.Struct) -> tuple[int, msgspec.Struct]:
    """Return (number of the type, message). An Append is replaced by an AppendNote."""
    if isinstance(message, Append):
        data = message.data
        return _APPEND, AppendNote(
            message.term,
            message.leader,
            message.prev_index,
            message.prev_term,
            message.first,
            message.last,
            message.pos,
            message.commit_index,
            BodyNote(len(data), crc32(data)),
        )
    return _NUMBERS[type(message)], message


def unpack_message(number: int, fields: object) -> tuple[msgspec.Struct, BodyNote | None]:
    """Return the message that was packed, and what is known of its entries. An Append has no entries; the
    core does not read them. Raises msgspec.ValidationError if the fields do not fit the type."""
    if not 0 <= number < len(_MESSAGES):
        raise msgspec.ValidationError(f"message type {number} is not known")
    if number != _APPEND:
        return msgspec.convert(fields, _MESSAGES[number]), None
    note = msgspec.convert(fields, AppendNote)
    message = Append(
        note.term,
        note.leader,
        note.prev_index,
        note.prev_term,
        note.first,
        note.last,
        note.pos,
        note.commit_index,
        b"",
    )
    return message, note.body


def _pack_received(args: Sequence[Any]) -> tuple[Any, ...]:
    """Pack the arguments of `Elector.receive`."""
    return (args[0], *pack_message(args[1]), args[2])


def _pack_push(args: Sequence[Any]) -> tuple[Any, ...]:
    """Pack the arguments of `FollowerReplication.receive`."""
    return (*pack_message(args[0]), args[1])


def _unpack_received(args: Sequence[Any]) -> tuple[list[Any], BodyNote | None]:
    peer, number, fields, now = args
    message, body = unpack_message(number, fields)
    return [peer, message, now], body


def _unpack_push(args: Sequence[Any]) -> tuple[list[Any], BodyNote | None]:
    number, fields, commit_index = args
    message, body = unpack_message(number, fields)
    return [message, commit_index], body


@dataclass(frozen=True)
class Call:
    """One recorded method. `types` are the types of its positional arguments as they are written, `named`
    those of its keyword arguments."""

    number: int
    core: str
    """The object whose method it is: ELECTOR, LEADER or FOLLOWER."""
    name: str
    types: tuple[Any, ...] = ()
    named: Mapping[str, Any] = field(default_factory=dict)
    pack: Callable[[Sequence[Any]], tuple[Any, ...]] | None = None
    """Makes the arguments that are written from those of the call; None if they are the same."""
    unpack: Callable[[Sequence[Any]], tuple[list[Any], BodyNote | None]] | None = None
    """Makes the arguments of the call from those that were written."""

    def arguments(self, args: object, named: object) -> tuple[Sequence[Any], dict[str, Any], BodyNote | None]:
        """Convert what was read from a recording to positional arguments, keyword arguments, and what is
        known of the entries of an Append. Raises msgspec.ValidationError if it does not fit the method."""
        values = msgspec.convert(args, list[Any])
        if len(values) > len(self.types):
            raise msgspec.ValidationError(f"{self.name} has {len(values)} arguments")
        given = [msgspec.convert(value, type_) for value, type_ in zip(values, self.types, strict=False)]
        keywords = msgspec.convert(named, dict[str, Any])
        unknown = sorted(keywords.keys() - self.named.keys())
        if unknown:
            raise msgspec.ValidationError(f"{self.name} has no argument {unknown[0]}")
        converted = {name: msgspec.convert(value, self.named[name]) for name, value in keywords.items()}
        if self.unpack is None:
            return given, converted, None
        unpacked, body = self.unpack(given)
        return unpacked, converted, body


CALLS: tuple[Call, ...] = (
    Call(
        LEAD,
        LEADER,
        "begin to lead",
        (int, str, _Names, _Names, int, int),
        {"push_bytes": int, "inflight_bytes": int, "inflight_frames": int},
    ),
    Call(FOLLOW, FOLLOWER, "begin to follow", (int, str)),
    Call(10, ELECTOR, "open", (HardState, _Names, float), {"may_vote": bool}),
    Call(11, ELECTOR, "ask_term", (str, float)),
    Call(12, ELECTOR, "step_towards", (int, float)),
    Call(13, ELECTOR, "trust", (bool,)),
    Call(14, ELECTOR, "feels", (int,), {"may_stand": bool, "patience_s": float}),
    Call(15, ELECTOR, "peer_feels", (str, int)),
    Call(16, ELECTOR, "tick", (float,)),
    Call(17, ELECTOR, "receive", (str, int, Any, float), {}, _pack_received, _unpack_received),
    Call(18, ELECTOR, "leader_contact", (str, int, float)),
    Call(19, ELECTOR, "peer_active", (str, float)),
    Call(20, ELECTOR, "leader_refused", (str, float)),
    Call(21, ELECTOR, "saved", (float,)),
    Call(22, ELECTOR, "higher_term", (int, float)),
    Call(23, ELECTOR, "set_members", (_Names, _Names, float)),
    Call(24, ELECTOR, "start_round", (float,)),
    Call(25, ELECTOR, "step_down", (float, str), {"why": str}),
    Call(26, ELECTOR, "hand_over", (str,), {"commanded": bool}),
    Call(40, LEADER, "set_members", (_Names, _Names, _Names)),
    Call(41, LEADER, "peer_up", (str, bool)),
    Call(42, LEADER, "peer_counts", (str, bool)),
    Call(43, LEADER, "peer_down", (str,)),
    Call(44, LEADER, "extended"),
    Call(45, LEADER, "local_durable"),
    Call(46, LEADER, "response", (str, PushResponse)),
    Call(47, LEADER, "pause", (str,)),
    Call(48, LEADER, "resume_paused"),
    Call(49, LEADER, "install_response", (str, InstallResponse)),
    Call(50, LEADER, "install_failed", (str, int)),
    Call(51, LEADER, "offers_changed"),
    Call(60, FOLLOWER, "receive", (int, Any, int), {}, _pack_push, _unpack_push),
    Call(61, FOLLOWER, "stored", (int,)),
    Call(62, FOLLOWER, "installed", (int,)),
    Call(63, FOLLOWER, "disk_full"),
    Call(64, FOLLOWER, "durable_moved"),
    Call(65, FOLLOWER, "overlap", (int, list[int], int)),
    Call(66, FOLLOWER, "trust", (bool,)),
)
"""All recorded methods."""
BY_NUMBER: Mapping[int, Call] = {call.number: call for call in CALLS}
QUERIES: Mapping[str, frozenset[str]] = {
    ELECTOR: frozenset(
        {"role", "round", "deadline", "voters", "may_follow", "leaps", "quorum", "lease_valid", "health_of",
         "heard", "awake", "votes"}
    ),
    LEADER: frozenset({"withholds", "wants", "needed_from", "voters", "counts", "watermark"}),
    FOLLOWER: frozenset(),
}  # fmt: skip
"""Public names of the core that change nothing, so they are not recorded."""
