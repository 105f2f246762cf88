"""Checks of the small files of one replica that belong to no segment: hard state, members, `begins`, markers,
boundary snapshots, checkpoint.

The files of a running node change while they are read. So each check reads its file again, and reports only
what no moment of a healthy node explains. All functions block, and raise OSError for a file that cannot be
read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgpack

from dledger.audit.findings import Row, Severity, SnapshotRow, finding
from dledger.audit.log_probe import LogProbe
from dledger.audit.membership import Copy, read_copies, voters_of
from dledger.audit.small_files import check_checkpoint
from dledger.audit.store_directory import Replica
from dledger.formats.checksum import crc32
from dledger.formats.entry import COVERED, KIND_MASK, Kind
from dledger.formats.lock_file import lock_problem
from dledger.formats.record import CorruptRecord, decode_record
from dledger.formats.snapshot import BEGINS_FILE, Manifest, check_parts
from dledger.formats.store_files import (
    APACHE_TERM_FILE,
    HARD_STATE_FILE,
    HARD_STATE_SIZE,
    LOCK_FILE,
    MIRROR_OFFSET,
    POISONED_FILE,
    REFILL_FILE,
    SLOT_OFFSETS,
    SLOT_SIZE,
    SNAPSHOTS_DIR,
    CorruptFile,
    decode_hard_state,
    decode_json,
    encode_slot,
    segment_name,
)
from dledger.runtime import Files
from dledger.runtime.atomic_file import read_file

_TRIES = 3
"""How often a file is read that a running node may be overwriting."""


def check_markers(files: Files, replica: Replica) -> Iterator[Row]:
    """Find the markers of a failed write, of a refill, and of an unfinished install of a snapshot."""
    reason = read_file(files, f"{replica.directory}/{POISONED_FILE}")
    if reason is not None:
        text = reason.decode("utf-8", "replace").strip()
        yield finding("POISONED", replica.name, f"the node stopped after a failure: {text}")
    reason = read_file(files, f"{replica.directory}/{REFILL_FILE}")
    if reason is not None:
        text = reason.decode("utf-8", "replace").strip()
        yield finding("REFILL", replica.name, f"entries may be lost here, as the node reports: {text}")
    said = read_file(files, f"{replica.directory}/{BEGINS_FILE}")
    try:
        if said is not None and decode_json(said).get("replace") is True:
            text = "the file `begins` says that a snapshot replaces the log, and this was not finished"
            yield finding("INSTALLING", replica.name, text)
    except CorruptFile:
        return  # reported when the store was opened


def check_beginning(files: Files, replica: Replica) -> Iterator[Row]:
    """Check that the log can begin where the file `begins` says."""
    begins, size = replica.begins, replica.segment_size
    path = f"{replica.directory}/{BEGINS_FILE}"
    said = read_file(files, path)
    if said is None or begins <= 0 or size <= 0 or not replica.segments:
        return
    try:
        if decode_json(said) != {"pos": begins, "replace": False}:
            return  # it changed meanwhile, or says that the log is being replaced
    except CorruptFile:
        return
    first, last = replica.segments[0].start, replica.segments[-1].start
    at_snapshot = any(one.pos == begins for one in replica.snapshots)
    if begins % size:
        text = f"the log begins at {begins}, where no segment of {size} bytes begins"
        yield finding("IDENTITY", replica.name, f"{path}: {text}")
    elif begins > last and not at_snapshot:
        text = f"the log begins at {begins}, but its last segment begins at {last}"
        yield finding("IDENTITY", replica.name, f"{path}: {text}")
    elif first == begins and not at_snapshot and not _is_told(replica, begins):
        text = f"the log begins at {begins}, and there is no snapshot of the state there"
        yield finding("SNAPSHOT_MISSING", replica.name, text, segment=begins)


def _is_told(replica: Replica, pos: int) -> bool:
    """Whether the snapshot at this position is reported already, because it is damaged."""
    return any(problem.segment == pos for problem in replica.problems)


def hard_term(files: Files, replica: Replica) -> int:
    """Term in the hard state, or in the file `currterm` of a broker of Apache's; -1 if there is none."""
    if replica.identity is None and (term := _apache_term(files, replica)[0]) >= 0:
        return term
    data = read_file(files, f"{replica.directory}/{HARD_STATE_FILE}")
    known = None if data is None else decode_hard_state(data)
    return -1 if known is None else known[1].term


