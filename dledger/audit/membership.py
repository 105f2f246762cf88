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
    is known. `voters` are node ids, sorted."""

    since: int = -1
    voters: tuple[str, ...] = ()


FOUNDERS_UNKNOWN = Members()
"""The members of a store that does not name them."""


def read_members(files: Files, directory: str, identity: Identity | None, committed: int) -> Members:
    """Return the voters as of index `committed`. If the file is missing, they are the founders (a node then
    searches its whole log for configurations). Raises OSError, and CorruptFile if the file is invalid."""
    if identity is None:
        return FOUNDERS_UNKNOWN
    newest = Members(-1, tuple(sorted(identity.members)))
    data = read_file(files, f"{directory}/{MEMBERS_FILE}")
    if data is None:
        return newest
    try:
        copies = decode_json(data).get("copies", [])
        for index, _, copy in sorted(copies):  # type: ignore[call-overload]
            if index <= committed:
                newest = Members(index, tuple(sorted(_voters(bytes.fromhex(copy)))))
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise CorruptFile(f"no configurations in it: {error}") from error
    return newest


def _voters(packed: bytes) -> list[str]:
    """Return the voters in a packed configuration. In version 1 all members are voters, and have incarnations
    as values."""
    members = msgpack.unpackb(packed)["members"]
    return [
        str(node)
        for node, member in members.items()
        if not isinstance(member, dict) or member.get("role") != "learner"
    ]
