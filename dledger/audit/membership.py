"""Who belongs to a replica's group, by its own files: its newest committed configuration, or the founders.

`members` notes where the configuration entries are, with a copy of each. The group that was founded is in
`identity`; a store of Apache's has neither, so its group is not known.
"""

from __future__ import annotations

from typing import NamedTuple

import msgpack

from dledger.formats.store_files import MEMBERS_FILE, CorruptFile, Identity, decode_json
from dledger.runtime import Files
from dledger.runtime.atomic_file import read_file


class Members(NamedTuple):
    """`since`: index of the configuration entry, -1 for the founders or when nothing is known; `voters`: node
    ids, sorted."""

    since: int = -1
    voters: tuple[str, ...] = ()


FOUNDERS_UNKNOWN = Members()
"""Of a store that does not say."""


def read_members(files: Files, directory: str, identity: Identity | None, committed: int) -> Members:
    """As of index `committed`; the founders where the file is missing (a node then looks for configurations
    in its whole log). OSError; CorruptFile when the file cannot be believed."""
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
    """Version 1 has incarnations in place of members, all of them voters."""
    members = msgpack.unpackb(packed)["members"]
    return [
        str(node)
        for node, member in members.items()
        if not isinstance(member, dict) or member.get("role") != "learner"
    ]
