"""The findings of an audit with their severities and advice, and the rows in which a scan reports.

Rows are plain tuples of integers and texts, so that every engine can transport them. `FlatRow` is a single
shape for all kinds of rows, for use with Spark.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from enum import IntEnum
from typing import NamedTuple


class Severity(IntEnum):
    """Severities, in the order in which they decide the verdict. UNKNOWN means that something could not be
    examined."""

    INFO = 0
    WARNING = 1
    ERROR = 2
    UNKNOWN = 3
    CRITICAL = 4


EXIT_CODES = {
    Severity.INFO: 0,
    Severity.WARNING: 1,
    Severity.ERROR: 2,
    Severity.CRITICAL: 3,
    Severity.UNKNOWN: 4,
}
"""Maps the severity of an audit's worst finding to the exit code of the process."""

VERDICTS = {
    Severity.INFO: "clean",
    Severity.WARNING: "warnings",
    Severity.ERROR: "errors",
    Severity.CRITICAL: "critical",
    Severity.UNKNOWN: "failed",
}


class Code(NamedTuple):
    """Properties of a code of findings: the default severity, and what an operator should do about it."""

    severity: Severity
    advice: str


_RECOPY = "stop this node, delete its store directory and restart it: it refills itself from its peers"
_IF_IT_CANNOT = (
    "; delete its store directory only when the node says that it cannot, and never of two nodes at a time"
)
_REPAIRED = "a running node repairs it from its peers" + _IF_IT_CANNOT
_TAKEN_AT_A_START = "restart this node: it takes what is missing from its peers" + _IF_IT_CANNOT
_REBUILD = "derived data: stop the node, delete the files named and restart it: they are rebuilt from the log"
_REBUILD_ALL = (
    "derived data: if the node is starting or catching up, audit it again later; otherwise stop it, "
    "delete its ConsumeQueues, IndexFiles and state file and restart it: they are rebuilt from the "
    "log"
)
_COMPARE = "compare the replicas, then " + _RECOPY
_REPLACED = "an entry near here was replaced after it was written: " + _COMPARE
_RAFT = "replicated state may differ: stop writing to the group, keep all stores, and report it"

_TABLE = (
    "the table is not what the log says: restore an earlier version of it, or fill a new table from the log"
)

