"""The members of a replica's group according to its own files: its newest committed configuration, or the
founders.

The file `members` has the places of the configuration entries, with a copy of each. The founders are in
`identity`. A store of Apache RocketMQ has neither, so its group is not known.
"""

from __future__ import annotations

from typing import NamedTuple

import msgpack

from dledger.formats.store_files import MEMBERS_FILE, CorruptFile, Identity, decode_json
from dledger.runtime import Files
from dledger.runtime.atomic_file import read_file


class Members(NamedTuple):
    """Voters of the group. `since` is the index of the configuration entry, -1 for the founders or if nothing
    is known. `voters` are node ids, sorted. `ever` are the members of all configurations that the file has.
    `places` are the indexes of the configuration entries according to the file, None without a file that has
    copies."""

    since: int = -1
    voters: tuple[str, ...] = ()
    ever: tuple[str, ...] = ()
    places: tuple[int, ...] | None = None


FOUNDERS_UNKNOWN = Members()
"""The members of a store that does not name them."""


class Copy(NamedTuple):
    """A copy of a configuration entry in the file `members`. `packed` is the body of its record."""

    index: int  # type: ignore[assignment]  # DLedger's field name; tuple.index is not used
    term: int
    packed: bytes


def read_members(files: Files, directory: str, identity: Identity | None, committed: int) -> Members:
    """Return the voters as of index `committed`. If the file is missing, they are the founders (a node then
    searches its whole log for configurations). Raises OSError, and CorruptFile if the file is invalid."""
    if identity is None:
        return FOUNDERS_UNKNOWN
    newest = Members(-1, tuple(sorted(identity.members)))
    data = read_file(files, f"{directory}/{MEMBERS_FILE}")
    if data is None:
        return newest
    copies, indexes = _decode(data)
    ever: set[str] = set()
    for copy in copies:
        voters, members = voters_of(copy.packed), members_of(copy.packed)
        ever.update(members)
        if copy.index <= committed:
            newest = Members(copy.index, tuple(sorted(voters)))
    places = tuple(sorted({*indexes, *(copy.index for copy in copies)}))
    return newest._replace(
        ever=tuple(sorted(ever)), places=places if copies or "copies" in decode_json(data) else None
    )


def read_copies(files: Files, directory: str) -> tuple[list[Copy], list[int]]:
    """Return the copies and the indexes in the file `members`; nothing if there is no file. Raises OSError,
    and CorruptFile if the file is invalid."""
    data = read_file(files, f"{directory}/{MEMBERS_FILE}")
    return ([], []) if data is None else _decode(data)


def _decode(data: bytes) -> tuple[list[Copy], list[int]]:
    try:
        value = decode_json(data)
        copies = [
            Copy(int(index), int(term), bytes.fromhex(packed))
            for index, term, packed in sorted(value.get("copies", []))  # type: ignore[call-overload]
        ]
        for copy in copies:
            voters_of(copy.packed)
        return copies, [int(index) for index in value.get("indexes", [])]  # type: ignore[attr-defined]
    except (TypeError, ValueError, KeyError, AttributeError, msgpack.UnpackException) as error:
        raise CorruptFile(f"no configurations in it: {error}") from error


def members_of(packed: bytes) -> list[str]:
    """Return the node ids in a packed configuration. Raises an error if it is none."""
    return [str(node) for node in msgpack.unpackb(packed)["members"]]


def voters_of(packed: bytes) -> list[str]:
    """Return the voters in a packed configuration. In version 1 all members are voters, and have incarnations
    as values. Raises an error if it is no configuration."""
    members = msgpack.unpackb(packed)["members"]
    return [
        str(node)
        for node, member in members.items()
        if not isinstance(member, dict) or member.get("role") != "learner"
    ]
