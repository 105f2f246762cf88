"""The state of each part of a replica's log, as data for a picture.

It is made from a report alone, so that a page can be made long after the audit. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from dledger.audit.findings import Finding

if TYPE_CHECKING:
    from dledger.audit.report import Report

Span = tuple[int, int]
"""A range of entries: first and last index, inclusive."""


class Kind(NamedTuple):
    """A state in which entries of a replica can be: its name, its letter in a terminal, its meaning."""

    name: str
    letter: str
    meaning: str


KINDS = (
    Kind("divergent", "!", "committed, but differs from the other replicas"),
    Kind("corrupt", "X", "corrupt: does not match its checksums, its place or the record format"),
    Kind("missing", "_", "missing although it should be here"),
    Kind("unread", "?", "could not be read, or was deleted by retention meanwhile"),
    Kind("uncommitted", "~", "not committed: Raft may still remove it"),
    Kind("read", "=", "good"),
    Kind("lagging", ".", "committed, but not yet on this replica"),
    Kind("retired", "-", "deleted by retention"),
)
"""All states. If several apply to an entry, the first of them counts."""

_CODES = {
    "BIT_ROT": "corrupt",
    "RECORD_CORRUPT": "corrupt",
    "CHAIN_BREAK": "corrupt",
    "BATCH_BROKEN": "corrupt",
    "TERM_REGRESSION": "corrupt",
    "INDEX_GAP": "corrupt",
    "DIVERGENT_COMMITTED": "divergent",
    "DIVERGENT_UNCOMMITTED": "uncommitted",
    "MISSING_SEGMENT": "missing",
    "MISSING_ENTRIES": "missing",
}


@dataclass(frozen=True)
class Strip:
    """The log of one replica as a strip of the picture. `spans` maps the name of a state (`Kind`) to the
    ranges of entries in that state. The ranges are ascending, and no entry is in two of them."""

    replica: str
    committed: int
    spans: dict[str, list[Span]]

    def entries(self, kind: str) -> int:
        """Number of entries in this state."""
        return sum(last - first + 1 for first, last in self.spans.get(kind, ()))

    def bands(self) -> Iterator[tuple[str, int, int]]:
        """Yield (name of the state, first, last) for each range of entries, ascending."""
        yield from sorted(
            ((kind, first, last) for kind, spans in self.spans.items() for first, last in spans),
            key=lambda band: band[1],
        )


@dataclass(frozen=True)
class Picture:
    """The strips of all replicas of one group over a common axis, from index `first` to index `last`."""

    group: str
    first: int
    last: int
    strips: list[Strip]

    @property
    def width(self) -> int:
        """Number of entries on the axis; 0 if nothing is known."""
        return max(0, self.last - self.first + 1)


def pictures(report: Report) -> list[Picture]:
    """Return one picture for each group in a report, because each group has its own log."""
    by_group: dict[str, list[_Replica]] = {}
    for item in report.replicas:
        by_group.setdefault(str(item["group"]), []).append(_Replica.of(item))
    damage = _damage(report.findings)
    return [_picture(group, by_group[group], damage) for group in sorted(by_group)]


def _picture(group: str, replicas: list[_Replica], damage: dict[str, dict[str, list[Span]]]) -> Picture:
    commit = max(replica.committed for replica in replicas)
    edges = [replica.held[0][0] for replica in replicas if replica.held]
    edges += [
        span[0] for replica in replicas for spans in damage.get(replica.name, {}).values() for span in spans
    ]
    first = min(edges, default=0)
    last = max([commit, *(replica.end for replica in replicas)])
    strips = [
        Strip(replica.name, replica.committed, _spans(replica, damage.get(replica.name, {}), first, commit))
        for replica in replicas
    ]
    return Picture(group, first, last, strips)


@dataclass(frozen=True)
class _Replica:
    name: str
    committed: int
    held: list[Span]

    @property
    def end(self) -> int:
        return self.held[-1][1] if self.held else -1

    @staticmethod
    def of(item: dict[str, object]) -> _Replica:
        held = item["held"]
        assert isinstance(held, list)
        spans = [(int(first), int(last)) for first, last in held]
        return _Replica(str(item["replica"]), int(str(item["committed_index"])), spans)


def _damage(findings: Iterable[Finding]) -> dict[str, dict[str, list[Span]]]:
    """Map each replica to its damaged ranges, by name of the state. The ranges are those of the findings that
    have indexes."""
    result: dict[str, dict[str, list[Span]]] = {}
    for found in findings:
        kind = _CODES.get(found.code)
        if kind is not None and found.first_index >= 0:
            for replica in found.replica.split(","):
                spans = result.setdefault(replica, {}).setdefault(kind, [])
                spans.append((found.first_index, found.last_index))
    return result


def _spans(
    replica: _Replica, damage: dict[str, list[Span]], first: int, commit: int
) -> dict[str, list[Span]]:
    begin = replica.held[0][0] if replica.held else max(first, replica.end + 1)
    candidates = {
        **damage,
        "uncommitted": [*damage.get("uncommitted", ()), *_above(replica.held, commit)],
        "read": replica.held,
        "lagging": [(replica.end + 1, commit)],
        "retired": [(first, begin - 1)],
        "unread": [],
    }
    known = [span for spans in candidates.values() for span in spans]
    candidates["unread"] = subtract([(first, max(commit, replica.end))], merge(known))
    result: dict[str, list[Span]] = {}
    taken: list[Span] = []
    for kind in KINDS:
        spans = subtract(merge(candidates.get(kind.name, [])), taken)
        if spans:
            result[kind.name] = spans
            taken = merge([*taken, *spans])
    return result


def _above(spans: Iterable[Span], index: int) -> Iterator[Span]:
    for first, last in spans:
        if last > index:
            yield max(first, index + 1), last


def merge(spans: Iterable[Span]) -> list[Span]:
    """Return the spans in ascending order, without overlaps. Adjacent spans are joined, and empty spans are
    dropped."""
    merged: list[Span] = []
    for first, last in sorted(span for span in spans if span[0] <= span[1]):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(merged[-1][1], last))
        else:
            merged.append((first, last))
    return merged


def subtract(spans: Sequence[Span], others: Sequence[Span]) -> list[Span]:
    """Return the parts of `spans` that no span of `others` covers. Both must be ascending and without
    overlaps."""
    rest: list[Span] = []
    at = 0
    for first, last in spans:
        while at < len(others) and others[at][0] <= last:
            low, high = others[at]
            if first < low:
                rest.append((first, low - 1))
            first = max(first, high + 1)
            if high > last:
                break  # it may reach into the next one
            at += 1
        if first <= last:
            rest.append((first, last))
    return rest


def terminal_lines(drawn: Picture, columns: int = 64) -> Iterator[str]:
    """Draw the strips with letters, one line for each replica, and a legend. Each letter shows the worst
    state of the entries in its column."""
    if not drawn.width:
        return
    label = max(len(strip.replica) for strip in drawn.strips)
    columns = min(columns, drawn.width)
    for strip in drawn.strips:
        cells = [" "] * columns
        for kind in reversed(KINDS):
            for first, last in strip.spans.get(kind.name, ()):
                low = (first - drawn.first) * columns // drawn.width
                high = (last - drawn.first) * columns // drawn.width
                cells[low : high + 1] = kind.letter * (high + 1 - low)
        yield f"{strip.replica.ljust(label)}  [{''.join(cells)}]"
    used = [kind for kind in KINDS if any(kind.name in strip.spans for strip in drawn.strips)]
    legend = ", ".join(f"{kind.letter} {kind.name}" for kind in used)
    yield f"{' ' * label}   {drawn.first}..{drawn.last}: {legend}"
