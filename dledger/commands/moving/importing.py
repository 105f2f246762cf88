"""Turns a log of Apache's into the log of a new group of this project (decision 0035). Blocking.

1. The source is read and checked completely (`survey`); nothing is written before this is done.
2. A plan is recorded durably in the first store: what is imported, from which files, into which stores,
   and the ids of these stores. An interrupted run resumes from the plan. Until the run is finished, a
   command with another request is refused.
3. The records are written as entries, in order, and in the same way into all stores. After every
   `checkpoint_bytes` bytes everything is fsynced, and the progress is recorded. After the records come the
   tables: topics, groups, consumer offsets, delays, transactions.
4. The first store is read again: the records of every queue are compared with the survey by their digest.
5. Identity, term and the snapshot at which the log begins are written. Then each store gets its final name
   by one rename, the first store last.

The log begins after a snapshot with the first offset of each queue, because retention has deleted the
messages before these offsets.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from dledger.broker.topic.topic_names import is_system_topic
from dledger.commands.moving.defaults import CHECKPOINT_BYTES
from dledger.commands.moving.progress import Progress
from dledger.commands.moving.source_config import (
    CONFIG_DIR,
    OWN_GROUPS,
    SourceConfig,
    is_bookkeeping,
    read_config,
)
from dledger.commands.moving.source_log import (
    LogReader,
    Message,
    SourceLog,
    more_advanced,
    open_source,
)
from dledger.commands.moving.staging import MovingFailed, Staging, Target
from dledger.commands.moving.store_writer import INDEX_FILE_SIZE, TERM, EqualFiles, LogEnd, LogWriter
from dledger.commands.moving.survey import QueueTally, Selection, Survey, known_topics, survey
from dledger.election.configuration import encode_configuration, founding
from dledger.election.identity import cluster_id
from dledger.files.offline import Found, walk
from dledger.files.run_lock import lock_of_flushed
from dledger.formats.consume_queue import UNIT_SIZE as CONSUME_QUEUE_UNIT
from dledger.formats.entry import HEADER_SIZE, INDEX_UNIT_SIZE, MIN_BLANK_SIZE, Kind
from dledger.formats.record import Record, decode_record, system_record, system_record_size
from dledger.formats.snapshot import BEGINS_FILE, MANIFEST_FILE, encode_manifest, make_manifest
from dledger.formats.state import (
    DELAYS,
    GROUPS,
    MAX_LEVELS,
    TIMERS,
    TOPIC_DELETE,
    TOPICS,
    TRANSACTIONS,
    DelayProgress,
    GroupConfig,
    Op,
    ReplicatedState,
    TimerProgress,
    TopicConfig,
    TopicDeletion,
    Transaction,
    VersionNote,
    offsets_op,
    pack_op,
    pack_parts,
)
from dledger.formats.store_files import (
    CHECKPOINT_FILE,
    HARD_STATE_FILE,
    IDENTITY_FILE,
    LOCK_FILE,
    MEMBERS_FILE,
    SNAPSHOTS_DIR,
    Checkpoint,
    HardState,
    Identity,
    encode_checkpoint,
    encode_json,
    encode_slot,
    segment_name,
)
from dledger.formats.timers import TIMER_TOPIC
from dledger.runtime import Files, Ids
from dledger.runtime.atomic_file import replace_file, write_synced

BASE_INDEX = 0
"""Index of the entry before the first one. The log does not contain this entry; a snapshot stands for it."""
OFFSETS_A_TIME = 500
"""Largest number of consumer offsets in one operation."""
TRANSACTION_WAIT_MS = 6000
"""How long an imported transaction stays open, in ms, before its producer is asked for the outcome
(transactionTimeOut)."""
SPARE_SEGMENTS = 2


@dataclass(frozen=True)
class Request:
    """What the user asked for. `replicas` are other stores of the same Apache group; it is checked that
    none of them is ahead of the source."""

    source: str
    targets: tuple[Target, ...]
    group: str
    segment_size: int
    commit_logs: tuple[str, ...] = ()
    replicas: tuple[str, ...] = ()
    leave: frozenset[str] = frozenset()
    unclean: bool = False
    checkpoint_bytes: int = CHECKPOINT_BYTES


@dataclass
class Imported:
    """The result of an import."""

    source: str
    group: str
    cluster: str
    stores: list[str]
    messages: int
    queues: int
    first_index: int
    last_index: int
    topics: int
    groups: int
    consumer_offsets: int
    delay_levels: int
    transactions: int
    timers: int
    left_out: dict[str, int]
    divided_at: int
    resumed: bool
    notes: list[str] = field(default_factory=list)


def import_stores(files: Files, ids: Ids, request: Request, progress: Progress) -> Imported:
    """Import the store, or continue an interrupted import. Raises MovingFailed, SourceUnusable or OSError."""
    job = _Job(files, ids, request, progress)
    try:
        return job.run()
    finally:
        job.close()


class _Job:
    def __init__(self, files: Files, ids: Ids, request: Request, progress: Progress) -> None:
        self._files = files
        self._ids = ids
        self._request = request
        self._progress = progress
        asked = {
            "commit_logs": list(request.commit_logs),
            "group": request.group,
            "import": os.path.abspath(request.source),
            "leave": sorted(request.leave),
            "segment_size": request.segment_size,
        }
        self._staging = Staging(files, request.targets, asked)
        self._out: EqualFiles | None = None

    def close(self) -> None:
        """Close the files, and release the lock so that other commands may run."""
        if self._out is not None:
            self._out.close()
        self._staging.close()

    def run(self) -> Imported:
        """Run all steps."""
        files, request = self._files, self._request
        done = self._staging.finished()
        if done is not None:  # everything is written, only the cleaning up was interrupted
            self._staging.tidy()
            return Imported(**done["result"])
        log = open_source(files, request.source, request.commit_logs)
        self._check_stopped(log)
        stamps = _stamps(files, log)
        plan = self._staging.under_way()
        resumed = plan is not None
        config = read_config(files, request.source)
        if plan is None:
            self._staging.check_empty()
            self._progress.begins("reading the source", log.size, log.begin)
            found = survey(files, log, config, self._progress.at, unclean=request.unclean)
            self._progress.ends()
            if log.replica is not None:
                more_advanced(files, log, found.entry, request.replicas)
            self._check_unfinished(found)
            self._check_room(found)
            incarnations = {target.node: self._ids.uuid() for target in request.targets}
            plan = {"incarnations": incarnations, "stamps": stamps, "survey": found.as_json()}
            self._staging.begin(plan)
        elif plan["stamps"] != stamps:
            raise MovingFailed(
                f"{request.source} has changed since the import began: no broker may run on it. Start "
                f"again: remove {self._staging.directories}"
            )
        return self._write(log, config, Survey.of_json(plan["survey"]), plan, resumed=resumed)

    # -- before anything is written -------------------------------------------------------------------

    def _check_stopped(self, log: SourceLog) -> None:
        if self._files.exists(f"{log.root}/abort") and not self._request.unclean:
            raise MovingFailed(
                f"{log.root}/abort exists: the broker runs, or was killed. Stop it cleanly first; if "
                "it cannot be started, --unclean imports what its log holds"
            )

    def _check_unfinished(self, found: Survey) -> None:
        if found.popped and "pop" not in self._request.leave:
            raise MovingFailed(
                f"{found.popped} checkpoints of popped messages are open: consumers have not "
                "acknowledged these messages, and the new group could not deliver them again. Let "
                "the old brokers run without consumers until the invisible time is over (then they "
                "move to retry topics), or lose them with --leave pop"
            )

    def _check_room(self, found: Survey) -> None:
        size = self._request.segment_size
        if found.largest + MIN_BLANK_SIZE > size:
            raise MovingFailed(
                f"--segment-size {size}: the largest message needs {found.largest + MIN_BLANK_SIZE} bytes"
            )
        # A segment is left half empty at worst, as what comes next does not fit.
        usable = max(size - found.largest, size // 2)
        segments = found.bytes // usable + SPARE_SEGMENTS
        units = (found.messages * INDEX_UNIT_SIZE // INDEX_FILE_SIZE + 1) * INDEX_FILE_SIZE
        self._staging.check_room(segments * size + units + found.messages * CONSUME_QUEUE_UNIT)

    # -- writing --------------------------------------------------------------------------------------

    def _write(
        self, log: SourceLog, config: SourceConfig, found: Survey, plan: dict[str, Any], *, resumed: bool
    ) -> Imported:
        files, request = self._files, self._request
        size = request.segment_size
        todo = self._staging.to_write()
        self._out = EqualFiles(files, [target.staging for target in todo], size)
        selection = Selection(known_topics(config), frozenset(found.timers))
        for tally in found.queues:
            raw = tally.topic.encode()
            selection.queues[raw, tally.queue_id] = QueueTally(
                tally.topic, tally.queue_id, tally.first, tally.first
            )
        state = ReplicatedState()
        self._begin_queues(state, config, found)
        parts = pack_parts(state)
        begin, end = log.begin, LogEnd(BASE_INDEX + 1, size, 0)
        noted = self._staging.progress()
        if noted is not None:
            begin, end = noted["source"], LogEnd(*noted["end"])
            for topic, queue_id, *numbers in noted["queues"]:
                selection.queues[topic.encode(), queue_id] = QueueTally(topic, queue_id, *numbers)
            for body in noted["ops"]:
                state.apply(bytes.fromhex(body))
        writer = LogWriter(self._out, size, end)
        ops: list[str] = [] if noted is None else list(noted["ops"])
        self._progress.begins("writing", max(found.end - begin, 1), begin)
        since = end.pos
        for message in LogReader(files, log).messages(begin):
            self._record(writer, selection, state, message, ops)
            self._progress.at(message.position)
            if end.pos - since >= request.checkpoint_bytes:
                writer.sync()
                self._note(message.position + len(message.raw), end, selection, ops)
                since = end.pos
        self._progress.ends()
        self._compare(found.queues, selection.queues.values())
        for tally in selection.queues.values():
            if tally.next:
                state.bounds(tally.topic, tally.queue_id).next = tally.next
        result = self._tables(writer, state, config, found)
        writer.sync()
        self._read_again(todo[0].staging, size, end.pos, selection)
        incarnations = plan["incarnations"]
        cluster = cluster_id(incarnations)
        done = Imported(
            source=log.root,
            group=request.group,
            cluster=cluster,
            stores=[target.root for target in request.targets],
            messages=sum(tally.count for tally in selection.queues.values()),
            queues=sum(tally.count > 0 for tally in selection.queues.values()),
            first_index=BASE_INDEX + 1,
            last_index=end.index - 1,
            timers=len(found.timers),
            left_out={name: count for name, count in selection.left_out.items() if count},
            divided_at=log.divided,
            resumed=resumed,
            notes=[*found.notes, *([f"the log ends before {found.ended_by}"] if found.ended_by else [])],
            **result,
        )
        if resumed:  # what was left out before the cut was counted by the survey
            done.left_out = {name: count for name, count in found.left_out.items() if count}
        for target in todo:
            self._small_files(target, incarnations, cluster, parts, end.index - 1)
        self._staging.note_plan(plan | {"result": asdict(done)})
        self._staging.publish()
        return done

    def _begin_queues(self, state: ReplicatedState, config: SourceConfig, found: Survey) -> None:
        first = {(tally.topic, tally.queue_id): tally.first for tally in found.queues}
        topics = known_topics(config)
        for (topic, queue_id), (end, _) in config.queue_ends.items():
            if (topics is None or topic in topics) and not is_bookkeeping(topic) and topic != TIMER_TOPIC:
                first.setdefault((topic, queue_id), end)  # retention deleted all of its messages
        told: dict[tuple[str, int], int] = {}
        for rows in config.offsets.values():
            for queue, offset in rows.items():
                told[queue] = max(offset, told.get(queue, 0))
        for queue, offset in told.items():  # without a ConsumeQueue: no offset is used again
            if topics is not None and queue[0] in topics and not is_bookkeeping(queue[0]):
                first.setdefault(queue, offset)
        for (topic, queue_id), offset in first.items():
            if offset > 0:
                bounds = state.bounds(topic, queue_id)
                bounds.next = bounds.min = offset

    def _record(
        self,
        writer: LogWriter,
        selection: Selection,
        state: ReplicatedState,
        message: Message,
        ops: list[str],
    ) -> None:
        tally = selection.place(message)
        if tally is None:
            return
        if selection.restarted:
            self._op(writer, state, VersionNote(_SINCE_DELETIONS).op(), message.store_ms, ops)
            at = writer.place(
                system_record_size(len(pack_op(TopicDeletion(selection.restarted, 1 << 60).op())))
            )
            op = TopicDeletion(selection.restarted, at - HEADER_SIZE).op()
            self._op(writer, state, op, message.store_ms, ops)
        writer.place(len(message.raw))
        offset = tally.next if tally.topic == TIMER_TOPIC else None
        writer.add(message.raw, Kind.MESSAGE, offset)
        tally.next += 1
        tally.add(message.raw)

    def _op(
        self, writer: LogWriter, state: ReplicatedState, op: Op, store_ms: int, ops: list[str] | None = None
    ) -> None:
        body = pack_op(op)
        if state.apply(body) is None:
            raise MovingFailed(f"this cannot be imported, because a value is out of range: {op}")
        position = writer.place(system_record_size(len(body)))
        writer.add(system_record(body, position, store_ms), Kind.SYSTEM)
        if ops is not None:
            ops.append(body.hex())

    def _note(self, source: int, end: LogEnd, selection: Selection, ops: list[str]) -> None:
        self._staging.note_progress(
            {
                "end": [end.index, end.pos, end.chain],
                "ops": ops,
                "queues": [
                    [one.topic, one.queue_id, one.first, one.next, one.count, one.digest]
                    for one in selection.queues.values()
                ],
                "source": source,
            }
        )

    def _tables(
        self, writer: LogWriter, state: ReplicatedState, config: SourceConfig, found: Survey
    ) -> dict[str, int]:
        """Append the operations for topics, groups, offsets and the other tables, which follow the
        messages in the log. Returns the number of rows of each table."""
        now = found.store_ms
        for topic in _topics(config, found):
            self._op(writer, state, topic.op(), now)
        for group in _groups(config):
            self._op(writer, state, group.op(), now)
        known = state.topics.keys() | state.queues.keys()
        for group_name, rows in sorted(config.offsets.items()):
            if group_name in OWN_GROUPS or group_name.startswith(_OWN_GROUP_PREFIX):
                continue
            kept = [
                (topic, queue_id, min(offset, state.next_offset(topic, queue_id)))
                for (topic, queue_id), offset in rows.items()
                if topic in known
            ]
            for at in range(0, len(kept), OFFSETS_A_TIME):
                self._op(writer, state, offsets_op(group_name, kept[at : at + OFFSETS_A_TIME]), now)
        for level, offset in sorted((config.delays or {}).items()):
            if 1 <= level <= MAX_LEVELS:
                self._op(writer, state, DelayProgress(level, offset).op(), now)
        if found.transactions:
            self._op(writer, state, VersionNote(TRANSACTIONS.since).op(), now)
            for one in found.transactions:
                row = Transaction(one.at, one.at, max(one.store_ms, 0), TRANSACTION_WAIT_MS)
                self._op(writer, state, row.op(), now)
        if found.timers:
            self._op(writer, state, VersionNote(TIMERS.since).op(), now)
            self._op(writer, state, TimerProgress(0).op(), now)  # all kept timer messages wait
        return {
            "topics": len(state[TOPICS].rows),
            "groups": len(state[GROUPS].rows),
            "consumer_offsets": sum(map(len, state.offsets.values())),
            "delay_levels": len(state[DELAYS].rows),
            "transactions": len(state[TRANSACTIONS].rows),
        }

    def _compare(self, wanted: Iterable[QueueTally], got: Iterable[QueueTally]) -> None:
        found = {(one.topic, one.queue_id): (one.count, one.next, one.digest) for one in got}
        for one in wanted:
            have = found.get((one.topic, one.queue_id))
            if have != (one.count, one.next, one.digest):
                raise MovingFailed(
                    f"queue {one.queue_id} of {one.topic} differs from the first reading ({have} "
                    f"instead of {(one.count, one.next, one.digest)}): the source has changed "
                    "meanwhile, or its disk does not return the same bytes twice"
                )

    def _read_again(self, directory: str, size: int, end: int, selection: Selection) -> None:
        """Read everything that was written up to position `end`, and check that it equals the source: the
        digest over the records of each queue must be the same."""
        found: dict[tuple[str, int], QueueTally] = {}
        self._progress.begins("reading it again", end - size, size)

        def take(piece: Found) -> None:
            at = 0
            for header in piece.headers:
                if header.kind == Kind.MESSAGE:
                    raw = bytes(piece.data[at + HEADER_SIZE : at + header.size])
                    record = decode_record(raw, with_body=False)
                    tally = found.setdefault(
                        (record.topic, record.queue_id), QueueTally(record.topic, record.queue_id)
                    )
                    _follow(tally, record)
                    tally.add(raw)
                elif header.kind == Kind.SYSTEM:
                    body = decode_record(piece.data, at + HEADER_SIZE).body
                    op = ReplicatedState.read(body) or {}
                    if op.get("op") == TOPIC_DELETE:
                        for tally in found.values():
                            tally.next = 0 if tally.topic == op["name"] else tally.next
                at += header.size
            self._progress.at(piece.start + piece.offset)

        replace_file(self._files, f"{directory}/{BEGINS_FILE}", encode_json({"pos": size, "replace": False}))
        log = walk(self._files, directory, size, None, take)
        self._progress.ends()
        if log.stopped_by:
            raise MovingFailed(f"{directory}: {log.stopped_by}: the written store cannot be read")
        self._compare(
            (tally for tally in selection.queues.values() if tally.count),
            found.values(),
        )

    def _small_files(
        self,
        target: Target,
        incarnations: Mapping[str, str],
        cluster: str,
        parts: Mapping[str, bytes],
        last: int,
    ) -> None:
        files, size = self._files, self._request.segment_size
        directory = target.staging
        config = encode_configuration(founding(incarnations))
        manifest = make_manifest(BASE_INDEX, TERM, size, 0, -1, config, parts)
        snapshot = f"{directory}/{SNAPSHOTS_DIR}/{segment_name(size)}"
        files.mkdir(snapshot)
        for name, data in (*parts.items(), (MANIFEST_FILE, encode_manifest(manifest))):
            write_synced(files, f"{snapshot}/{name}", data)
        files.sync_dir(snapshot)
        files.sync_dir(f"{directory}/{SNAPSHOTS_DIR}")
        identity = Identity(
            self._request.group,
            target.node,
            incarnations[target.node],
            size,
            cluster,
            dict(incarnations),
        )
        slots = encode_slot(2, HardState(TERM, None)) + encode_slot(1, HardState(TERM, None))
        members = {"copies": [[BASE_INDEX, TERM, config.hex()]], "indexes": [BASE_INDEX]}
        for name, data in (
            (BEGINS_FILE, encode_json({"pos": size, "replace": False})),
            (MEMBERS_FILE, encode_json(members)),
            (HARD_STATE_FILE, slots),
            (CHECKPOINT_FILE, encode_checkpoint(Checkpoint(last, last))),
            (LOCK_FILE, lock_of_flushed()),
            (IDENTITY_FILE, encode_json(identity)),
        ):
            write_synced(files, f"{directory}/{name}", data)
        files.sync_dir(directory)


_OWN_GROUP_PREFIX = "CID_RMQ_SYS_"
_SINCE_DELETIONS = 6


def _follow(tally: QueueTally, record: Record) -> None:
    if tally.first < 0:
        tally.first = record.queue_offset
    tally.next = record.queue_offset + 1


def _stamps(files: Files, log: SourceLog) -> list[list[str]]:
    """Return properties of the source's files that show whether the source has changed since the import
    began."""
    config = f"{log.root}/{CONFIG_DIR}"
    names = [
        f"{config}/{name}" for name in sorted(files.listdir(config)) if not files.is_dir(f"{config}/{name}")
    ]
    return [[path, str(files.stamp(path))] for path in (*(piece.path for piece in log.pieces), *names)]


def _topics(config: SourceConfig, found: Survey) -> list[TopicConfig]:
    """Return the topics of topics.json, and other topics that have messages, but not the topics that every
    broker has."""
    topics: dict[str, TopicConfig] = {}
    for name, row in (config.topics or {}).items():
        if not is_bookkeeping(name) and not is_system_topic(name):
            attributes = row.get("attributes") or {}
            topics[name] = TopicConfig(
                name,
                int(row.get("readQueueNums", 16)),
                int(row.get("writeQueueNums", 16)),
                int(row.get("perm", 6)),
                bool(row.get("order", False)),
                int(row.get("topicSysFlag", 0)),
                tuple(sorted((str(key), str(value)) for key, value in attributes.items())),
            )
    queues: dict[str, int] = {}
    for tally in found.queues:
        if tally.topic not in topics and not is_system_topic(tally.topic):
            queues[tally.topic] = max(queues.get(tally.topic, 0), tally.queue_id + 1)
    for name, count in queues.items():
        topics[name] = TopicConfig(name, count, count, 6)
    return [topics[name] for name in sorted(topics)]


def _groups(config: SourceConfig) -> list[GroupConfig]:
    return [
        GroupConfig(
            name,
            bool(row.get("consumeEnable", True)),
            bool(row.get("consumeBroadcastEnable", True)),
            bool(row.get("consumeMessageOrderly", False)),
            int(row.get("retryQueueNums", 1)),
            int(row.get("retryMaxTimes", 16)),
            int(row.get("groupSysFlag", 0)),
        )
        for name, row in sorted(config.groups.items())
        if name not in OWN_GROUPS and not name.startswith(_OWN_GROUP_PREFIX)
    ]
