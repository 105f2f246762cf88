"""Compares a table with its certificates, and both with the log.

The rows of the table are read once. Each is added to the digest of the certificate whose range holds its log
index. Where the digest or the count differs, the range is read again row by row: the log, as far as it still
holds the range, says which rows were dropped, doubled or changed. Without the log, doubled rows and gaps in
offsets can be named. Roots (`roots`) prove ranges that the log no longer holds.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice, pairwise

import pyarrow as pa
import pyarrow.compute as pc

from dledger.audit.findings import Finding, finding
from dledger.audit.scan import Window
from dledger.audit.store_directory import StoreError
from dledger.client.errors import ClientError
from dledger.formats.life import Life
from dledger.lake.certificates import Certificate, row_hashes, series, total
from dledger.lake.deleted import is_dead
from dledger.lake.log_reading import Log, LogGone, LogState, link_before, windows
from dledger.lake.roots import NOTHING, Root, Sum
from dledger.lake.rows import SCHEMA, TableRows, table_schema
from dledger.lake.tables import Entries, TopicTable
from dledger.lake.typed import TypedBodies

MAX_NAMED = 1000
"""Largest number of rows of one range that are named one by one; a last finding says how many more there
are."""
MAX_FINDINGS = 10_000
"""Largest number of findings of one kind; a last one says that there are more."""
DRILL_ENTRIES = 200_000
"""Number of entries of the log whose rows are compared one by one at a time."""


@dataclass(frozen=True)
class Checked:
    """One range of a table: its certificate, and what it was compared with: `log`, `root` for a root that is
    in the log, or `itself` for the certificate alone."""

    certificate: Certificate
    compared_with: str


@dataclass
class TableReport:
    """Result of the audit of a table."""

    place: str
    rows: int = 0
    ranges: list[Checked] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)


@dataclass
class _Seen:
    """Rows of the table in the range of one certificate."""

    certificate: Certificate
    rows: int = 0
    digest: int = 0


@dataclass
class _SinceRoot:
    """Rows of the table from the entry behind the root before it up to that of this root."""

    root: Root
    rows: int = 0
    digest: int = 0


def audit_table(table: TopicTable, logs: Sequence[Log] = (), roots: Sequence[Root] = ()) -> TableReport:
    """Compare a table with its certificates, with these logs, and with roots of it that were found in them.
    The table must have been refreshed after the roots were read. Raises TableError if it cannot be read."""
    report = TableReport(table.place)
    findings = _Findings(table.place, report.findings)
    states = dict(_states(logs, findings))
    seen = {cluster: _claimed(table, cluster, findings) for cluster in table.logs()}
    since: dict[str, list[_SinceRoot]] = {cluster: [] for cluster in seen}
    for root in sorted(roots, key=lambda one: one.last):
        since.setdefault(root.cluster, []).append(_SinceRoot(root))
    _add_rows(table, seen, since, report, findings)
    for cluster in sorted(since.keys() - seen.keys()):
        _check_roots(table, cluster, [], since[cluster], findings)
    for cluster, ranges in seen.items():
        log = next((log for log, state in states.items() if state.cluster == cluster), None)
        proven = _check_roots(table, cluster, ranges, since[cluster], findings)
        for one in ranges:
            _check_range(table, one, log, states, proven, report, findings)
    return report


class _Findings:
    """Collects findings about one table."""

    def __init__(self, place: str, found: list[Finding]) -> None:
        self._place, self._found = place, found
        self._counts: Counter[str] = Counter()
        self._lost: set[str] = set()

    def lost(self, path: str, why: str) -> None:
        """Add that a file of the table cannot be read, once for each file."""
        if path not in self._lost and len(self._lost) <= MAX_FINDINGS:
            self._lost.add(path)
            self.add("TABLE_FILE", f"the file {path} cannot be read: {why}")

    def add(self, code: str, detail: str, first: int | None = None, last: int = -1) -> None:
        first = -1 if first is None else first
        self._counts[code] += 1
        if self._counts[code] > MAX_FINDINGS:
            if self._counts[code] == MAX_FINDINGS + 1:
                self._found.append(
                    finding(code, self._place, f"more than {MAX_FINDINGS} findings of this kind")
                )
            return
        self._found.append(finding(code, self._place, detail, first=first, last=max(first, last)))


def _states(logs: Sequence[Log], findings: _Findings) -> Iterator[tuple[Log, LogState]]:
    for log in logs:
        try:
            yield log, log.state()
        except (StoreError, ClientError) as error:
            findings.add("UNREACHABLE", str(error))


def _claimed(table: TopicTable, cluster: str, findings: _Findings) -> list[_Seen]:
    """Return the certificates of the rows that were added from one log."""
    end = table.position(cluster)
    assert end is not None
    known = series(table.certificates(cluster), end)
    following: Certificate | None = None
    for one in reversed(known):
        if following is not None and one.last + 1 < following.first:
            text = f"no certificate is about entries {one.last + 1} to {following.first - 1} of {one.group}"
            findings.add("TABLE_UNPROVEN", text, one.last + 1, following.first - 1)
        elif following is not None and not following.follows(one):
            text = f"the certificates of {one.range} and of {following.range} do not fit together"
            findings.add("TABLE_CERTIFICATE", text, one.first, following.last)
        following = one
    begin = table.begin(cluster)
    if known and begin is not None and begin < known[0].first:
        text = f"no certificate is about entries {begin} to {known[0].first - 1}, with which the table begins"
        findings.add("TABLE_UNPROVEN", text, begin, known[0].first - 1)
    for topic, life in sorted({left_out for one in known for left_out in one.dropped}):
        if not is_dead(topic, life, known[-1].births_after):
            findings.add(
                "TABLE_CERTIFICATE",
                f"certificates leave out the topic {topic}, life {life}: it was not deleted",
            )
    if not known or known[-1].last + 1 < end:
        first = known[-1].last + 1 if known else begin or 0
        findings.add(
            "TABLE_UNPROVEN", f"no certificate is about entries {first} to {end - 1}", first, end - 1
        )
    return [_Seen(one) for one in known]


def _add_rows(
    table: TopicTable,
    seen: Mapping[str, list[_Seen]],
    since: Mapping[str, list[_SinceRoot]],
    report: TableReport,
    findings: _Findings,
) -> None:
    """Read the table, and add each row to the range that holds it, and to the first root about it."""
    firsts = {cluster: [one.certificate.first for one in ranges] for cluster, ranges in seen.items()}
    lasts = {cluster: [one.root.last for one in known] for cluster, known in since.items()}
    foreign = 0
    unproven: Counter[str] = Counter()
    typed = TypedBodies(table.about.schema) if table.about.schema else None
    for batch in table.scan(table_schema(table.about).names, lost=findings.lost):
        report.rows += batch.num_rows
        if typed is not None:
            _check_values(batch, typed, findings)
        lives = batch.column("life").to_pylist()
        indexes = batch.column("log_index").to_pylist()
        for life, index, digest in zip(lives, indexes, row_hashes(batch), strict=True):
            cluster = _cluster(life)
            known = lasts.get(cluster)
            if known and index is not None and index <= known[-1]:
                rooted = since[cluster][bisect_left(known, index)]
                rooted.rows += 1
                rooted.digest += digest
            if not seen.get(cluster) and table.position(cluster) is not None:
                unproven[cluster] += 1
                continue
            place = bisect_right(firsts.get(cluster, ()), -1 if index is None else index) - 1
            if place < 0 or seen[cluster][place].certificate.last < index:
                foreign += 1
                if foreign <= MAX_NAMED:
                    findings.add(
                        "TABLE_ROW_FOREIGN",
                        f"a row of entry {index}, life {life}, is in no certified range",
                        index,
                    )
                continue
            one = seen[cluster][place]
            one.rows += 1
            one.digest += digest
    for cluster, count in unproven.items():
        findings.add(
            "TABLE_UNPROVEN", f"no certificate is about the log {cluster}, from which {count} rows are"
        )
    if foreign > MAX_NAMED:
        findings.add("TABLE_ROW_FOREIGN", f"{foreign - MAX_NAMED} more rows are in no certified range")


def _check_values(batch: pa.RecordBatch, typed: TypedBodies, findings: _Findings) -> None:
    """Compare the typed values of rows with their bodies."""
    right = typed.columns(batch.column("body").to_pylist())
    there = [batch.column(field.name).cast(field.type) for field in typed.fields]
    if there[0].equals(right[0]) and there[1].is_null().equals(right[1].is_null()):
        return
    rows = zip(*(column.to_pylist() for column in (*there, *right, batch.column("log_index"))), strict=True)
    for value, error, true, why, index in rows:
        # The text of an error is that of the library that read the body.
        if (value, error is None) != (true, why is None):
            text = f"the typed value of entry {index} is not that of its body"
            findings.add("TABLE_ROW_CHANGED", text, index)


def _cluster(life: str | None) -> str:
    try:
        return Life.parse(life or "").cluster
    except ValueError:
        return ""


def _check_roots(
    table: TopicTable,
    cluster: str,
    ranges: Sequence[_Seen],
    since: Sequence[_SinceRoot],
    findings: _Findings,
) -> int:
    """Compare the rows of one log with its roots. Return the last entry up to which they are proven, or
    -1."""
    there, proven = NOTHING, -1
    end, begin = table.position(cluster), table.begin(cluster)
    dropped = {life for one in ranges for life in one.certificate.dropped}
    for one in since:
        root, there = one.root, there.plus(Sum(one.rows, total([one.digest])))
        of = f"entries {root.first} to {root.last} of {root.group}"
        said = root.without(dropped)
        if end is None or root.last >= end:
            ends = "has nothing of this log" if end is None else f"ends before entry {end}"
            text = f"the table {ends}, and held the {of} when {root.named} was written"
        elif root.first != begin:
            text = f"the table begins with entry {begin}, and {root.named} is about the {of}"
        elif there.rows != said.rows:
            text = f"the {of}: the table has {there.rows} rows, and {root.named} says {said.rows}"
        elif there != said:
            text = f"the {of}: rows were changed since {root.named} was written"
        else:
            proven = root.last
            continue
        findings.add("TABLE_ROOT", text, root.first, root.last)
        return -1
    return proven


def _check_range(
    table: TopicTable,
    seen: _Seen,
    log: Log | None,
    states: Mapping[Log, LogState],
    proven: int,
    report: TableReport,
    findings: _Findings,
) -> None:
    said = seen.certificate
    in_log: Certificate | None = None
    if log is not None and said.first >= states[log].begin and said.last <= states[log].committed:
        try:
            in_log = _certified_by(table, log, states[log], said)
        except LogGone:
            in_log = None  # retention was faster
        except (StoreError, ClientError) as error:
            findings.add("UNREACHABLE", str(error), said.first, said.last)
    alone = "root" if said.last <= proven else "itself"
    report.ranges.append(Checked(said, alone if in_log is None else "log"))
    if in_log is not None and not in_log.agrees(said):
        text = f"the certificate of {said.range} says {_says(said)}, and the log has {_says(in_log)}"
        findings.add("TABLE_CERTIFICATE", text, said.first, said.last)
    true = said if in_log is None else in_log
    if (seen.rows, total([seen.digest])) == (true.rows, true.digest):
        return
    named = 0
    for found in _differences(table, said, log if in_log is not None else None, states):
        named += 1
        if named > MAX_NAMED:
            findings.add(
                "TABLE_DIFFERS", f"more than {MAX_NAMED} rows of {said.range} differ", said.first, said.last
            )
            return
        findings.add(found.code, found.detail, found.index)
    if not named:
        text = f"{said.range}: the table has {seen.rows} rows, and the certificate says {true.rows}"
        if seen.rows == true.rows:
            text = f"{said.range}: rows were changed; give the log or a backup of it to name them"
        findings.add("TABLE_DIFFERS", text, said.first, said.last)


def _says(one: Certificate) -> str:
    return f"{one.rows} rows, chain {one.chain_before:x} to {one.chain_last:x}, digest {one.digest:x}"[:160]


def _certified_by(table: TopicTable, log: Log, state: LogState, said: Certificate) -> Certificate:
    """Make the certificate of the same range again, from the log."""
    rows = TableRows(table.about.topics, state.cluster, state.group, said.births)
    link = link_before(log, said.first, state.begin)
    chain, count, digest = said.chain_last, 0, 0
    for window in windows(log, link, said.last):
        for batch in _kept(rows, window, said):
            count += batch.num_rows
            digest = total([digest, *row_hashes(batch)])
        chain = int(window.columns.chain[-1])
    before = said.chain_before if link.chain < 0 else link.chain
    return Certificate(
        state.cluster,
        state.group,
        said.first,
        said.last,
        before,
        chain,
        count,
        digest,
        said.births,
        rows.births,
        said.dropped,
    )


def _kept(rows: TableRows, window: Window, said: Certificate) -> Iterator[pa.RecordBatch]:
    """Yield the rows of entries, without those that were removed on purpose."""
    for batch in rows.of_window(window):
        for topic, life in said.dropped:
            gone = pc.and_(pc.equal(batch.column("topic"), topic), pc.equal(batch.column("life"), life))
            batch = batch.filter(pc.invert(gone))
        yield batch


@dataclass(frozen=True)
class _Difference:
    code: str
    detail: str
    index: int


_NAMED = ("topic", "queue", "offset", "life", "log_index")


def _differences(
    table: TopicTable, said: Certificate, log: Log | None, states: Mapping[Log, LogState]
) -> Iterator[_Difference]:
    """Yield the rows of a range that differ from the log, or without it those that cannot be right."""
    if log is None:
        yield from _doubled_and_missing(table, said)
        return
    state = states[log]
    rows = TableRows(table.about.topics, state.cluster, state.group, said.births)
    first = said.first
    link = link_before(log, first, state.begin)
    true: dict[int, tuple[int, str]] = {}
    for window in windows(log, link, said.last):
        for batch in _kept(rows, window, said):
            true.update(_by_index(batch))
        last = int(window.columns.index[-1])
        if last - first >= DRILL_ENTRIES or last == said.last:
            yield from _compared(table, said, first, last, true)
            first, true = last + 1, {}


def _by_index(batch: pa.RecordBatch) -> Iterator[tuple[int, tuple[int, str]]]:
    places = zip(*(batch.column(name).to_pylist() for name in _NAMED), strict=True)
    for (topic, queue, offset, life, index), digest in zip(places, row_hashes(batch), strict=True):
        yield index, (digest, f"{topic} queue {queue} offset {offset} of life {life}, entry {index}")


def _compared(
    table: TopicTable, said: Certificate, first: int, last: int, true: dict[int, tuple[int, str]]
) -> Iterator[_Difference]:
    there: dict[int, list[int]] = {}
    for batch in table.scan(SCHEMA.names, Entries(said.cluster, first, last), _left_out):
        for index, (digest, _) in _by_index(batch):
            there.setdefault(index, []).append(digest)
    for index, (digest, name) in sorted(true.items()):
        found = there.pop(index, [])
        if not found:
            yield _Difference("TABLE_ROW_MISSING", f"the table lacks {name}", index)
        elif digest not in found:
            yield _Difference("TABLE_ROW_CHANGED", f"the table has other values for {name}", index)
        if len(found) > 1:
            yield _Difference("TABLE_ROW_DOUBLED", f"the table has {len(found)} rows for {name}", index)
    for index, found in sorted(there.items()):
        text = f"the table has {len(found)} rows for entry {index}, which holds no message of these topics"
        yield _Difference("TABLE_ROW_FOREIGN", text, index)


def _doubled_and_missing(table: TopicTable, said: Certificate) -> Iterator[_Difference]:
    """Yield doubled rows, and offsets that are missing between two others. A gap at the end of a queue
    cannot be seen."""
    found: dict[_Queue, Counter[int]] = {}
    for batch in table.scan(_NAMED, Entries(said.cluster, said.first, said.last), _left_out):
        for queue, offset in _places(batch):
            found.setdefault(queue, Counter())[offset] += 1
    for queue, offsets in sorted(found.items()):
        for offset, count in sorted(offsets.items()):
            if count > 1:
                text = f"the table has {count} rows for offset {offset} of {_name(queue)}"
                yield _Difference("TABLE_ROW_DOUBLED", text, -1)
    gaps = {
        queue: list(islice(_gaps(sorted(offsets)), MAX_NAMED)) for queue, offsets in sorted(found.items())
    }
    if any(gaps.values()):
        elsewhere = {
            place
            for batch in table.scan(_NAMED, lost=_left_out)
            for place in _places(batch)
            if _is_in(place, gaps)
        }
        for queue, missing in gaps.items():
            for offset in missing:
                if (queue, offset) not in elsewhere:
                    yield _Difference(
                        "TABLE_ROW_MISSING", f"the table lacks offset {offset} of {_name(queue)}", -1
                    )


def _left_out(path: str, why: str) -> None:
    """Files that cannot be read were found when the table was read first."""


_Queue = tuple[str, int, str]
"""Topic, number of the queue, life of the topic."""


def _gaps(offsets: Sequence[int]) -> Iterator[int]:
    """Yield the numbers that are missing between ascending ones."""
    for offset, following in pairwise(offsets):
        yield from range(offset + 1, following)


def _places(batch: pa.RecordBatch) -> Iterator[tuple[_Queue, int]]:
    columns = (batch.column(name).to_pylist() for name in ("topic", "queue", "life", "offset"))
    for topic, queue, life, offset in zip(*columns, strict=True):
        if None not in (topic, queue, life, offset):
            yield (topic, queue, life), offset


def _is_in(place: tuple[_Queue, int], gaps: Mapping[_Queue, Sequence[int]]) -> bool:
    return place[1] in gaps.get(place[0], ())


def _name(queue: _Queue) -> str:
    topic, number, life = queue
    return f"{topic} queue {number}, life {life}"
