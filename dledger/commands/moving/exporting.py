"""Turns the store of one of this project's brokers into the stores of Apache's brokers in DLedger mode.
Blocking.

Every entry keeps its index, term and position, so physical offsets and message ids stay the same. Fields
that only this project uses are set to zero (channel, both CRCs). A message of a deleted topic must not be
visible to Apache's brokers. It keeps its position, too, but gets the flag TRANSACTION_PREPARED in sysFlag,
so that Apache's brokers do not dispatch it. This project's entries without a message have that flag
already. The tables of the replicated state become `config/*.json`. ConsumeQueues and IndexFiles are built
by `apache_views`.
"""

from __future__ import annotations

import json
import os
import struct
from dataclasses import dataclass, field
from typing import Any

from dledger.broker.topic.shown import shown_group
from dledger.broker.topic.topic_names import HALF_TOPIC
from dledger.broker.topic.topic_table import encode_topic
from dledger.commands.moving.apache_views import KEYS_DIR, QUEUES_DIR, ApacheSizes, ApacheViews
from dledger.commands.moving.progress import Progress
from dledger.commands.moving.source_config import CONFIG_DIR, OP_HALF_TOPIC, TRANSACTION_GROUP
from dledger.commands.moving.source_log import Piece, zeros_at_end
from dledger.commands.moving.staging import MovingFailed, Staging, Target
from dledger.commands.moving.store_writer import INDEX_FILE_SIZE, EqualFiles
from dledger.files.offline import (
    Found,
    Walk,
    node_directory,
    read_hard_state,
    read_identity,
    segment_starts,
    walk,
)
from dledger.formats.entry import (
    CHANNEL_OFFSET,
    HEADER_SIZE,
    INDEX_UNIT,
    INDEX_UNIT_SIZE,
    MAGIC,
    EntryHeader,
    Kind,
)
from dledger.formats.record import TRANSACTION_MASK, TRANSACTION_PREPARED, decode_record
from dledger.formats.snapshot import MANIFEST_FILE, check_parts, decode_manifest
from dledger.formats.state import (
    ACLS,
    DELAYS,
    POPS,
    TIMERS,
    TOPIC_DELETE,
    TRANSACTIONS,
    USERS,
    ReplicatedState,
    unpack_parts,
)
from dledger.formats.state.timers import in_order, still_waits
from dledger.formats.store_files import (
    APACHE_TERM_FILE,
    CHECKPOINT_FILE,
    DATA_DIR,
    INDEX_DIR,
    LOCK_FILE,
    SNAPSHOTS_DIR,
    CorruptFile,
    segment_name,
)
from dledger.formats.timers import TIMER_TOPIC, timer_code
from dledger.runtime import Files
from dledger.runtime.atomic_file import read_file, replace_file, write_synced

VIEW_BYTES = 20 + 2 * 24
"""Size, in bytes, of the ConsumeQueue entry and the IndexFile entries for a message with two keys."""
_SYS_FLAG_AT = 36
_INT = struct.Struct(">i")
_TIMERS = "timers"


@dataclass(frozen=True)
class ExportRequest:
    """What the user asked for. `store` is the storePathRootDir of one of this project's brokers."""

    store: str
    targets: tuple[Target, ...]
    leave: frozenset[str]
    checkpoint_bytes: int
    sizes: ApacheSizes


@dataclass
class Exported:
    """The result of an export."""

    store: str
    group: str
    stores: list[str]
    segment_size: int
    entries: int
    messages: int
    first_index: int
    last_index: int
    hidden: int
    topics: int
    groups: int
    consumer_offsets: int
    left: dict[str, int] = field(default_factory=dict)