CODES = {
    "DIVERGENT_COMMITTED": Code(Severity.CRITICAL, _RAFT),
    "BELOW_QUORUM": Code(
        Severity.CRITICAL,
        "too few good copies to survive another loss: back up the stores now, then repair from the good copy",
    ),
    "LOG_MATCHING": Code(Severity.CRITICAL, _RAFT),
    "CHAIN_DIFFERS": Code(Severity.CRITICAL, _RAFT),
    "TERM_REGRESSION": Code(Severity.CRITICAL, _RAFT),
    "INDEX_GAP": Code(Severity.CRITICAL, _RAFT),
    "BIT_ROT": Code(
        Severity.ERROR,
        "the finding says whether another replica has the entry whole, so that nothing is lost. Of a node: "
        + _REPAIRED
        + "; check the disk. Of a copy: make a new one from the node",
    ),
    "RECORD_CORRUPT": Code(
        Severity.ERROR,
        "the entry is as it was written, but it is not a well-formed message record: report it",
    ),
    "MISSING_SEGMENT": Code(Severity.ERROR, _TAKEN_AT_A_START),
    "MISSING_ENTRIES": Code(Severity.ERROR, _TAKEN_AT_A_START),
    "CHAIN_BREAK": Code(Severity.ERROR, _REPLACED),
    "BATCH_BROKEN": Code(Severity.ERROR, "a client batch is incomplete: " + _COMPARE),
    "QUEUE_OFFSET": Code(Severity.ERROR, "queue offsets of committed messages have gaps: report it"),
    "HARD_STATE": Code(Severity.ERROR, "term and vote cannot be trusted: " + _RECOPY),
    "IDENTITY": Code(Severity.ERROR, "the identity file cannot be trusted: " + _RECOPY),
    "MISPLACED": Code(
        Severity.ERROR,
        "the directory holds the store of another node, and this node does not start with it: give "
        "each node its own directory",
    ),
    "SEGMENT_TWICE": Code(
        Severity.ERROR,
        "find out which of the two files the broker uses (`dledger dump`), and move the other away",
    ),
    "SNAPSHOT_DIFFERS": Code(Severity.CRITICAL, _RAFT),
    "SNAPSHOT_DAMAGED": Code(
        Severity.WARNING,
        "derived data: the node removes it when it finds it, and writes a new one at the next "
        "segment boundary",
    ),
    "LOCK": Code(
        Severity.WARNING,
        "nothing to do: the next start writes it again; without it that start may take a torn tail for "
        "corruption",
    ),
    "SNAPSHOT_MISSING": Code(
        Severity.WARNING,
        "the state before the log's beginning is only in the state file here: " + _RECOPY,
    ),
    "INDEX_FILE": Code(Severity.WARNING, _REBUILD),
    "QUEUE_MISMATCH": Code(Severity.WARNING, _REBUILD),
    "QUEUE_MISSING": Code(Severity.WARNING, _REBUILD),
    "QUEUE_DANGLING": Code(Severity.WARNING, _REBUILD),
    "STATE_DIFFERS": Code(Severity.CRITICAL, _RAFT),
    "STATE_IMPOSSIBLE": Code(
        Severity.ERROR, "the log holds an operation that no leader should have written: report it"
    ),
    "TIMER_OVERDUE": Code(
        Severity.WARNING,
        "if the group was down or has no leader, start it and audit it again later; otherwise report it",
    ),
    "STATE_DAMAGED": Code(
        Severity.WARNING, "derived data: nothing to do, as the node replays the log at its next start instead"
    ),
    "STATE_TOO_NEW": Code(
        Severity.WARNING,
        "a newer version wrote this: run the audit with the version that the brokers run",
    ),
    "KEY_INDEX": Code(Severity.WARNING, _REBUILD),
    "KEY_MISMATCH": Code(Severity.WARNING, _REBUILD),
    "KEY_MISSING": Code(Severity.WARNING, _REBUILD),
    "KEY_DANGLING": Code(Severity.WARNING, _REBUILD),
    "QUEUE_BEHIND": Code(Severity.WARNING, _REBUILD_ALL),
    "KEY_BEHIND": Code(
        Severity.WARNING, _REBUILD_ALL + "; nothing to do if messageIndexEnable is off here on purpose"
    ),
    "TABLE_ROW_MISSING": Code(Severity.ERROR, _TABLE),
    "TABLE_ROW_DOUBLED": Code(Severity.ERROR, _TABLE),
    "TABLE_ROW_CHANGED": Code(Severity.ERROR, _TABLE),
    "TABLE_ROW_FOREIGN": Code(Severity.ERROR, _TABLE),
    "TABLE_DIFFERS": Code(Severity.ERROR, _TABLE),
    "TABLE_CERTIFICATE": Code(
        Severity.ERROR,
        "somebody changed the certificates, or the log is another one: compare the replicas of the log, and "
        "then fill a new table from it",
    ),
    "TABLE_ROOT": Code(Severity.ERROR, _TABLE),
    "TABLE_FILE": Code(Severity.ERROR, _TABLE),
    "TABLE_UNPROVEN": Code(
        Severity.WARNING,
        "certificates are missing, so rows of these entries could be compared with nothing: give the log, or "
        "fill a new table from it",
    ),
    "BLANK_TAIL": Code(Severity.WARNING, "the filler of a segment is damaged; no entry is lost"),
    "TORN_TAIL": Code(Severity.WARNING, "an unfinished write above the commit index: a restart removes it"),
    "POISONED": Code(Severity.WARNING, "a write or fsync failed here: replace the disk before restarting"),
    "REFILL": Code(
        Severity.WARNING,
        "start this node and wait: a leader refills it; until then it does not vote",
    ),
    "NOT_AUDITED": Code(
        Severity.INFO, "the result holds only for the other members: give the store of this member, too"
    ),
    "LAGGING": Code(Severity.INFO, "start this node, or wait: it catches up from the leader"),
    "ENDS_EARLY": Code(
        Severity.WARNING,
        "if this is a copy that was made while the node ran, make it again with dledger backup; "
        "otherwise entries are lost here: keep all stores, and audit those of stopped nodes with "
        "--same-time",
    ),
    "INSTALLING": Code(
        Severity.WARNING,
        "start this node and wait: it finishes the install of the snapshot; until then the segments "
        "here mean nothing",
    ),
    "COPIES_APART": Code(
        Severity.INFO,
        "nothing to do if the stores were copied one after the other; to count the copies of the "
        "newest entries, audit the brokers, or stopped nodes with --same-time",
    ),
    "DIVERGENT_UNCOMMITTED": Code(Severity.INFO, "nothing to do: Raft truncates it when the node rejoins"),
    "RETENTION": Code(Severity.INFO, "nothing to do: older segments were deleted by retention"),
    "RETIRED": Code(Severity.INFO, "nothing to do: retention deleted the segment while it was read"),
    "INDEX_LAG": Code(Severity.INFO, "nothing to do: index units follow the log, a start completes them"),
    "QUEUE_LAG": Code(Severity.INFO, "nothing to do: the ConsumeQueue follows the log, a start completes it"),
    "KEY_LAG": Code(Severity.INFO, "nothing to do: the IndexFiles follow the log, a start completes them"),
    "UNREADABLE": Code(Severity.UNKNOWN, "check path, permissions and disk, then run the audit again"),
    "UNREACHABLE": Code(
        Severity.UNKNOWN,
        "start this broker, or give its store directory in its place, and run the audit again",
    ),
    "STALE_DIGESTS": Code(
        Severity.UNKNOWN,
        "this broker is down or cannot ship digests: see its log, or audit it with --namesrv",
    ),
    "NOT_DRILLED": Code(
        Severity.UNKNOWN,
        "digests differ or something is damaged here: give --namesrv or store directories too",
    ),
    "NO_COMMITTED_INDEX": Code(
        Severity.UNKNOWN,
        "no entry is known to be committed here: check that the node was ever part of a running group",
    ),
    "CANNOT_RUN": Code(Severity.UNKNOWN, "the audit itself failed: see the detail"),
    "NOT_REPLICAS": Code(Severity.UNKNOWN, "give one store directory of each node of one group"),
}
"""All codes of findings."""


