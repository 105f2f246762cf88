"""Reads the small files of one replica, before its segments are scanned: identity, members, `begins`, `lock`,
checkpoint, manifests of snapshots, state file.

A file that cannot be trusted becomes a finding in a list `problems`. All functions block.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from dledger.audit.findings import Finding, finding
from dledger.audit.membership import Members, read_members
from dledger.formats.lock_file import unpack_lock
from dledger.formats.snapshot import BEGINS_FILE, MANIFEST_FILE, Manifest, decode_manifest
from dledger.formats.state import DELETIONS
from dledger.formats.state_file import CorruptSnapshot, unpack_snapshot
from dledger.formats.store_files import (
    CHECKPOINT_FILE,
    HARD_STATE_FILE,
    IDENTITY_FILE,
    LOCK_FILE,
    MEMBERS_FILE,
    SNAPSHOTS_DIR,
    Checkpoint,
    CorruptFile,
    Identity,
    decode_checkpoint,
    decode_identity,
    decode_json,
    parse_segment_name,
)
from dledger.runtime import Files
from dledger.runtime.atomic_file import read_file

NODE_PREFIX = "dledger-"
ANYWHERE = 1 << 62
"""Value of `begins` if the file is damaged: higher than any offset."""
_OURS = (HARD_STATE_FILE, MEMBERS_FILE, BEGINS_FILE, SNAPSHOTS_DIR)
"""Files and directories that only our nodes make."""


class Claims(NamedTuple):
    """What files beside the log say about the entries that it holds. If they are read before the segments are
    listed, the log must hold these entries, even if the node is running.

    * `applied`: the entry after which the state file was taken, -1 without a state file.
    * `deleted`: deleted topics according to the state file (`Replica.deleted`).
    * `written`: last entry that the run had written according to `lock`, -1 if that is not known.
    * `snapshots`: positions of the boundary snapshots.
    """

    applied: int = -1
    deleted: tuple[tuple[str, int], ...] = ()
    written: int = -1
    snapshots: frozenset[int] = frozenset()


def read_claims(files: Files, directory: str, state_file: str, name: str, problems: list[Finding]) -> Claims:
    """Read what the files beside the log say. Raises OSError if they cannot be listed."""
    positions = map(parse_segment_name, files.listdir(f"{directory}/{SNAPSHOTS_DIR}"))
    snapshots = frozenset(pos for pos in positions if pos is not None)
    applied, deleted = _read_state(files, state_file, name, problems)
    return Claims(applied, deleted, read_written(files, directory), snapshots)


def read_written(files: Files, directory: str) -> int:
    """Index of the last entry that the run had written according to the file `lock`; -1 if it is not known.

    It is not used under ASYNC_FLUSH, because after a loss of power it may be ahead of the log there.
    """
    try:
        record = unpack_lock(read_file(files, f"{directory}/{LOCK_FILE}") or b"")
    except OSError:
        return -1
    return record.written if record.sync_flush and record.written is not None else -1


def _read_state(
    files: Files, path: str, name: str, problems: list[Finding]
) -> tuple[int, tuple[tuple[str, int], ...]]:
    """Read `Claims.applied` and `Claims.deleted` from the state file."""
    try:
        data = read_file(files, path) if path else None
        if data is None:
            return -1, ()
        held = unpack_snapshot(data)
        return held.applied, tuple((row.name, row.at) for row in held.state[DELETIONS].rows.values())
    except OSError as error:
        problems.append(finding("UNREADABLE", name, f"{path}: {error}"))
        return -1, ()
    except CorruptSnapshot as error:
        problems.append(finding("STATE_DAMAGED", name, f"{path}: {error}"))
        return -1, ()


def read_checkpoint(files: Files, directory: str, name: str, problems: list[Finding]) -> Checkpoint | None:
    """Read the checkpoint. A file that says nothing about committed entries is added to `problems`. Raises
    OSError."""
    data = read_file(files, f"{directory}/{CHECKPOINT_FILE}")
    found = decode_checkpoint(data) if data is not None else None
    if found is None:
        said = "is not there" if data is None else "is damaged"
    elif found.committed_index < 0:
        said = "says that nothing is committed"
    else:
        return found
    problems.append(finding("NO_COMMITTED_INDEX", name, f"the checkpoint file {said}"))
    return found


def check_checkpoint(files: Files, directory: str, name: str, found: Checkpoint | None) -> Iterator[Finding]:
    """Check what a checkpoint of one of our nodes says. (Apache's has no CRC, and its two fields are not of
    one time.) Raises OSError."""
    data = read_file(files, f"{directory}/{CHECKPOINT_FILE}") or b""
    if found is None or found.committed_index < 0:
        return  # `read_checkpoint` has reported it
    if b"# crc=" not in data:
        yield finding("NO_COMMITTED_INDEX", name, "the checkpoint file is damaged: it has no CRC")
    elif found.committed_index > found.end_index:
        text = f"says that {found.committed_index} is committed, and that the log ends at {found.end_index}"
        yield finding("NO_COMMITTED_INDEX", name, f"the checkpoint file {text}")


def read_begins(files: Files, directory: str, name: str, problems: list[Finding]) -> int:
    """Read `Replica.begins`. An invalid file is added to `problems`; the result is then higher than any
    offset."""
    path = f"{directory}/{BEGINS_FILE}"
    try:
        data = read_file(files, path)
        if data is None:
            return -1
        said = decode_json(data)
        pos = said.get("pos")
        if not isinstance(pos, int) or isinstance(pos, bool) or pos < 0:
            raise CorruptFile("it holds no position")
        if not isinstance(said.get("replace"), bool):
            raise CorruptFile("it does not say whether a snapshot replaces the log")
    except (CorruptFile, ValueError) as error:
        problems.append(finding("IDENTITY", name, f"{path}: {error}"))
        return ANYWHERE
    return pos


def list_snapshots(files: Files, directory: str, name: str, problems: list[Finding]) -> Iterator[Manifest]:
    """Yield the valid manifests of boundary snapshots, by position."""
    for file_name in files.listdir(f"{directory}/{SNAPSHOTS_DIR}"):
        pos = parse_segment_name(file_name)
        if pos is None:
            continue
        path = f"{directory}/{SNAPSHOTS_DIR}/{file_name}"
        try:
            data = read_file(files, f"{path}/{MANIFEST_FILE}")
            if data is None:
                raise CorruptFile("no manifest")
            manifest = decode_manifest(data)
            if manifest.pos != pos:
                raise CorruptFile(f"the manifest is of the snapshot at {manifest.pos}")
        except (CorruptFile, ValueError, OSError) as error:
            if files.exists(path):  # else a live node has removed it meanwhile
                code = "UNREADABLE" if isinstance(error, OSError) else "SNAPSHOT_DAMAGED"
                problems.append(finding(code, name, f"{path}: {error}", segment=pos))
        else:
            yield manifest


def read_identity(files: Files, directory: str, name: str, problems: list[Finding]) -> Identity | None:
    """Read who the store belongs to. None for a store of Apache's, and for an invalid file, which is added to
    `problems`. Raises OSError."""
    data = read_file(files, f"{directory}/{IDENTITY_FILE}")
    if data is None:
        there = [each for each in _OURS if files.exists(f"{directory}/{each}")]
        if there:
            text = f"the identity file is not there, though the store has {', '.join(there)}"
            problems.append(finding("IDENTITY", name, text))
        return None
    try:
        identity = decode_identity(data)
    except (CorruptFile, ValueError) as error:
        problems.append(finding("IDENTITY", name, f"identity file: {error}"))
        return None
    named = directory.rpartition("/")[2]
    if named.startswith(NODE_PREFIX) and named != f"{NODE_PREFIX}{identity.node}":
        text = f"{directory} contains the store of node {identity.node}"
        problems.append(finding("MISPLACED", name, text))
    return identity


def read_group(
    files: Files,
    directory: str,
    name: str,
    identity: Identity | None,
    checkpoint: Checkpoint | None,
    problems: list[Finding],
) -> Members:
    """Read the members of the group. If the file is invalid, that is added to `problems`, and they are the
    founders. Raises OSError."""
    try:
        return read_members(files, directory, identity, checkpoint.committed_index if checkpoint else -1)
    except CorruptFile as error:
        problems.append(finding("IDENTITY", name, f"members file: {error}"))
        return Members(-1, tuple(sorted(identity.members if identity else ())))
