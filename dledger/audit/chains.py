"""Compares chain values with those recorded elsewhere: by boundary snapshots, and by the other replicas.

A chain value depends on all entries up to its own. If an entry was replaced and the chain rebuilt, every
entry fits the one before it, but the chain value differs from that in a boundary snapshot, or from that of
another replica. The chain values at both ends of each segment are already known, so nothing more must be
read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from dledger.audit.coverage import Holding
from dledger.audit.findings import Finding, SegmentRow, SnapshotRow, finding
from dledger.formats.entry import chain_crc

_WHOLE = ("blank", "full")
_ONE_ENTRY = ("BIT_ROT", "CHAIN_BREAK")
"""Codes of damage that explain a different chain value only at the damaged entry and at the entry before
it."""
_FROM_THERE_ON = ("DIVERGENT_COMMITTED", "LOG_MATCHING", "CHAIN_BREAK", "CHAIN_DIFFERS", "INDEX_GAP")
"""Codes of faults that explain a different chain value at all later entries."""


class _Link(NamedTuple):
    """Term and chain value of the entry at an index."""

    term: int
    chain: int


def check_boundaries(holding: Holding, found: Sequence[Finding]) -> Iterator[Finding]:
    """Check that the log has the chain values that its boundary snapshots name. `found` are findings about
    this replica."""
    size = holding.row.segment_size
    filled = [segment for segment in holding.segments if segment.entries]
    before = {segment.segment + size: segment for segment in filled}
    after = {segment.segment: segment for segment in filled}
    for snapshot in holding.snapshots:
        if snapshot.chain < 0 or snapshot.index > holding.committed or _is_damaged(snapshot, found):
            continue
        place = snapshot.segment
        text = _ends_otherwise(snapshot, before.get(place)) or _goes_on_otherwise(snapshot, after.get(place))
        if text:
            text = f"the boundary snapshot at {place} was taken from another log: {text}"
            yield finding("CHAIN_DIFFERS", holding.name, text, first=snapshot.index, segment=place)


def _is_damaged(snapshot: SnapshotRow, found: Sequence[Finding]) -> bool:
    """Whether damage that is already reported explains a different chain value at this snapshot."""
    return any(
        (each.code in _ONE_ENTRY and _meets(each, snapshot.index))
        or (each.code == "SNAPSHOT_DAMAGED" and each.segment == snapshot.segment)
        for each in found
    )


def _meets(found: Finding, index: int) -> bool:
    """Whether a finding is about entry `index` or the entry behind it."""
    return found.first_index <= index + 1 and found.last_index >= index


def _ends_otherwise(snapshot: SnapshotRow, before: SegmentRow | None) -> str:
    if before is None or before.holes or before.stop not in _WHOLE:
        return ""
    said = (snapshot.index, snapshot.term, snapshot.chain)
    true = (before.last_index, before.last_term, before.last_chain)
    return (
        ""
        if said == true
        else (f"its last entry is {_says(true)}, and that of the snapshot is {_says(said)}")
    )


def _goes_on_otherwise(snapshot: SnapshotRow, after: SegmentRow | None) -> str:
    if after is None or after.first_index != snapshot.index + 1 or not (after.first_chain or after.first_crc):
        return ""
    due = chain_crc(snapshot.chain, after.first_index, after.first_term, after.first_crc)
    return "" if due == after.first_chain else "the entry behind does not continue the snapshot's chain"


def _says(link: tuple[int, int, int]) -> str:
    index, term, chain = link
    return f"index {index} term {term} chain {chain:08x}"


def compare_chains(holdings: Sequence[Holding], findings: Sequence[Finding]) -> Iterator[Finding]:
    """Find first or last entries of segments at which the chain values of replicas differ and no finding
    explains it.

    Entries that both replicas hold were compared by content. So the difference comes from an entry before the
    beginning of one of the logs, or from an entry that was rewritten in the same way on both.
    """
    links: dict[int, dict[_Link, list[str]]] = {}
    for holding in holdings:
        for index, link in _links(holding).items():
            links.setdefault(index, {}).setdefault(link, []).append(holding.name)
    told: set[str] = set()
    for index in sorted(links):
        groups = sorted(links[index].items(), key=lambda group: (-len(group[1]), group[1]))
        if len(groups) == 1:
            continue
        tie = len(groups[0][1]) == len(groups[1][1])
        deviating = {name for _, names in groups[not tie :] for name in names}
        if deviating <= told or _is_explained(deviating, index, findings):
            continue
        told |= deviating
        text = "; ".join(
            f"{', '.join(names)}: term {link.term} chain {link.chain:08x}" for link, names in groups
        )
        text = f"the chains differ from here on, or from an earlier entry on: {text}"
        yield finding("CHAIN_DIFFERS", ",".join(sorted(deviating)), text, first=index)


def _links(holding: Holding) -> dict[int, _Link]:
    """Return the terms and chain values of the first and last entries of segments, as far as they are
    committed."""
    links: dict[int, _Link] = {}
    for segment in holding.segments:
        if segment.entries and holding.row.ours:
            links[segment.first_index] = _Link(segment.first_term, segment.first_chain)
            links[segment.last_index] = _Link(segment.last_term, segment.last_chain)
    return {index: link for index, link in links.items() if index <= holding.committed}


def _is_explained(deviating: set[str], index: int, findings: Sequence[Finding]) -> bool:
    for found in findings:
        if found.first_index < 0 or deviating.isdisjoint(found.replica.split(",")):
            continue
        if found.code in _ONE_ENTRY and _meets(found, index):
            return True
        if found.code in _FROM_THERE_ON and found.first_index <= index + 1:
            return True
    return False