class Finding(NamedTuple):
    """One observation of an audit. Indexes are inclusive, and -1 if they do not apply. `replica` is empty if
    several are concerned. `segment` is the log offset of the segment's first byte, or -1."""

    code: str
    severity: int
    replica: str
    first_index: int
    last_index: int
    segment: int
    detail: str

    def as_json(self) -> dict[str, object]:
        """Return the finding for `--json`: the fields that apply, and the advice."""
        result: dict[str, object] = {"code": self.code, "severity": Severity(self.severity).name.lower()}
        if self.replica:
            result["replica"] = self.replica
        if self.first_index >= 0:
            result["first_index"] = self.first_index
            result["last_index"] = self.last_index
        if self.segment >= 0:
            result["segment"] = f"{self.segment:020d}"
        result["detail"] = self.detail
        result["advice"] = CODES[self.code].advice
        return result


def finding(
    code: str,
    replica: str,
    detail: str,
    *,
    first: int = -1,
    last: int | None = None,
    segment: int = -1,
    severity: Severity | None = None,
) -> Finding:
    """Make a finding with the default severity of its code. Raises KeyError for an unknown code."""
    chosen = CODES[code].severity if severity is None else severity
    return Finding(code, int(chosen), replica, first, first if last is None else last, segment, detail)


def worst(findings: Iterable[Finding]) -> Severity:
    """Return the severity that decides verdict and exit code; INFO if there are no findings. CRITICAL has
    priority over UNKNOWN, because a proven loss stays proven. UNKNOWN has priority over ERROR, because it may
    hide something worse."""
    return Severity(max((found.severity for found in findings), default=Severity.INFO))


class ReplicaRow(NamedTuple):
    """What a replica reported about itself before the scan.

    * `members`: number of voters.
    * `claimed_end`, `committed`: end of the log and committed index from its checkpoint, or -1.
    * `index_end`: first index without a unit in the index files.
    * `head_unit`: 1 if the index files hold the unit of the entry before the first segment.
    * `ours`: 1 if it has an identity file, which stores of Apache RocketMQ do not have.
    * `queues`: 1 if there is a ConsumeQueue directory that is surely its own.
    * `base_index`: the entry before the log's beginning as a snapshot names it, -1 without one.
    * `applied`: the entry up to which the broker recorded durably that its ConsumeQueues hold all units, -1
      if it did not record that.
    * `units_due`: 0 if all entries in sealed segments have index units. Otherwise entries below this index
      are in sealed segments and should have index units, but some of them have none.
    * `log_start`: log offset where the log began after the ConsumeQueues were looked at.
    * `node`, `voters`: its id, and the ids of the voters in its group, separated by commas, empty if unknown.
    * `voters_since`: index of the configuration entry that names the voters, -1 for the founders.
    * `hard_term`: term in its hard state, -1 if it has none.
    * `written`: last entry that the node had written, -1 if it did not record that.
    * `snapshot_index`: last entry before the newest boundary snapshot, -1 without one.
    * `whole_units`: 0 if the last index unit was not written for its entry.
    * `beyond`: highest log offset of a message in a ConsumeQueue or IndexFile, if the log has no entry there;
      else -1.
    * `begins`: log offset at which the log begins according to the file `begins`, -1 if it does not say.
    * `live`: 1 if the running node itself answered, so that entries that it does not show do not exist there.
    """

    replica: str
    store: str
    group: str
    cluster: str
    incarnation: str
    members: int
    claimed_end: int
    committed: int
    segments: int
    segment_size: int
    index_end: int
    head_unit: int
    ours: int
    queues: int
    base_index: int = -1
    applied: int = -1
    units_due: int = 0
    log_start: int = 0
    node: str = ""
    voters: str = ""
    voters_since: int = -1
    hard_term: int = -1
    live: int = 0
    written: int = -1
    snapshot_index: int = -1
    whole_units: int = 1
    beyond: int = -1
    begins: int = -1