@dataclass
class _Content:
    """The content of a log, after the operations in it were applied to the replicated state."""

    state: ReplicatedState
    log: Walk
    messages: int = 0
    deleted: dict[str, int] = field(default_factory=dict)
    """Maps the name of a deleted topic to a physical offset; messages of this name below the offset belong
    to the deleted topic."""
    due: dict[int, int] = field(default_factory=dict)
    """Maps the queue offset of a timer message to the time when it is due, in ms."""

    @property
    def timers(self) -> int:
        """Number of timer messages that are not delivered yet."""
        rows = in_order(self.state[TIMERS].rows.values())
        return sum(still_waits(rows, due, offset) for offset, due in self.due.items())


def export_store(files: Files, request: ExportRequest, progress: Progress) -> Exported:
    """Export the store, or continue an interrupted export. Raises MovingFailed, StoreUnreadable or
    OSError."""
    asked = {"export": os.path.abspath(request.store), "leave": sorted(request.leave)}
    staging = Staging(files, request.targets, asked)
    done = staging.finished()
    if done is not None:
        staging.tidy()
        return Exported(**done["result"])
    directory = node_directory(files, request.store)
    try:
        lock = files.lock(f"{directory}/{LOCK_FILE}")
    except BlockingIOError as error:
        raise MovingFailed(f"{request.store}: the broker is running. Stop it first") from error
    try:
        return _export(files, request, staging, directory, progress)
    finally:
        lock.close()
        staging.close()


