"""Compares ConsumeQueues and IndexFiles of replicas: finds what one replica lacks and another one has.

If derived files end early, one replica alone does not show whether they are still being written. So the scan
reports QUEUE_LAG or KEY_LAG, which is only information. Another replica of the audit may have units of
messages that this replica also holds. If this replica had time to write these units, the report has
QUEUE_BEHIND or KEY_BEHIND instead. A replica had time if one of these is true:

* The message is in a segment after which another one has begun.
* The replica has no derived files at all.
* The number of messages without a unit is above the limit for a lag.
* Its other derived files reach further.

This rule is for Apache's brokers, which dispatch one message after the other, to its ConsumeQueue and then to
the IndexFile. Our broker writes ConsumeQueues once a second, queue by queue. So for a queue that has units,
and for messages in the newest segment, only the number of messages counts. Its IndexFiles follow the log
separately and are rebuilt if they are missing. They are behind if the number of entries in segments behind
their end is above the limit for a lag.

Brokers write IndexFiles unless messageIndexEnable is off, and each broker has its own setting. So if one of
our brokers has none, they count as missing only if all the others, and at least two, have them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from dledger.audit.coverage import Holding, QueueEnd, queue_ends
from dledger.audit.findings import Finding, QueueFilesRow, QueueRunRow, finding


def judge_derived(holdings: list[Holding], findings: list[Finding], lag_warning: int) -> list[Finding]:
    """Return the findings after a comparison of the derived files. If it shows a fault of a replica, the
    fault replaces the lag of that replica."""
    damaged = {found.replica for found in findings if found.code == "KEY_INDEX"}
    for holding in holdings:
        if not holding.row.queues:
            continue  # it is not known which derived files are its own
        others = [other for other in holdings if other is not holding]
        lags = [found for found in findings if found.code == "KEY_LAG" and found.replica == holding.name]
        witnesses = [other for other in others if other.name not in damaged]
        for lag, told in (
            ("QUEUE_LAG", list(_queues_behind(holding, others, lag_warning))),
            ("KEY_LAG", list(_keys_behind(holding, witnesses, lags, len(others), lag_warning))),
        ):
            if told:
                findings = [each for each in findings if (each.code, each.replica) != (lag, holding.name)]
                findings += told
    return findings


def _queues_behind(holding: Holding, others: list[Holding], lag_warning: int) -> Iterator[Finding]:
    """Yield one finding for all queues of a replica that are behind."""
    lacking: list[tuple[str, int, QueueEnd, QueueFilesRow]] = []
    for key, mine in queue_ends(holding):
        theirs = [each for other in others for each in _files_of(other, key)]
        best = max(theirs, key=lambda row: row.end_offset, default=None)
        if best is not None and mine.lag > 0 and best.end_offset > mine.lag_first:
            lacking.append((*key, mine, best))
    counts = [_count(mine, theirs) for _, _, mine, theirs in lacking]
    if sum(counts) <= lag_warning and not any(_had_time(holding, *each[2:]) for each in lacking):
        return
    topic, queue_id, mine, _ = lacking[0]
    names = ", ".join(sorted({theirs.replica for *_, theirs in lacking}))
    queues = f"{len(lacking)} queue{'s' if len(lacking) > 1 else ''}"
    where = f"the first {topic}/{queue_id} offset {mine.lag_first}"
    none = "" if _has_units(holding) else "; there is no ConsumeQueue here at all"
    text = f"{sum(counts)} messages of {queues} have no unit, {where}, that {names} has{none}"
    yield finding("QUEUE_BEHIND", holding.name, text)


def _files_of(holding: Holding, key: tuple[str, int]) -> Iterable[QueueFilesRow]:
    return (row for row in holding.queue_files if (row.topic, row.queue_id) == key and _filled(row))


def _filled(row: QueueFilesRow) -> bool:
    return row.end_offset > row.first_offset


def _has_units(holding: Holding) -> bool:
    return any(map(_filled, holding.queue_files))


def _count(mine: QueueEnd, theirs: QueueFilesRow) -> int:
    """Number of messages that both replicas hold and for which only the other replica has a unit."""
    return min(mine.rows[-1].last_offset + 1, theirs.end_offset) - mine.lag_first


def _had_time(holding: Holding, mine: QueueEnd, theirs: QueueFilesRow) -> bool:
    newest = _newest_segment(holding)
    sealed = any(_sealed_offset(row, newest) >= mine.lag_first for row in mine.rows)
    if holding.row.ours:
        return sealed and mine.end == mine.rows[0].first_offset
    held = theirs.end_offset <= mine.rows[-1].last_offset + 1
    return sealed or not _has_units(holding) or (held and theirs.last_position <= _dispatched(holding))


def _sealed_offset(row: QueueRunRow, newest: int) -> int:
    """Queue offset of the last message of a run (`queue_runs`) that is in a segment before the newest one. -1
    if the run does not show it, because it was scanned after the replica said what is committed."""
    if row.last_segment < newest:
        return row.last_offset
    return row.before_last if row.last_segment == newest else -1


def _newest_segment(holding: Holding) -> int:
    """Start of the last segment with committed entries. The segments before it are sealed, which means that
    they do not change any more."""
    filled = (row for row in holding.segments if row.entries and row.first_index <= holding.committed)
    return max((row.segment for row in filled), default=0)


def _dispatched(holding: Holding) -> int:
    """Log offset of the last message that has a unit in a ConsumeQueue; -1 if there is none."""
    return max((row.last_position for row in holding.queue_files if _filled(row)), default=-1)


def _keys_behind(
    holding: Holding, witnesses: list[Holding], lags: list[Finding], others: int, lag_warning: int
) -> Iterator[Finding]:
    """Yield a finding if the IndexFiles of this replica are behind.

    * `witnesses`: other replicas with valid IndexFiles.
    * `others`: number of all other replicas.
    * `lags`: lags that the scans of this replica found.
    """
    witnesses = [other for other in witnesses if other.key_files]
    if holding.row.ours and not holding.key_files and not 2 <= len(witnesses) == others:
        return
    end = max((row.end_position for row in holding.key_files), default=-1)
    if holding.row.ours and _entries_behind(holding, end) <= lag_warning:
        return
    due = max(_newest_segment(holding) - 1, _dispatched(holding))
    if not holding.key_files and not _has_units(holding):
        due = max((row.end_pos for row in holding.segments), default=0)
    sealed = [found.segment + holding.row.segment_size for found in lags]
    names = []
    for other in witnesses:
        reach = max(row.end_position for row in other.key_files)
        points = [point for row in other.key_files for point in (row.begin_position, row.end_position)]
        beyond = any(end < point <= due and _holds(holding, point) for point in points)
        if beyond or any(end < at <= min(reach, due + 1) for at in sealed):
            names.append(f"{other.name}'s reach {reach}")
    if names:
        here = f"the IndexFiles end at log offset {end}" if holding.key_files else "there is no IndexFile"
        first = min((found.first_index for found in lags), default=-1)
        last = max((found.last_index for found in lags), default=-1)
        text = f"{here}, {', '.join(names)}: messages that are held here are not found by key"
        yield finding("KEY_BEHIND", holding.name, text, first=first, last=last)


def _entries_behind(holding: Holding, end: int) -> int:
    """Number of committed entries in segments that begin after the log offset `end`."""
    return sum(
        row.entries for row in holding.segments if row.segment > end and row.first_index <= holding.committed
    )


def _holds(holding: Holding, position: int) -> bool:
    return any(row.segment <= position < row.end_pos for row in holding.segments)