class SegmentRow(NamedTuple):
    """What a scan of one segment covered. Indexes are -1 if the segment is empty.

    * `segment`: log offset of its first byte.
    * `stop`: why the walk ended (see `walk`).
    * `first_crc`, `first_chain`, `last_chain`: stored values, to check the chain between segments.
    * `opaque`: number of entries without a valid record.
    * `holes`: ranges of indexes that are no longer readable as entries.
    * `lacking`: number of units of derived files that were not written yet and so could not be compared.
    * `settled_term`: term of the last entry that is known to be committed.
    """

    replica: str
    segment: int
    first_index: int
    last_index: int
    first_term: int
    last_term: int
    entries: int
    bytes: int
    end_pos: int
    stop: str
    first_crc: int
    first_chain: int
    last_chain: int
    opaque: int
    holes: tuple[tuple[int, int], ...]
    lacking: int = 0
    settled_term: int = -1

    @property
    def bad_head(self) -> bool:
        """Whether the first entries cannot be read (a hole that begins with -1)."""
        return any(first < 0 for first, _ in self.holes)


def unread_segment(replica: str, segment: int, stop: str = "unreadable") -> SegmentRow:
    """Make the row of a segment that could not be read."""
    return SegmentRow(replica, segment, -1, -1, -1, -1, 0, 0, segment, stop, 0, 0, 0, 0, ())


class BlockRow(NamedTuple):
    """Additive digest of the entries in one aligned block of indexes (see `digests`)."""

    replica: str
    block: int
    entries: int
    mix_a: int
    mix_b: int


class QueueRow(NamedTuple):
    """The dispatched messages of one queue in one segment: the range of their queue offsets, without gaps.

    `due` is the last message whose unit the broker promised (`ReplicaRow.applied`, at the time of the scan),
    -1 if there is none.
    """

    replica: str
    segment: int
    topic: str
    queue_id: int
    first_offset: int
    last_offset: int
    due: int = -1


class QueueRunRow(NamedTuple):
    """One row instead of the `QueueRow`s of consecutive segments whose queue offsets have no gap. Some of
    these segments may have no message of the queue.

    With such rows, the number of rows that an engine collects does not grow with segments times queues.
    `before_last` is the last offset in segments before `last_segment`, -1 if there is none.
    """

    replica: str
    segment: int
    last_segment: int
    topic: str
    queue_id: int
    first_offset: int
    last_offset: int
    before_last: int
    due: int = -1


class QueueFilesRow(NamedTuple):
    """What the ConsumeQueue files of one queue hold: queue offsets [first, end), and the log position in the
    last unit."""

    replica: str
    topic: str
    queue_id: int
    first_offset: int
    end_offset: int
    last_position: int


class KeyFileRow(NamedTuple):
    """An IndexFile with at least one unit, by its header: the log positions in its first and last unit."""

    replica: str
    name: str
    begin_position: int
    end_position: int
    units: int


class SnapshotRow(NamedTuple):
    """A boundary snapshot: its position, the digest in its manifest, and the last entry before it according
    to the manifest. `chain` is -1 if it is not known."""

    replica: str
    segment: int
    index: int  # type: ignore[assignment]  # DLedger's field name; tuple.index is not used
    digest: str
    term: int = -1
    chain: int = -1