def _export(
    files: Files, request: ExportRequest, staging: Staging, directory: str, progress: Progress
) -> Exported:
    identity = read_identity(files, directory)
    size = identity.segment_size
    if request.sizes.segment not in (None, size):
        raise MovingFailed(
            f"{request.store} has segments of {size} bytes: mappedFileSizeCommitLog of Apache's "
            f"brokers must be the same, not {request.sizes.segment}"
        )
    starts = segment_starts(files, directory, size)
    last = max(starts, default=0)
    path = f"{directory}/{DATA_DIR}/{segment_name(last)}"
    unwritten = zeros_at_end(files, Piece(path, last, size, entries=True)) if starts else 0
    written = len(starts) * size - unwritten  # the last segment was prepared in its whole size
    progress.begins("reading the store", written, min(starts, default=0))
    content = _read(files, directory, size, progress)
    progress.ends()
    left = _check_unfinished(content, request.leave)
    plan = staging.under_way()
    mark = [content.log.last_index, content.log.last_chain, content.log.begin_pos]
    if plan is None:
        staging.check_empty()
        units = (content.log.last_index * INDEX_UNIT_SIZE // INDEX_FILE_SIZE + 2) * INDEX_FILE_SIZE
        units += content.messages * VIEW_BYTES
        staging.check_room(len(starts) * size + units)
        plan = {"mark": mark}
        staging.begin(plan)
    elif plan["mark"] != mark:
        raise MovingFailed(
            f"{request.store} has changed since the export began. Start again: remove {staging.directories}"
        )
    out = EqualFiles(files, [target.staging for target in staging.to_write()], size)
    try:
        progress.begins("writing", written, min(starts, default=0))
        for target in request.targets:  # built anew after an interrupted run
            for name in (QUEUES_DIR, KEYS_DIR):
                files.rmtree(f"{target.root}/{name}")
        views = ApacheViews([target.root for target in request.targets], request.sizes)
        hidden = _write(
            files, directory, size, content, out, views, staging, request.checkpoint_bytes, progress
        )
        progress.ends()
    finally:
        out.close()
    state = content.state
    result = Exported(
        store=request.store,
        group=identity.group,
        stores=[target.root for target in request.targets],
        segment_size=size,
        entries=content.log.last_index - content.log.first_index + 1,
        messages=content.messages,
        first_index=content.log.first_index,
        last_index=content.log.last_index,
        hidden=hidden,
        topics=len(state.topics),
        groups=len(state.groups),
        consumer_offsets=sum(map(len, state.offsets.values())),
        left=left,
    )
    hard_state = read_hard_state(files, directory)
    term = max(hard_state[1].term if hard_state else 0, content.log.last_term)
    last = content.log.last_index
    for target in request.targets:
        for name, data in _config(content).items():
            replace_file(files, f"{target.root}/{CONFIG_DIR}/{name}", data)
    for target in staging.to_write():
        write_synced(files, f"{target.staging}/{APACHE_TERM_FILE}", b"voteLeader=\ncurrTerm=%d\n" % term)
        checkpoint = b"committedIndex=%d\nendIndex=%d\n" % (last, last)
        write_synced(files, f"{target.staging}/{CHECKPOINT_FILE}", checkpoint)
        files.sync_dir(target.staging)
    staging.note_plan(plan | {"result": result.__dict__})
    staging.publish()
    return result


def _read(files: Files, directory: str, size: int, progress: Progress) -> _Content:
    """Read the log and apply its operations."""
    starts = segment_starts(files, directory, size)
    state = _state_at(files, directory, starts[0]) if starts and starts[0] else ReplicatedState()
    content = _Content(state, Walk())

    def take(piece: Found) -> None:
        at = 0
        for header in piece.headers:
            if header.kind in (Kind.MESSAGE, Kind.SYSTEM):
                _play(content, header, piece.data[at + HEADER_SIZE : at + header.size])
            at += header.size
        progress.at(piece.start + piece.offset)

    content.log = walk(files, directory, size, None, take)
    if content.log.stopped_by:
        raise MovingFailed(
            f"{directory}: the log cannot be read after entry {content.log.last_index}: "
            f"{content.log.stopped_by}. Start the node once, so that it is repaired, or use the store "
            "of another member"
        )
    return content


def _state_at(files: Files, directory: str, pos: int) -> ReplicatedState:
    path = f"{directory}/{SNAPSHOTS_DIR}/{segment_name(pos)}"
    try:
        manifest = decode_manifest(read_file(files, f"{path}/{MANIFEST_FILE}") or b"")
        parts = {name: read_file(files, f"{path}/{name}") or b"" for name in manifest.parts}
        check_parts(manifest, parts)
        return unpack_parts(parts)
    except (CorruptFile, ValueError) as error:
        raise MovingFailed(
            f"{path}: the snapshot at the beginning of the log cannot be read ({error}): use the "
            "store of another member"
        ) from error


def _play(content: _Content, header: EntryHeader, body: memoryview) -> None:
    state = content.state
    record = decode_record(body, with_body=header.kind == Kind.SYSTEM)
    if header.kind == Kind.SYSTEM:
        name = state.apply(record.body)
        if name == TOPIC_DELETE:
            op = ReplicatedState.read(record.body) or {}
            content.deleted[op["name"]] = max(op["at"], content.deleted.get(op["name"], 0))
            if op["name"] == TIMER_TOPIC:
                content.due.clear()
        return
    if record.sys_flag & TRANSACTION_MASK in (TRANSACTION_PREPARED, TRANSACTION_MASK):
        return
    state.bounds(record.topic, record.queue_id).next = record.queue_offset + 1
    state.last_store_time_ms = max(state.last_store_time_ms, record.store_timestamp)
    content.messages += 1
    if record.topic == TIMER_TOPIC:
        code = timer_code(record.properties.encode())
        if code and not code & 1:
            content.due[record.queue_offset] = code >> 1


def _check_unfinished(content: _Content, leave: frozenset[str]) -> dict[str, int]:
    """Count the unfinished operations (such as open transactions), which are left out of the export.
    Raises MovingFailed if there are any and the request does not allow them to be left out."""
    state = content.state
    open_now = {
        "accounts": len(state[USERS].rows) + len(state[ACLS].rows),
        "pop": len(state[POPS].rows),
        _TIMERS: content.timers,
        "transactions": len(state[TRANSACTIONS].rows),
    }
    found = {name: count for name, count in open_now.items() if count}
    kept = {name: count for name, count in found.items() if name not in leave}
    if kept:
        told = ", ".join(f"{count} {name}" for name, count in kept.items())
        raise MovingFailed(
            f"Apache's brokers cannot take over what is still in flight here: {told}. Let it finish, "
            "or leave it behind; then its consumers never receive it: "
            f"{' '.join(f'--leave {name}' for name in kept)}"
        )
    return found


def _write(
    files: Files,
    directory: str,
    size: int,
    content: _Content,
    out: EqualFiles,
    views: ApacheViews,
    staging: Staging,
    checkpoint_bytes: int,
    progress: Progress,
) -> int:
    noted = staging.progress()
    done = noted["pos"] if noted else -1
    hidden = 0
    since = done

    def take(piece: Found) -> None:
        nonlocal hidden, since
        begin = piece.start + piece.offset
        data = bytearray(piece.data)
        at = 0
        for header in piece.headers:
            data[at + CHANNEL_OFFSET : at + CHANNEL_OFFSET + 12] = bytes(12)
            if header.kind == Kind.MESSAGE:
                record = decode_record(data, at + HEADER_SIZE, with_body=False)
                if record.physical_offset < content.deleted.get(record.topic, 0):
                    hidden += 1
                    flag = record.sys_flag & ~TRANSACTION_MASK | TRANSACTION_PREPARED
                    _INT.pack_into(data, at + HEADER_SIZE + _SYS_FLAG_AT, flag)
                else:
                    views.add(record)
            at += header.size
        if begin < done:
            return  # written before the interruption
        out.write(DATA_DIR, begin, data)
        if piece.headers:
            first = piece.headers[0].index
            units = b"".join(
                INDEX_UNIT.pack(MAGIC, one.pos, one.size, one.index, one.term) for one in piece.headers
            )
            place = first * INDEX_UNIT_SIZE
            while units:
                room = INDEX_FILE_SIZE - place % INDEX_FILE_SIZE
                out.write(INDEX_DIR, place, units[:room])
                place += room
                units = units[room:]
        progress.at(begin)
        if begin + len(data) - since >= checkpoint_bytes:
            since = begin + len(data)
            out.sync()
            staging.note_progress({"pos": since})

    walk(files, directory, size, None, take)
    out.sync()
    views.close()
    return hidden


def _config(content: _Content) -> dict[str, bytes]:
    state = content.state
    topics = ",".join(encode_topic(one).decode() for _, one in sorted(state.topics.items()))
    offsets: dict[str, dict[str, int]] = {}
    for group, rows in sorted(state.offsets.items()):
        for (topic, queue_id), offset in sorted(rows.items()):
            offsets.setdefault(f"{topic}@{group}", {})[str(queue_id)] = offset
    halves = state.next_offset(HALF_TOPIC, 0)
    if halves:  # all of them have ended
        offsets[f"{HALF_TOPIC}@{TRANSACTION_GROUP}"] = {"0": halves}
        offsets[f"{OP_HALF_TOPIC}@{TRANSACTION_GROUP}"] = {"0": 0}
    groups = {name: json.loads(shown_group(one).encode()) for name, one in sorted(state.groups.items())}
    tables: dict[str, dict[str, Any]] = {
        "subscriptionGroup.json": {"subscriptionGroupTable": groups},
        "consumerOffset.json": {"offsetTable": offsets},
        "delayOffset.json": {
            "offsetTable": {str(level): row.next for level, row in sorted(state[DELAYS].rows.items())}
        },
    }
    version = {"counter": 1, "stateVersion": 0, "timestamp": state.last_store_time_ms}
    found = {name: json.dumps({"dataVersion": version} | table).encode() for name, table in tables.items()}
    found["topics.json"] = b'{"dataVersion":%b,"topicConfigTable":{%b}}' % (
        json.dumps(version).encode(),
        topics.encode(),
    )
    timers = state.next_offset(TIMER_TOPIC, 0)
    if timers:  # none of them waits
        clock = struct.pack(">qqqq", state.last_store_time_ms, 0, timers, timers)
        found["timercheck"] = clock.ljust(4096, b"\0")
    return found
