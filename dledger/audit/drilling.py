"""Reads entries for a comparison of rows that were shipped without entries. They are read from other sources
of the same replicas."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

from dledger.audit.digests import BLOCK_ENTRIES
from dledger.audit.findings import Finding, Severity, finding
from dledger.audit.replicas import Look, ReplicaSource, ReplicaView, drill, entry_of, look_at
from dledger.audit.report import Report
from dledger.audit.scan import EntryRow
from dledger.audit.store_directory import StoreError

Ranges = list[tuple[int, int]]


class Drilling:
    """Reads entries again (`audit.compare.Drill`) from other sources than those that were scanned.

    The sources are opened when the first entry is needed, so replicas with equal digests need not be
    reachable. `read` says how an engine reads entries of these replicas; the default reads in this process.
    """

    def __init__(
        self,
        sources: Sequence[ReplicaSource],
        read: Callable[[Sequence[ReplicaView], Ranges], Iterable[EntryRow]] = drill,
    ) -> None:
        self._sources = sources
        self._read = read
        self._look: Look | None = None
        self._problem = ""
        self._asked: Ranges = []

    def __call__(self, ranges: Ranges) -> Iterable[EntryRow]:
        self._asked += ranges
        if self._look is None:
            try:
                self._look = look_at(self._sources, first_of_name=True)
                self._problem = "; ".join(found.detail for found in self._look.findings)
            except StoreError as error:
                self._look, self._problem = Look(()), str(error)
        if not self._look.replicas:
            return ()
        return self._read(self._look.replicas, ranges)

    def entry(self, replica: str, index: int) -> bytes | None:
        """Read one entry (`audit.whole_copies.ReadEntry`), if the sources were opened to read entries."""
        return entry_of(self._look.replicas, replica, index) if self._look else None

    def completed(self, report: Report) -> Report:
        """Return the report with findings for entries that could not be read.

        If a replica holds only a part of a block, at the end of a growing log or at its head, digests differ
        without a fault. Then the finding is only information, unless there is damage in the block.
        """
        names = {str(replica["replica"]) for replica in report.replicas}
        lacking = sorted(names - {replica.name for replica in self._look.replicas} if self._look else [])
        if not lacking:
            return report
        text = f"the entries of {', '.join(lacking)} cannot be read here: {self._problem or 'not given'}"
        damage = [found for found in report.findings if found.code in ("BIT_ROT", "CHAIN_BREAK")]
        said = []
        for first, last in self._asked:
            for part, severity in _parts(report, damage, first, last):
                said.append(finding("NOT_DRILLED", "", text, first=part[0], last=part[1], severity=severity))
        return replace(report, findings=[*report.findings, *said])


def _parts(
    report: Report, damage: Sequence[Finding], first: int, last: int
) -> Iterator[tuple[tuple[int, int], Severity]]:
    """Split a range into blocks, and join adjacent blocks of the same severity."""
    run: tuple[tuple[int, int], Severity] | None = None
    for start in range(first, last + 1, BLOCK_ENTRIES):
        end = start + BLOCK_ENTRIES - 1
        whole = all(_holds_all_or_nothing(replica, start, end) for replica in report.replicas)
        damaged = any(found.first_index <= end and found.last_index >= start for found in damage)
        severity = Severity.UNKNOWN if whole or damaged else Severity.INFO
        if run is not None and run[1] is severity:
            run = ((run[0][0], end), severity)
            continue
        if run is not None:
            yield run
        run = ((start, end), severity)
    if run is not None:
        yield run


def _holds_all_or_nothing(replica: dict[str, object], first: int, last: int) -> bool:
    held = replica["held"]
    spans = [span for span in held if span[0] <= last and span[1] >= first] if isinstance(held, list) else []
    return not spans or (spans[0][0] <= first and spans[0][1] >= last)
