"""One replica, assembled from the rows of its segments: which entries it holds, and whether its segments fit
together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from dledger.audit.findings import (
    Finding,
    KeyFileRow,
    QueueFilesRow,
    QueueRow,
    QueueRunRow,
    ReplicaRow,
    Row,
    SegmentRow,
    Severity,
    SnapshotRow,
    finding,
)
from dledger.audit.queue_runs import as_run, promised
from dledger.formats.entry import chain_crc
from dledger.formats.store_files import APACHE_TERM_FILE, segment_name

_NO_END = 1 << 62
_NOT_SEEN = ("unreadable", "retired")
"""Values of `SegmentRow.stop` for segments that were not read to their end."""


@dataclass
class Holding:
    """One replica after its scan. `held` has the ranges of indexes (inclusive, ascending) whose entries could
    be read."""

    row: ReplicaRow
    segments: list[SegmentRow]
    queues: list[QueueRunRow]
    """Rows of ConsumeQueues, by queue, then by segment. An engine may have merged rows of consecutive
    segments."""
    queue_files: list[QueueFilesRow]
    key_files: list[KeyFileRow]
    beginning: int = 0
    """Lowest index that the replica should hold. Earlier entries were removed by retention, or never came to
    it."""
    held: list[tuple[int, int]] = field(default_factory=list)
    snapshots: list[SnapshotRow] = field(default_factory=list)
    unread: list[tuple[int, int]] = field(default_factory=list)
    """Ranges of indexes (inclusive) in segments that could not be read or were retired during the scan. They
    count neither as held nor as lost."""

    @property
    def name(self) -> str:
        """Name of the replica, unique in this audit."""
        return self.row.replica

    @property
    def first(self) -> int:
        """Lowest index held; -1 if there is none."""
        return self.held[0][0] if self.held else -1

    @property
    def end(self) -> int:
        """Highest index held; -1 if there is none."""
        return self.held[-1][1] if self.held else -1

    @property
    def head_read(self) -> bool:
        """Whether the first segment could be read. If not, the beginning of the log is unknown."""
        return not self.segments or self.segments[0].stop != "unreadable"

    @property
    def committed(self) -> int:
        """Highest index that the replica knew to be committed before the scan."""
        return self.row.committed

    @property
    def ends_early(self) -> bool:
        """Whether only zeros follow the last entry, although the replica knew further ones to be
        committed."""
        return any(segment.stop == "zeros" for segment in self.segments)

    def as_json(self) -> dict[str, object]:
        """Return the replica as an object for the report."""
        return {
            "replica": self.name,
            "store": self.row.store,
            "group": self.row.group,
            "first_index": self.first,
            "end_index": self.end,
            "committed_index": self.committed,
            "last_term": max((segment.last_term for segment in self.segments), default=-1),
            "segments": self.row.segments,
            "entries": sum(segment.entries for segment in self.segments),
            "bytes": sum(segment.bytes for segment in self.segments),
            "held": [list(span) for span in self.held],
        }


def gather(rows: list[Row]) -> list[Holding]:
    """Assemble each replica from its rows; blocks and findings are not needed."""
    holdings = {row.replica: Holding(row, [], [], [], []) for row in rows if isinstance(row, ReplicaRow)}
    for row in rows:
        match row:
            case SegmentRow():
                holdings[row.replica].segments.append(row)
            case QueueRow():
                holdings[row.replica].queues.append(as_run(row))
            case QueueRunRow():
                holdings[row.replica].queues.append(row)
            case QueueFilesRow():
                holdings[row.replica].queue_files.append(row)
            case KeyFileRow():
                holdings[row.replica].key_files.append(row)
            case SnapshotRow():
                holdings[row.replica].snapshots.append(row)
            case _:
                pass
    result = [holdings[name] for name in sorted(holdings)]
    for holding in result:
        holding.segments.sort(key=lambda row: row.segment)
        holding.snapshots.sort(key=lambda row: row.segment)
        holding.queues.sort(key=lambda row: (row.topic, row.queue_id, row.segment))
        holding.held = _held(holding.segments)
        holding.unread = _unread(holding.segments)
        holding.beginning = _beginning(holding)
    return result


def _unread(segments: list[SegmentRow]) -> list[tuple[int, int]]:
    spans: list[tuple[int, int]] = []
    for number, segment in enumerate(segments):
        if segment.stop in _NOT_SEEN:
            before = max((other.last_index for other in segments[: number + 1]), default=-1)
            after = [other.first_index for other in segments[number + 1 :] if other.entries]
            spans.append((before + 1, after[0] - 1 if after else _NO_END))
    return spans


def _held(segments: list[SegmentRow]) -> list[tuple[int, int]]:
    spans: list[tuple[int, int]] = []
    for segment in segments:
        if segment.entries == 0:
            continue
        at = segment.first_index
        for first, last in [*segment.holes, (segment.last_index + 1, segment.last_index + 1)]:
            if at <= min(first - 1, segment.last_index):
                spans.append((at, min(first - 1, segment.last_index)))
            at = max(at, last + 1)
    merged: list[tuple[int, int]] = []
    for span in sorted(spans):
        if merged and span[0] <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(merged[-1][1], span[1]))
        else:
            merged.append(span)
    return merged


def _beginning(holding: Holding) -> int:
    if not holding.segments or holding.segments[0].stop == "retired":  # by retention, while it was read
        return max(holding.first, holding.row.base_index + 1, 0)
    head, row = holding.segments[0], holding.row
    if row.base_index >= 0:
        return row.base_index + 1  # retention or an install: a snapshot holds what came before
    if 0 <= row.begins < head.segment:  # retention moves this before it removes a segment
        named = [snapshot.index for snapshot in holding.snapshots if snapshot.segment == row.begins]
        return max(named, default=-1) + 1
    if head.segment > 0 and row.begins == head.segment:
        return max(holding.first, 0)  # the node recorded that, and its snapshot of that place is lost
    if head.segment == 0 or (row.ours and (row.head_unit or head.stop == "lost" or head.bad_head)):
        return 0
    return max(holding.first, 0)


def check_replica(holding: Holding, found: Sequence[Finding] = ()) -> Iterator[Finding]:
    """Check the continuity between segments, both ends of the log, and the derived files as a whole. `found`
    are the findings of the scans of this replica."""
    filled = [segment for segment in holding.segments if segment.entries]
    missing = [*_check_files(holding), *_check_head(holding, filled)]
    for before, after in pairwise(filled):
        missing += _check_seam(holding, before, after)
    missing += _check_whole(holding, [*found, *missing])
    yield from missing
    early = list(_check_end(holding, [*found, *missing]))
    yield from early
    yield from _check_hard_state(holding)
    yield from _check_index(holding, early)
    yield from _check_queues(holding, found)


def _check_files(holding: Holding) -> Iterator[Finding]:
    """Find missing segment files between others, if a later segment is known to hold entries."""
    size = max(holding.row.segment_size, 1)
    for number, (before, after) in enumerate(pairwise(holding.segments), 1):
        following = before.segment + size
        if after.segment <= following or before.stop == "retired":
            continue
        behind = [segment for segment in holding.segments[number:] if segment.entries]
        if not behind:
            continue
        ends = [segment.last_index for segment in holding.segments[:number] if segment.entries]
        first = max(ends) + 1 if ends else holding.beginning
        count = (after.segment - following) // size
        text = f"{count} segment{'s' if count > 1 else ''} from {segment_name(following)} on"
        last = behind[0].first_index - 1
        yield _without_empty_range(
            finding("MISSING_SEGMENT", holding.name, text, first=first, last=last, segment=following)
        )


def _check_hard_state(holding: Holding) -> Iterator[Finding]:
    """Check the term in the hard state. A node raises it there before it accepts an entry of that term."""
    said = holding.row.hard_term
    known = max((segment.settled_term for segment in holding.segments), default=-1)
    if 0 <= said < known:
        file = "hardstate" if holding.row.ours else APACHE_TERM_FILE
        text = f"the file {file} says term {said}, but the log has committed entries of term {known}"
        yield finding("HARD_STATE", holding.name, f"{text}: the node has forgotten its votes")


def _check_seam(holding: Holding, before: SegmentRow, after: SegmentRow) -> Iterator[Finding]:
    """Check that `after` continues where `before`, the previous segment with entries, ended."""
    name = holding.name
    expected = before.last_index + 1
    neighbours = after.segment == before.segment + holding.row.segment_size
    if not neighbours and after.first_index != expected:
        return  # `_check_files` or `_check_whole` reports the entries between them
    reported = before.stop in ("retired", "unreadable", "lost") or after.bad_head
    if reported or expected > holding.committed:
        return
    first, segment = after.first_index, after.segment
    if after.first_index != expected:
        text = f"the segment begins with index {after.first_index}, the one before ends with {expected - 1}"
        yield finding("INDEX_GAP", name, text, first=first, segment=segment)
        return
    chain = chain_crc(before.last_chain, after.first_index, after.first_term, after.first_crc)
    if (after.first_chain or after.first_crc) and chain != after.first_chain:
        yield finding(
            "CHAIN_BREAK", name, "the chain does not continue into this segment", first=first, segment=segment
        )
    elif after.first_term < before.last_term:
        text = f"term {after.first_term} after term {before.last_term}"
        yield finding("TERM_REGRESSION", name, text, first=first, segment=segment)


def place_heads(holding: Holding, findings: list[Finding]) -> list[Finding]:
    """Return the findings. Those about damage at the head of a segment get the index at which the damage
    began, because the scan of that segment cannot know it."""
    before = _before_segments(holding)
    return [
        _without_empty_range(found._replace(first_index=before[found.segment] + 1))
        if found.first_index < 0 <= found.last_index and found.segment in before
        else found
        for found in findings
    ]


def _before_segments(holding: Holding) -> dict[int, int]:
    """Map the start of each segment to the index of the last entry before it. A segment is missing if that
    index is unknown, because no earlier segment holds an entry and it is not known where the log begins."""
    known = bool(holding.segments) and (holding.segments[0].segment == 0 or holding.row.base_index >= 0)
    last = holding.beginning - 1 if known else None
    found = {}
    for segment in holding.segments:
        if last is not None:
            found[segment.segment] = last
        if segment.entries:
            last = segment.last_index if last is None else max(last, segment.last_index)
    return found


def _without_empty_range(found: Finding) -> Finding:
    """Return a finding about lost bytes. If no entry was in them, it names none and says so."""
    if found.first_index <= found.last_index:
        return found
    return found._replace(first_index=-1, last_index=-1, detail=f"{found.detail}; no entry is missing")


def _check_head(holding: Holding, filled: list[SegmentRow]) -> Iterator[Finding]:
    """Find a log that begins late although its index file has units of earlier entries."""
    row = holding.row
    if not filled or filled[0] is not holding.segments[0] or filled[0].stop == "retired":
        return  # what is before it is reported already, or is being removed
    if (
        row.ours
        and (row.head_unit or 0 <= row.begins < filled[0].segment)
        and (holding.beginning < holding.first)
    ):
        text = "the log begins late, although its index file has the entries before"
        if not row.head_unit:
            text = f"the log begins late, although the file `begins` says that it begins at {row.begins}"
        last = holding.first - 1
        yield finding("MISSING_SEGMENT", holding.name, text, first=holding.beginning, last=last, segment=0)


def _check_whole(holding: Holding, found: Sequence[Finding]) -> Iterator[Finding]:
    """Check each index from the beginning to the commit index: it must be held, or some finding must say why
    not."""
    end, committed = holding.end, holding.committed
    told = [*holding.held, *holding.unread]
    before = _before_segments(holding)
    for segment in holding.segments:  # the scan reported every hole
        start = before.get(segment.segment, -1) + 1
        told += [(start if first < 0 else first, last) for first, last in segment.holes]
    for each in found:
        if each.code == "INDEX_GAP":  # it names the entry behind the gap
            gaps = _lacking(told, holding.beginning, committed)
            told += [span for span in gaps if span[1] + 1 == each.first_index]
        elif each.severity >= Severity.ERROR and each.first_index >= 0:
            told.append((each.first_index, each.last_index))
    if holding.ends_early:
        told.append((end + 1, _NO_END))
    for first, last in _lacking(told, holding.beginning, committed):
        if first > end:
            text = f"the log ends at index {end}, but its checkpoint knew {committed} to be committed"
        else:
            text = "committed entries are in no segment"
        yield finding("MISSING_ENTRIES", holding.name, text, first=first, last=last)


def _check_end(holding: Holding, found: Sequence[Finding]) -> Iterator[Finding]:
    """Find a log that ends before entries that other files of the replica know. Nothing is reported if
    damage, unread segments or an unfinished install explain it."""
    if any(each.code == "INSTALLING" for each in found):
        return
    row, end = holding.row, max(holding.end, holding.beginning - 1)
    spans = [*holding.unread, *(span for segment in holding.segments for span in segment.holes)]
    spans += [(each.first_index, each.last_index) for each in found if each.severity >= Severity.ERROR]
    if any(last > end for _, last in spans) or (holding.segments and not holding.head_read):
        return
    claims = [
        (row.committed if holding.ends_early else -1, "the checkpoint says that {} is committed"),
        (row.applied, "the state file says that {} is applied"),
        (row.written, "the file `lock` says that {} was written"),
        (row.snapshot_index, "a boundary snapshot was taken after {}"),
        (row.index_end - 1 if row.whole_units else -1, "there are index units up to {}"),
    ]
    said = [text.format(index) for index, text in claims if index > end]
    log_end = max([segment.end_pos for segment in holding.segments] + [row.begins, row.log_start, 0])
    if row.beyond >= log_end:
        said.append(f"a ConsumeQueue or IndexFile names a message at log offset {row.beyond}")
    if said:
        last = max([index for index, _ in claims if index > end], default=-1)
        what = "only zeros follow" if holding.ends_early else "nothing follows"
        text = f"the log ends at index {end}, log offset {log_end}, and {what}; but {'; '.join(said)}"
        yield finding("ENDS_EARLY", holding.name, text, first=end + 1 if last >= 0 else -1, last=last)


def _lacking(spans: Sequence[tuple[int, int]], first: int, last: int) -> list[tuple[int, int]]:
    """Ranges between `first` and `last` that no span covers (all inclusive)."""
    result = []
    for low, high in sorted(spans):
        if low > first and first <= last:
            result.append((first, min(low - 1, last)))
        first = max(first, high + 1)
    return [*result, (first, last)] if first <= last else result


def _check_index(holding: Holding, early: Sequence[Finding]) -> Iterator[Finding]:
    name, end, committed = holding.name, holding.end, holding.committed
    torn = any(segment.stop in _NOT_SEEN for segment in holding.segments)
    index_end = holding.row.index_end
    if end < 0 or torn:
        return
    if index_end > end + 1 and committed <= end and not (early and holding.row.whole_units):
        text = "index units of entries that the log does not hold"
        yield finding("INDEX_FILE", name, text, first=end + 1, last=index_end - 1)
    elif index_end <= min(committed, end):
        last = min(committed, end)
        sealed = min(holding.row.units_due - 1, last)
        first = max(index_end, holding.beginning)
        if first <= sealed:
            text = "entries of sealed segments have no index unit"
            yield finding("INDEX_FILE", name, text, first=first, last=sealed)
        if max(index_end, sealed + 1) <= last:
            text = "committed entries have no index unit yet"
            yield finding("INDEX_LAG", name, text, first=max(index_end, sealed + 1), last=last)


def _check_queues(holding: Holding, found: Sequence[Finding]) -> Iterator[Finding]:
    name = holding.name
    ends = {(row.topic, row.queue_id): row for row in holding.queue_files}
    whole_from = _whole_from(holding)
    last_of: dict[tuple[str, int], QueueRunRow] = {}
    for row in holding.queues:
        key = (row.topic, row.queue_id)
        before = last_of.get(key)
        contiguous = before is not None and whole_from[before.last_segment] == whole_from[row.segment]
        # Without a state file it is unknown which topics were deleted in later segments, and created again.
        again = row.first_offset == 0 and holding.row.applied < 0
        goes_on = before is not None and row.first_offset == before.last_offset + 1
        if before is not None and contiguous and not goes_on and not again:
            text = f"{row.topic}/{row.queue_id}: queue offset {row.first_offset} after {before.last_offset}"
            yield finding("QUEUE_OFFSET", name, text, segment=row.segment)
        last_of[key] = row
        files = ends.get(key)
        if row.segment < holding.row.log_start:
            continue  # retention took the segment, and what was derived from it, after the scan
        if goes_on and before is not None and before.last_segment >= holding.row.log_start:
            continue  # reported already for the row that this one continues
        if files is not None and files.end_offset > files.first_offset > row.first_offset:
            begins = f"files begin at offset {files.first_offset}, messages at {row.first_offset}"
            text = f"{row.topic}/{row.queue_id}: {begins}"
            yield finding("QUEUE_MISSING", name, text, segment=row.segment)
    if holding.row.queues:
        yield from _check_ends(holding)
    log_start = holding.segments[0].segment if holding.segments else 0
    log_end = max((segment.end_pos for segment in holding.segments), default=0)
    settled = len({*whole_from.values()}) <= 1 and holding.end <= holding.committed
    for key in sorted(ends):
        position = ends[key].last_position
        if settled and key not in last_of and log_start <= position < log_end:
            where = f"{key[0]}/{key[1]}"
            text = f"{where}: its last unit points at {position}, but the log holds no message of it"
            yield finding("QUEUE_DANGLING", name, text)
        elif settled and key in last_of and position < log_end:
            last = last_of[key].last_offset
            where = f"{key[0]}/{key[1]} offset {last + 1}"
            told = any(each.code == "QUEUE_DANGLING" and each.detail.startswith(where) for each in found)
            if ends[key].end_offset > last + 1 and not told:
                text = f"{where}: there are units up to offset {ends[key].end_offset - 1}, and no messages"
                yield finding("QUEUE_DANGLING", name, text)


def _check_ends(holding: Holding) -> Iterator[Finding]:
    """Check that the files of each queue reach its last message. The units that the broker promised must
    exist."""
    for key, mine in queue_ends(holding):
        where = f"{key[0]}/{key[1]}"
        if mine.due >= mine.end:
            lost = f"{mine.due + 1 - mine.end} messages from offset {mine.end} on"
            text = f"{where}: {lost} are not in the queue's files, though the broker's state counts on them"
            yield finding("QUEUE_MISSING", holding.name, text, segment=mine.rows[0].segment)
        if mine.lag > 0:
            text = f"{where}: {mine.lag} messages are not in the queue's files yet"
            yield finding("QUEUE_LAG", holding.name, text)


class QueueEnd(NamedTuple):
    """How far the ConsumeQueue files of one queue reach. A broker promises that all units up to entry
    `ReplicaRow.applied` are in its files.

    * `rows`: the messages of the queue in the log, by segment.
    * `end`: first queue offset that is not in the files.
    * `due`: last message whose unit the broker promised, -1 if there is none.
    """

    rows: list[QueueRunRow]
    end: int
    due: int

    @property
    def lag_first(self) -> int:
        """First message that has no unit and whose unit the broker did not promise."""
        return max(self.end, self.due + 1)

    @property
    def lag(self) -> int:
        """Number of messages that have no unit and whose unit the broker did not promise."""
        return self.rows[-1].last_offset + 1 - self.lag_first


def queue_ends(holding: Holding) -> Iterator[tuple[tuple[str, int], QueueEnd]]:
    """Yield topic, queue id and end of the files for each queue that has messages in the log."""
    ends = {(row.topic, row.queue_id): row.end_offset for row in holding.queue_files}
    rows: dict[tuple[str, int], list[QueueRunRow]] = {}
    for row in holding.queues:
        if row.last_segment >= holding.row.log_start:
            rows.setdefault((row.topic, row.queue_id), []).append(row)
    last_index = {segment.segment: segment.last_index for segment in holding.segments}
    for key, mine in sorted(rows.items()):
        due = max(promised(row, last_index[row.last_segment], holding.row.applied).due for row in mine)
        yield key, QueueEnd(mine, max(ends.get(key, 0), mine[0].first_offset), due)


def _whole_from(holding: Holding) -> dict[int, int]:
    """Map the start of each segment to the number of its run. A run consists of consecutive segments without
    a hole."""
    runs: dict[int, int] = {}
    run = 0
    before: SegmentRow | None = None
    for segment in holding.segments:
        whole = not segment.holes and not segment.opaque and segment.stop in ("blank", "full", "end", "torn")
        follows = before is not None and segment.segment == before.segment + holding.row.segment_size
        if not whole or not follows:
            run += 1
        runs[segment.segment] = run
        if not whole:
            run += 1
        before = segment
    return runs