def check_hard_state(files: Files, replica: Replica) -> Iterator[Row]:
    """Check the hard state. Our nodes write it before their first entry, and brokers of Apache's the file
    `currterm`."""
    data = read_file(files, f"{replica.directory}/{HARD_STATE_FILE}")
    if data is not None and any(data):
        known = decode_hard_state(data)
        if known is None:
            yield finding("HARD_STATE", replica.name, "both slots of the hardstate file are damaged")
            return
        yield from _slots(replica, data)
        text = _foreign_vote(replica, known[1].vote)
        if text:
            yield finding("HARD_STATE", replica.name, f"the hardstate file {text}")
    elif not any(one.first_index is not None for one in replica.segments):
        return
    elif replica.identity is None:
        _, problem = _apache_term(files, replica)
        if problem:
            text = f"the file {APACHE_TERM_FILE} {problem}, though the log has entries"
            yield finding("HARD_STATE", replica.name, f"{text}: the node has forgotten its votes")
    else:
        what = "not there" if data is None else "empty"
        text = f"the hardstate file is {what}, though the log has entries: the node has forgotten its votes"
        yield finding("HARD_STATE", replica.name, text)


def _apache_term(files: Files, replica: Replica) -> tuple[int, str]:
    """Return the term in the file `currterm` of a broker of Apache's, and what is wrong with the file. The
    broker removes it for a moment when it replaces it by `currterm.tmp`."""
    path = f"{replica.directory}/{APACHE_TERM_FILE}"
    for name in (path, f"{path}.tmp", path):
        data = read_file(files, name)
        if data is not None:
            break
    else:
        return -1, "is not there"
    found = re.search(rb"^currTerm=([0-9]{1,18})\s*$", data, re.MULTILINE)
    return (int(found[1]), "") if found else (-1, "names no term")


def _slots(replica: Replica, data: bytes) -> Iterator[Row]:
    """Check each slot by itself. A slot without a valid copy may have held the newest vote."""
    if len(data) not in (2 * SLOT_SIZE, HARD_STATE_SIZE):  # older programs and backups have no mirror
        text = f"the hardstate file has {len(data)} bytes; a whole one has {HARD_STATE_SIZE}"
        yield finding("HARD_STATE", replica.name, text, severity=Severity.WARNING)
    mirrors = (0, MIRROR_OFFSET) if len(data) >= HARD_STATE_SIZE else (0,)
    known = decode_hard_state(data)
    newest = encode_slot(*known) if known is not None else b""
    for number, offset in enumerate(SLOT_OFFSETS):
        copies = [data[at + offset : at + offset + SLOT_SIZE] for at in mirrors]
        written = [copy for copy in copies if any(copy)]
        valid = [copy for copy in written if decode_hard_state(copy.ljust(2 * SLOT_SIZE, b"\0")) is not None]
        if written and not valid:
            text = f"slot {number} of the hardstate file is damaged: it may have held the newest vote"
            yield finding("HARD_STATE", replica.name, text)
        elif len(valid) < len(written) or (newest in valid and len(written) < len(copies)):
            text = f"one of the two copies of slot {number} in the hardstate file is damaged"
            yield finding("HARD_STATE", replica.name, text, severity=Severity.WARNING)
    if any(data[2 * SLOT_SIZE : MIRROR_OFFSET]):
        text = "there are bytes between the slots of the hardstate file"
        yield finding("HARD_STATE", replica.name, text, severity=Severity.WARNING)


def _foreign_vote(replica: Replica, vote: str | None) -> str:
    """Return a text if this node cannot have given this vote, otherwise an empty text.

    A node that votes for itself writes its id alone, and for another candidate its id and incarnation.
    """
    if vote is None or replica.identity is None:
        return ""
    node, incarnation = vote.partition("/")[::2]
    own = replica.identity.node
    if not incarnation and node != own:
        return f"belongs to node {node}, which voted for itself"
    if incarnation and node == own:
        return f"belongs to another node, which voted for {own}"
    known = {own, *replica.identity.members, *replica.members.voters, *replica.members.ever}
    if replica.identity.members and node not in known:
        return f"belongs to another group: it has a vote for {node}, which was never a member of this group"
    return ""