class BoundRow(NamedTuple):
    """The range for which the rows of the same file are valid (see `shipped_scans`): one segment, or with
    `segment` -1 the side scan.

    * `origin`: incarnation of the store, or its path if it has no identity.
    * `committed`, `size` (bytes of the segment's file), `first_index`, `next_first` (first index of the next
      segment): what was known before the scan, -1 for unknown.
    * `scanned_ms`: wall clock at the scan.
    * `final`: 1 if nothing in these rows can change any longer.
    * `segments`: for the side scan, the segments that the replica had at that time.
    * `version`, `block_entries`: rows with other values cannot be compared with these.
    """

    replica: str
    segment: int
    group: str
    origin: str
    committed: int
    size: int
    first_index: int
    next_first: int
    scanned_ms: int
    final: int
    version: int
    block_entries: int
    segments: tuple[int, ...] = ()


class KeptRow(NamedTuple):
    """Information about rows of a segment that are kept for later audits (see `kept`).

    * `stamp`: identifies the files that the rows were made from, one line for each.
    * `crc`: CRC of the other rows in the file.
    * `reused`: 1 if the rows of this audit come from the kept file.
    * `problem`: why new rows could not be kept.
    """

    replica: str
    segment: int
    stamp: str = ""
    crc: int = 0
    reused: int = 0
    problem: str = ""


DataRow = (
    Finding
    | ReplicaRow
    | SegmentRow
    | QueueRow
    | QueueRunRow
    | QueueFilesRow
    | KeyFileRow
    | SnapshotRow
    | BoundRow
    | KeptRow
)
Row = DataRow | BlockRow

ROW_KINDS: dict[str, type[Row]] = {
    "finding": Finding,
    "replica": ReplicaRow,
    "segment": SegmentRow,
    "block": BlockRow,
    "queue": QueueRow,
    "queue_run": QueueRunRow,
    "queue_files": QueueFilesRow,
    "key_file": KeyFileRow,
    "snapshot": SnapshotRow,
    "bound": BoundRow,
    "kept": KeptRow,
}


class FlatRow(NamedTuple):
    """A row of any kind in one shape: a few columns to filter and aggregate by, and all fields as JSON in
    `data`. Rows of blocks have an empty `data`; their fields are in `first_index` (the block), `entries`,
    `mix_a`, `mix_b`."""

    kind: str
    replica: str
    segment: int
    first_index: int
    last_index: int
    entries: int
    mix_a: int
    mix_b: int
    code: str
    severity: int
    data: str


_HOLES = SegmentRow._fields.index("holes")


def flatten(row: Row) -> FlatRow:
    """Convert a row to a `FlatRow`."""
    if isinstance(row, BlockRow):
        digest = (row.entries, row.mix_a, row.mix_b)
        return FlatRow("block", row.replica, -1, row.block, row.block, *digest, "", 0, "")
    flat = _flat(row)
    return flat._replace(data=json.dumps(list(row)))


def _flat(row: DataRow) -> FlatRow:
    base = FlatRow("", row.replica, -1, -1, -1, 0, 0, 0, "", 0, "")
    match row:
        case Finding():
            return base._replace(
                kind="finding",
                segment=row.segment,
                first_index=row.first_index,
                last_index=row.last_index,
                code=row.code,
                severity=row.severity,
            )
        case SegmentRow():
            return base._replace(
                kind="segment",
                segment=row.segment,
                first_index=row.first_index,
                last_index=row.last_index,
                entries=row.entries,
                code=row.stop,
            )
        case ReplicaRow():
            return base._replace(kind="replica", last_index=row.committed)
        case QueueRow():
            return base._replace(kind="queue", segment=row.segment)
        case QueueRunRow():
            return base._replace(kind="queue_run", segment=row.segment, code=f"{row.topic}/{row.queue_id}")
        case QueueFilesRow():
            return base._replace(kind="queue_files")
        case KeyFileRow():
            return base._replace(kind="key_file")
        case SnapshotRow():
            return base._replace(kind="snapshot", segment=row.segment, last_index=row.index)
        case BoundRow():
            return base._replace(kind="bound", segment=row.segment, last_index=row.committed)
        case KeptRow():
            return base._replace(kind="kept", segment=row.segment)


def unflatten(flat: FlatRow) -> Row:
    """Inverse of `flatten`."""
    if flat.kind == "block":
        return BlockRow(flat.replica, flat.first_index, flat.entries, flat.mix_a, flat.mix_b)
    fields = json.loads(flat.data)
    if flat.kind == "segment":
        fields[_HOLES] = tuple((first, last) for first, last in fields[_HOLES])
    elif flat.kind == "bound":
        fields[-1] = tuple(fields[-1])
    return ROW_KINDS[flat.kind](*fields)
