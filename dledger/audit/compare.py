"""Makes the report from the rows of scans: checks each replica by itself, then compares the replicas.

A replica *claims* the entries that it knew to be committed before the scan. An entry above that is tentative,
because Raft may still truncate it. A tentative entry counts as a copy if it equals the claimed content, and
otherwise it is ignored. C is the highest committed index that any replica claimed before the first of them
listed its segments. (A replica may list its segments before another replica claims an index, and may have
begun a new segment since.) Q is the number of voters in a majority of the group.

* DIVERGENT_COMMITTED: two claimed copies with good CRCs differ.
* BELOW_QUORUM: an entry at or below C has fewer than Q good copies, whether the reason is rot, missing
  segments or both. A copy that could not be read is UNREADABLE, not lost. BELOW_QUORUM is reported only if
  there are too few copies even if the unreadable ones are counted.
* DIVERGENT_UNCOMMITTED: a tentative copy differs, and has another term.
* LOG_MATCHING: two entries of one index and term differ. A term has only one leader, which makes one entry
  for an index, so the log matching property of Raft is violated.
* COPIES_APART: stores were copied one after the other while the group was written to. They end at different
  indexes, and the last copy claims entries that did not exist at the time of the first. So if a replica
  neither holds nor claims an index, that proves nothing. This does not apply if all replicas are known to be
  of the same time: running nodes that answer for themselves, or stores that the operator declares to be so
  (`same_time`).

Missing entries are found by coverage, never by digests. Content is compared by digests, and if these differ,
entry by entry. A replica whose oldest segments were removed by retention need not hold the entries of these
segments.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass
from itertools import pairwise

from dledger.audit.chains import check_boundaries, compare_chains
from dledger.audit.coverage import Holding, check_replica, gather, place_heads
from dledger.audit.defaults import LAG_WARNING_ENTRIES
from dledger.audit.derived import judge_derived
from dledger.audit.digests import BLOCK_ENTRIES
from dledger.audit.findings import BlockRow, Finding, Row, Severity, SnapshotRow, finding
from dledger.audit.report import Kept, Report
from dledger.audit.scan import EntryRow
from dledger.audit.walk import BODY_DAMAGED, CHAIN_BROKEN, CHAIN_UNKNOWN, UNREADABLE
from dledger.audit.whole_copies import ReadEntry, WholeCopies, explained
from dledger.formats.entry import COVERED

DRILL_BLOCKS = 256
"""Number of blocks that are read again at a time. It limits the memory of a comparison to about a million
entry rows."""

_NOT_SEEN = ("UNREADABLE", "UNREACHABLE")
"""Codes of findings about replicas, or parts of replicas, that could not be examined."""

Drill = Callable[[list[tuple[int, int]]], Iterable[EntryRow]]
"""Function that reads entries again. It returns the entries of all replicas in the given ranges of indexes
(inclusive, ascending), in any order."""


@dataclass(frozen=True)
class Group:
    """The replicas of one broker group, and what is known about the group."""

    holdings: list[Holding]
    commit: int
    """Highest committed index (C in the docstring of the module); -1 if no replica knows a committed
    entry."""
    quorum: int
    absent: int
    """Number of members whose stores were not given. Each of them may hold any entry."""
    same_time: bool = False
    """Whether all replicas were scanned after the last of them said what is committed. If not, a replica that
    ends earlier may have been scanned, or copied, earlier. Then entries that it lacks prove nothing."""
    shipped: bool = False
    """Whether the rows were shipped by brokers, from scans at different times."""


def analyse(
    rows: Iterable[Row],
    differing: Iterable[int],
    drill: Drill,
    *,
    block_entries: int = BLOCK_ENTRIES,
    lag_warning: int = LAG_WARNING_ENTRIES,
    same_time: bool = False,
    shipped: bool = False,
    claims: Mapping[str, int] | None = None,
    read_entry: ReadEntry = lambda replica, index: None,
) -> Report:
    """Check each replica, compare the replicas, and make the report.

    * `rows`: all rows except block rows.
    * `differing`: blocks for which the digests of two replicas differ.
    * `drill`: reads the entries of such blocks again.
    * `claims`: for each replica, the index that was committed before any replica was examined for the scan.
    * `same_time`, `shipped`: see `Group`.
    * `read_entry`: reads one entry, to say which message is damaged.
    """
    everything = list(rows)
    holdings = gather(everything)
    findings = [row for row in everything if isinstance(row, Finding)]
    for holding in holdings:
        findings.extend(
            check_replica(holding, [found for found in findings if found.replica == holding.name])
        )
        findings.extend(
            check_boundaries(holding, [found for found in findings if found.replica == holding.name])
        )
    for holding in holdings:
        mine = [found for found in findings if found.replica == holding.name]
        others = [found for found in findings if found.replica != holding.name]
        findings = others + place_heads(holding, mine)
    for number, found in enumerate(findings):
        if found.code == "ENDS_EARLY" and (same_time or _runs(holdings, found.replica)):
            findings[number] = found._replace(severity=int(Severity.ERROR))
    if len(holdings) > 1:
        stranger = _strangers(holdings)
        if stranger is not None:
            findings.append(stranger)
        else:
            names = {holding.name for holding in holdings}
            unseen = {found.replica for found in findings if found.code in _NOT_SEEN} - names
            group = _group(holdings, len(unseen), claims or {}, same_time, shipped)
            findings.extend(_not_audited(holdings, findings))
            findings = judge_derived(holdings, findings, lag_warning)
            findings.extend(_positions(group, lag_warning))
            findings.extend(_snapshots([row for row in everything if isinstance(row, SnapshotRow)]))
            findings.extend(_below_quorum_by_coverage(group))
            blocks = _blocks_to_drill(differing, findings, block_entries)
            whole = WholeCopies(findings)
            unreadable = [found.replica for found in findings if found.code == "UNREADABLE"]
            findings.extend(
                found
                for found in _drill(group, blocks, drill, block_entries, whole)
                if found.code != "UNREADABLE" or found.replica not in unreadable
            )
            findings.extend(compare_chains(holdings, findings))
            findings = explained(findings, whole, read_entry, group.commit)
    compared = min((holding.committed for holding in holdings), default=-1)
    replicas = [holding.as_json() for holding in holdings]
    members = _configured(holdings).row.members if holdings else 0
    return Report(replicas, compared, findings, kept=Kept.of(everything), members=members)


def _runs(holdings: list[Holding], replica: str) -> bool:
    """Whether this replica is a running node that answered for itself."""
    return any(holding.name == replica and holding.row.live for holding in holdings)


def _strangers(holdings: list[Holding]) -> Finding | None:
    """Return a finding if the stores are not replicas of one log and cannot be compared; else None."""
    for what in ("group", "cluster"):
        values = sorted({getattr(holding.row, what) for holding in holdings} - {""})
        if len(values) > 1:
            return finding("NOT_REPLICAS", "", f"the stores belong to different {what}s: {', '.join(values)}")
    incarnations = [holding.row.incarnation for holding in holdings if holding.row.incarnation]
    if len(set(incarnations)) < len(incarnations):
        return finding("NOT_REPLICAS", "", "two stores are copies of the store of one node")
    return None


def _group(
    holdings: list[Holding], unseen: int, claims: Mapping[str, int], same_time: bool, shipped: bool
) -> Group:
    """Make the group. `unseen` is the number of given replicas that could not be examined."""
    members = max(len(holdings) + unseen, _configured(holdings).row.members)
    return Group(
        holdings,
        commit=max(
            min(holding.committed, claims.get(holding.name, holding.committed)) for holding in holdings
        ),
        quorum=members // 2 + 1,
        absent=members - len(holdings),
        same_time=same_time,
        shipped=shipped,
    )


def _configured(holdings: list[Holding]) -> Holding:
    """Return the replica that knows the newest configuration of the group."""
    return max(holdings, key=lambda holding: (holding.row.voters_since, holding.row.members))


def _not_audited(holdings: list[Holding], findings: list[Finding]) -> Iterator[Finding]:
    """Yield findings for members whose stores were not given. Members that could not be examined have another
    finding."""
    voters = _configured(holdings).row.voters.split(",")
    told = {found.replica for found in findings} | {holding.row.node for holding in holdings}
    absent = [voter for voter in voters if voter and voter not in told]
    unnamed = any(found.code == "UNREACHABLE" and found.replica not in voters for found in findings)
    if absent and not unnamed:
        text = f"not checked: {len(absent)} of the {len(voters)} members of the group"
        yield finding("NOT_AUDITED", ",".join(absent), text)


def _positions(group: Group, lag_warning: int) -> Iterator[Finding]:
    firsts = [holding.first for holding in group.holdings if holding.held]
    for holding in group.holdings:
        behind = group.commit - holding.end
        if holding.end < group.commit and holding.committed <= holding.end:
            far = behind > lag_warning and not group.shipped
            severity = Severity.WARNING if far else Severity.INFO
            text = f"{behind} committed entries behind"
            yield finding(
                "LAGGING", holding.name, text, first=holding.end + 1, last=group.commit, severity=severity
            )
        if holding.held and holding.beginning > min(firsts) and holding.head_read:
            text = f"the log begins at index {holding.beginning}, another replica's at {min(firsts)}"
            yield finding("RETENTION", holding.name, text, first=min(firsts), last=holding.beginning - 1)


def _snapshots(rows: list[SnapshotRow]) -> Iterator[Finding]:
    """Yield findings for boundary snapshots that differ between replicas at one position. They must be equal
    (safety.md S20)."""
    by_place: dict[int, dict[str, list[SnapshotRow]]] = {}
    for row in rows:
        by_place.setdefault(row.segment, {}).setdefault(row.digest, []).append(row)
    for place in sorted(by_place):
        groups = sorted(by_place[place].values(), key=lambda same: (-len(same), same[0].replica))
        if len(groups) == 1:
            continue
        tie = len(groups[0]) == len(groups[1])
        deviating = ",".join(sorted(row.replica for same in groups[not tie :] for row in same))
        text = "; ".join(
            f"{', '.join(row.replica for row in same)}: {same[0].digest[:16]}" for same in groups
        )
        index = groups[0][0].index
        yield finding("SNAPSHOT_DIFFERS", deviating, text, first=index, segment=place)


def _excused(group: Group, holding: Holding, index: int) -> bool:
    """Whether this replica lacks an entry for a good reason: retention removed it, or the copy may be older
    than the entry."""
    return _is_earlier(group, holding, index) or _retired(holding, index)


def _is_earlier(group: Group, holding: Holding, index: int) -> bool:
    same_time = group.same_time or holding.row.live
    claimed = -1 if holding.ends_early else holding.committed
    return not same_time and index > max(holding.end, claimed)


def _retired(holding: Holding, index: int) -> bool:
    return bool(holding.held) and index < holding.beginning


def _below_quorum_by_coverage(group: Group) -> Iterator[Finding]:
    """Yield findings for committed ranges that too few replicas hold or may hold, by coverage alone."""
    edges = [0, group.commit + 1]
    for holding in group.holdings:
        for first, last in (*holding.held, *holding.unread):
            edges += [first, last + 1]
    cuts = sorted(edge for edge in dict.fromkeys(edges) if 0 <= edge <= group.commit + 1)
    run: Finding | None = None
    for first, after in pairwise(cuts):
        found = _too_few(group, first)
        if run is not None and (found is None or (run.code, run.detail) != (found.code, found.detail)):
            yield run
            run = None
        if found is not None:
            run = (run or found)._replace(last_index=after - 1)
    if run is not None:
        yield run


def _too_few(group: Group, index: int) -> Finding | None:
    """Return a finding if, by coverage alone, fewer than a majority have a copy of this entry; else None."""
    holders: list[str] = []
    counted, earlier = group.absent, []
    for holding in group.holdings:
        if _holds(holding, index):
            holders.append(holding.name)
        elif _retired(holding, index) or _may_hold(holding, index):
            counted += 1
        elif _is_earlier(group, holding, index):
            earlier.append(holding.name)
    if len(holders) + counted >= group.quorum:
        return None
    text = f"copies on {', '.join(holders) or 'no replica'} only, {group.quorum} needed"
    if len(holders) + counted + len(earlier) < group.quorum:
        return finding("BELOW_QUORUM", "", text, first=index)
    if group.shipped:
        return None
    text += f"; {', '.join(earlier)} may have been copied before it was written"
    return finding("COPIES_APART", "", text, first=index)


def _holds(holding: Holding, index: int) -> bool:
    return any(first <= index <= last for first, last in holding.held)


def _may_hold(holding: Holding, index: int) -> bool:
    """Whether the replica may hold the entry in a part that could not be read."""
    return any(first <= index <= last for first, last in holding.unread) and not _holds(holding, index)


def _blocks_to_drill(differing: Iterable[int], findings: list[Finding], block_entries: int) -> list[int]:
    """Return the blocks that differ, and the blocks with damage. (If all replicas have the same damage, their
    digests are equal.)"""
    blocks = set(differing)
    for found in findings:
        if found.code in ("BIT_ROT", "CHAIN_BREAK") and found.first_index >= 0:
            blocks.update(range(found.first_index // block_entries, found.last_index // block_entries + 1))
    return sorted(blocks)


def _drill(
    group: Group, blocks: list[int], drill: Drill, block_entries: int, whole: WholeCopies
) -> Iterator[Finding]:
    runs = _Runs()
    for at in range(0, len(blocks), DRILL_BLOCKS):
        ranges = _ranges(blocks[at : at + DRILL_BLOCKS], block_entries)
        copies: dict[int, list[EntryRow]] = {}
        unread: set[str] = set()
        for row in drill(ranges):
            if row.damage & UNREADABLE:
                unread.add(row.replica)
                runs.add("UNREADABLE", row.replica, -1, "a segment could not be read again")
            else:
                copies.setdefault(row.index, []).append(row)
        for index in sorted(copies):
            faults = list(classify(group, index, sorted(copies[index]), unread))
            for code, replica, detail in faults:
                runs.add(code, replica, index, detail)
            whole.add(index, copies[index], [replica for code, replica, _ in faults if code == "BIT_ROT"])
    yield from runs.findings()


def _ranges(blocks: list[int], block_entries: int) -> list[tuple[int, int]]:
    """Index ranges of blocks. The ranges of adjacent blocks are joined."""
    ranges: list[tuple[int, int]] = []
    for block in blocks:
        first, last = block * block_entries, (block + 1) * block_entries - 1
        if ranges and ranges[-1][1] + 1 == first:
            ranges[-1] = (ranges[-1][0], last)
        else:
            ranges.append((first, last))
    return ranges


_Content = tuple[int, int, int, int]


def classify(
    group: Group, index: int, copies: list[EntryRow], unread: Set[str] = frozenset()
) -> Iterator[tuple[str, str, str]]:
    """Yield (code, replica, detail) for each fault that comparing the copies of one entry shows.

    Damage that the scan of one replica finds is not repeated. `unread` are the replicas with segments that
    could not be read again.
    """
    by_content: dict[_Content, list[EntryRow]] = {}
    for copy in copies:
        if not copy.damage & BODY_DAMAGED:
            by_content.setdefault((copy.term, copy.size, copy.channel, copy.crc), []).append(copy)
    claims = {holding.name: index <= holding.committed for holding in group.holdings}
    flawed = _flawed_headers(by_content)
    for copy in flawed:
        detail = f"the header says {_says(copy)}, the others' {_says(_reference(by_content, copy))}"
        yield "BIT_ROT", copy.replica, detail
    groups = [kept for rows in by_content.values() if (kept := [copy for copy in rows if copy not in flawed])]
    groups.sort(key=lambda rows: (-sum(claims[copy.replica] for copy in rows), -len(rows), rows[0].replica))
    claimed = [rows for rows in groups if any(claims[copy.replica] for copy in rows)]
    detail = "; ".join(f"{', '.join(copy.replica for copy in rows)}: {_says(rows[0])}" for rows in groups)
    if len(claimed) > 1:
        tie = len(claimed[0]) == len(claimed[1])
        deviating = claimed if tie else claimed[1:]
        yield "DIVERGENT_COMMITTED", ",".join(sorted(c.replica for rows in deviating for c in rows)), detail
        return
    for number, rows in enumerate(groups[1:], 1):
        same_term = rows[0].term in {other[0].term for other in (*groups[:number], *groups[number + 1 :])}
        code = "LOG_MATCHING" if same_term else "DIVERGENT_UNCOMMITTED"
        for copy in rows:
            yield code, copy.replica, detail
    if index <= group.commit:
        yield from _quorum_of(group, index, copies, groups[0] if groups else [], unread)


def _quorum_of(
    group: Group, index: int, copies: list[EntryRow], good: list[EntryRow], unread: Set[str]
) -> Iterator[tuple[str, str, str]]:
    """Yield BELOW_QUORUM if enough replicas hold the entry, but too few of their copies are good."""
    seen = {copy.replica for copy in copies}
    lacking = [holding for holding in group.holdings if holding.name not in seen]
    excused = sum(_excused(group, holding, index) for holding in lacking) + group.absent
    excused += sum(
        _may_hold(holding, index) or (holding.name in unread and _holds(holding, index))
        for holding in lacking
        if not _excused(group, holding, index)
    )
    if len(copies) + excused >= group.quorum > len(good) + excused:
        names = ", ".join(copy.replica for copy in good) or "no replica"
        yield "BELOW_QUORUM", "", f"good copies on {names} only, {group.quorum} needed"


def _flawed_headers(by_content: dict[_Content, list[EntryRow]]) -> list[EntryRow]:
    """Copies whose body equals that of another copy, and whose header is damaged.

    A term that does not fit the chain is damage. The `channel` of entries of older programs is not covered by
    a CRC, and neither is the term if there is no chain (stores of Apache RocketMQ). In these two cases the
    majority decides, and without a majority all copies count as damaged.
    """
    flawed: list[EntryRow] = []
    bodies: dict[tuple[int, int], list[EntryRow]] = {}
    for rows in by_content.values():
        for copy in rows:
            bodies.setdefault((copy.size, copy.crc), []).append(copy)
    for rows in bodies.values():
        sound = [copy for copy in rows if not copy.damage & CHAIN_BROKEN]
        if sound and len({copy.term for copy in rows}) > 1:
            terms = {copy.term for copy in sound}
            flawed += [copy for copy in rows if copy.damage & CHAIN_BROKEN and copy.term not in terms]
        if all(copy.damage & CHAIN_UNKNOWN for copy in rows):
            terms_said = Counter(copy.term for copy in rows)
            (most, count), *others = terms_said.most_common()
            tie = any(other == count for _, other in others)
            flawed += [copy for copy in rows if others and (tie or copy.term != most)]
        counts: dict[tuple[int, int], int] = {}
        for copy in rows:
            counts[copy.term, copy.channel] = counts.get((copy.term, copy.channel), 0) + 1
        for copy in rows:
            same_term = [count for (term, _), count in counts.items() if term == copy.term]
            mine = counts[copy.term, copy.channel]
            alone_at_top = mine == max(same_term) and same_term.count(mine) == 1
            if len(same_term) > 1 and not alone_at_top and copy not in flawed:
                flawed.append(copy)
    return flawed


def _reference(by_content: dict[_Content, list[EntryRow]], flawed: EntryRow) -> EntryRow:
    """Return a copy with the same body as `flawed`, and another header."""
    return next(
        copy
        for rows in sorted(by_content.values(), key=len, reverse=True)
        for copy in rows
        if (copy.size, copy.crc) == (flawed.size, flawed.crc)
        and (copy.term, copy.channel) != (flawed.term, flawed.channel)
    )


def _says(copy: EntryRow) -> str:
    channel = f" channel {copy.channel:#x}" if copy.channel & ~COVERED else ""
    return f"term {copy.term} size {copy.size}{channel} crc {copy.crc:08x}"


class _Runs:
    """Collects findings by code and replica. Adjacent indexes become one finding, with the detail of its
    first index."""

    def __init__(self) -> None:
        self._done: list[Finding] = []
        self._open: dict[tuple[str, str], Finding] = {}

    def add(self, code: str, replica: str, index: int, detail: str) -> None:
        """Add one index. Indexes must be added in ascending order."""
        run = self._open.get((code, replica))
        if run is not None and index < 0:
            return
        if run is not None and run.last_index + 1 == index:
            self._open[code, replica] = run._replace(last_index=index)
            return
        if run is not None:
            self._done.append(run)
        self._open[code, replica] = finding(code, replica, detail, first=index)

    def findings(self) -> list[Finding]:
        """All findings."""
        return [*self._done, *self._open.values()]


def split_blocks(rows: Iterable[Row]) -> tuple[list[Row], list[BlockRow]]:
    """Separate the block rows from all other rows."""
    others: list[Row] = []
    blocks: list[BlockRow] = []
    for row in rows:
        if isinstance(row, BlockRow):
            blocks.append(row)
        else:
            others.append(row)
    return others, blocks