def check_lock(files: Files, replica: Replica) -> Iterator[Row]:
    """Check the content of the file `lock`. A node that was never started has none, and one that was started
    first has an empty one for a moment."""
    path = f"{replica.directory}/{LOCK_FILE}"
    if replica.identity is None or not any(one.first_index is not None for one in replica.segments):
        return
    for _ in range(_TRIES):  # a running node overwrites it with each group of entries
        problem = lock_problem(read_file(files, path) or b"") if files.exists(path) else ""
        if not problem:
            return
    yield finding("LOCK", replica.name, f"{path}: {problem}")


def check_snapshot(files: Files, replica: Replica, manifest: Manifest) -> Iterator[Row]:
    """Check the parts of one boundary snapshot, and yield its row."""
    path = f"{replica.directory}/{SNAPSHOTS_DIR}/{segment_name(manifest.pos)}"
    try:
        parts = {name: read_file(files, f"{path}/{name}") for name in manifest.parts}
        check_parts(manifest, {name: data for name, data in parts.items() if data is not None})
        if replica.segment_size and manifest.pos % replica.segment_size:
            raise CorruptFile(f"no segment of {replica.segment_size} bytes begins there")
    except CorruptFile as error:
        if not files.exists(path):
            return  # a live node has removed it meanwhile
        text = f"{path}: {error}"
        yield finding("SNAPSHOT_DAMAGED", replica.name, text, first=manifest.index, segment=manifest.pos)
    except FileNotFoundError:
        return  # removed between two looks
    said = (manifest.digest, manifest.term, manifest.chain)
    yield SnapshotRow(replica.name, manifest.pos, manifest.index, *said)


def check_own_checkpoint(files: Files, replica: Replica) -> Iterator[Row]:
    """Check the checkpoint of one of our nodes."""
    if replica.identity is not None:
        yield from check_checkpoint(files, replica.directory, replica.name, replica.checkpoint)


def check_members(files: Files, replica: Replica, log: LogProbe) -> Iterator[Row]:
    """Check that the entries that the file `members` names are configurations, and that its copies are those
    of the log, or of the snapshot at which the log begins."""
    if replica.identity is None:
        return
    try:
        copies, indexes = read_copies(files, replica.directory)
    except CorruptFile:
        return  # reported when the store was opened
    held = {copy.index: copy for copy in copies}
    for index in sorted({*indexes, *held}):
        text = _misfit(replica, log, index, held.get(index)) if index <= replica.committed else ""
        if text:
            yield finding("IDENTITY", replica.name, f"members file: {text}", first=index)


def _misfit(replica: Replica, log: LogProbe, index: int, copy: Copy | None) -> str:
    """Return why this cannot be the configuration at `index`. The text is empty if it is, or if the entry
    cannot be read."""
    named = [one.config for one in replica.snapshots if one.index == index and one.config]
    from_snapshot = copy is not None and any(_same(config, copy.packed) for config in named)
    entry = log.entry(index)
    if entry is None:
        what = f"its configuration at index {index} is not that of the snapshot there"
        return what if named and copy is not None and not from_snapshot else ""
    header, body = entry
    if header.body_crc and crc32(body, header.channel if header.channel & COVERED else 0) != header.body_crc:
        return ""  # rot is reported by the scan
    if header.channel >> 24 & KIND_MASK != Kind.CONFIG:
        # The file also has the configuration that was valid where the log begins.
        return "" if from_snapshot else f"entry {index} is no configuration"
    try:
        packed = decode_record(body).body
    except CorruptRecord:
        return ""
    if copy is not None and (copy.term != header.term or not _same(packed, copy.packed)):
        return f"its copy of the configuration at index {index} is not that of the log"
    return ""


def _same(one: bytes, other: bytes) -> bool:
    """Whether two packed configurations have the same voters. They may have been packed by different
    versions."""
    if one == other:
        return True
    try:
        return sorted(voters_of(one)) == sorted(voters_of(other))
    except (ValueError, TypeError, KeyError, AttributeError, msgpack.UnpackException):
        return False
