"""The result of an audit: one JSON object for programs, a table for people, and a last line for both.

It can also be written to a file as a page (`audit_page`) or as rows for Parquet (`report_files`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from dledger.audit.advice import caution
from dledger.audit.audit_page import audit_page
from dledger.audit.coverage_picture import pictures, terminal_lines
from dledger.audit.findings import (
    CODES,
    EXIT_CODES,
    VERDICTS,
    Finding,
    KeptRow,
    Row,
    Severity,
    finding,
    worst,
)
from dledger.audit.report_files import Records
from dledger.audit.text_table import text_table

MAX_TEXT_FINDINGS = 100
"""Largest number of findings that are printed one by one. The output of `--json` has all."""
COLUMNS = (
    ("kind", "string"),
    ("severity", "string"),
    ("code", "string"),
    ("replica", "string"),
    ("group", "string"),
    ("first_index", "bigint"),
    ("last_index", "bigint"),
    ("segment", "bigint"),
    ("entries", "bigint"),
    ("bytes", "bigint"),
    ("detail", "string"),
)
"""Columns of a report as Parquet. `kind` is the first: `run` (its `severity` is the verdict), `replica`, or
`finding`."""


class Kept(NamedTuple):
    """What an audit with `--keep` read. `problems` are the different reasons why rows were not kept."""

    scanned: int
    reused: int
    problems: tuple[str, ...]

    @classmethod
    def of(cls, rows: Iterable[Row]) -> Kept | None:
        """Make the counts from the rows of an audit; None if `--keep` was not given."""
        kept = [row for row in rows if isinstance(row, KeptRow)]
        segments = [row for row in kept if row.segment >= 0]
        reused = sum(row.reused for row in segments)
        problems = tuple(sorted({row.problem for row in kept} - {""}))
        return cls(len(segments) - reused, reused, problems) if kept else None

    def text(self) -> str:
        """The counts as readable text."""
        return f"{self.scanned} segments scanned, {self.reused} as scanned before"


@dataclass(frozen=True)
class Report:
    """Result of an audit. `replicas` has `Holding.as_json` of each replica; `compared_up_to` is the lowest
    committed index of the replicas."""

    replicas: list[dict[str, object]]
    compared_up_to: int
    findings: list[Finding]
    seconds: float = 0.0
    kept: Kept | None = None
    members: int = 0
    """Number of voters of the group; 0 if no replica knows it."""

    @property
    def not_audited(self) -> list[str]:
        """Members of the group that were not examined because their stores were not given."""
        names = (found.replica for found in self.findings if found.code == "NOT_AUDITED")
        return [name for each in names for name in each.split(",")]

    @property
    def scope(self) -> str:
        """How many members were examined, as readable text. Empty if it is all of them, or the number of
        members is not known."""
        seen = min(len(self.replicas), self.members - len(self.not_audited))  # others may be unreachable
        return f"{seen} of {self.members} members" if self.not_audited else ""

    @property
    def severity(self) -> Severity:
        """Severity of the worst finding. UNKNOWN if nothing was audited."""
        return worst(self.findings) if self.replicas or self.findings else Severity.UNKNOWN

    @property
    def exit_code(self) -> int:
        """Exit code of the process: 0 clean, 1 warnings, 2 errors, 3 critical, 4 something could not be
        examined."""
        return EXIT_CODES[self.severity]

    @property
    def entries(self) -> int:
        """Number of entries read, over all replicas."""
        return sum(int(str(replica["entries"])) for replica in self.replicas)

    def timed(self, seconds: float) -> Report:
        """Return the report with the time, in seconds, that the audit took."""
        return replace(self, seconds=round(seconds, 3))

    def ordered(self) -> list[Finding]:
        """Return the findings, the worst first, then by place."""
        return sorted(
            self.findings,
            key=lambda f: (-f.severity, f.replica, f.first_index, f.segment, f.code, f.detail),
        )

    def as_json(self) -> dict[str, object]:
        """Return the report as one object. Its keys are stable; new ones may be added."""
        kept = {} if self.kept is None else {"kept": self.kept._asdict()}
        return {
            "verdict": VERDICTS[self.severity],
            "exit_code": self.exit_code,
            "replicas": self.replicas,
            "members": self.members,
            "compared_up_to": self.compared_up_to,
            "entries": self.entries,
            "findings": [found.as_json() for found in self.ordered()],
            "seconds": self.seconds,
            **kept,
        }

    def page(self, when: str) -> str:
        """Return the report as one self-contained HTML page."""
        return audit_page(self, when)

    def records(self) -> Records:
        """Return one row for the run, and one for each replica and each finding, because a history over many
        runs needs all three."""
        groups = {str(replica["replica"]): str(replica["group"]) for replica in self.replicas}
        verdict, log_bytes = VERDICTS[self.severity], sum(int(str(r["bytes"])) for r in self.replicas)
        read = "" if self.kept is None else self.kept.text()
        rows: list[tuple[object, ...]] = [
            ("run", verdict, "", "", "", -1, self.compared_up_to, -1, self.entries, log_bytes, read)
        ]
        for replica in self.replicas:
            name, first, end = replica["replica"], replica["first_index"], replica["end_index"]
            counts = (replica["entries"], replica["bytes"])
            rows.append(
                ("replica", "", "", name, replica["group"], first, end, -1, *counts, replica["store"])
            )
        for found in self.ordered():
            severity = Severity(found.severity).name.lower()
            where = (found.replica, groups.get(found.replica, ""), found.first_index, found.last_index)
            rows.append(("finding", severity, found.code, *where, found.segment, 0, 0, found.detail))
        return Records(COLUMNS, rows)

    def last_line(self) -> str:
        """Return the summary as a machine-readable line."""
        kept = "" if self.kept is None else f" scanned={self.kept.scanned} reused={self.kept.reused}"
        return (
            f"audit: {VERDICTS[self.severity]} replicas={len(self.replicas)} entries={self.entries} "
            f"compared_up_to={self.compared_up_to} findings={len(self.findings)} seconds={self.seconds}{kept}"
        )

    def lines(self) -> Iterator[str]:
        """Return the report as readable text: replicas, findings, advice once for each code, the last
        line."""
        columns = ("replica", "first", "end", "committed", "term", "segments", "entries", "bytes")
        keys = ("replica", "first_index", "end_index", "committed_index", "last_term", *columns[5:])
        if self.replicas:
            yield from text_table(
                [columns, *([str(replica[key]) for key in keys] for replica in self.replicas)]
            )
            yield ""
            for drawn in pictures(self):
                yield from terminal_lines(drawn)
                yield ""
        yield from finding_lines(self.ordered())
        if self.kept is not None:
            yield self.kept.text()
            yield from (f"not kept: {problem}" for problem in self.kept.problems)
            yield ""
        if self.scope:
            yield f"checked {self.scope}, without {', '.join(self.not_audited)}"
        yield self.last_line()


def finding_lines(ordered: Sequence[Finding]) -> Iterator[str]:
    """Return findings as readable text, each code with its advice. No line if there are no findings."""
    if not ordered:
        return
    rows = [("severity", "code", "replica", "index", "detail")]
    for found in ordered[:MAX_TEXT_FINDINGS]:
        severity = Severity(found.severity).name.lower()
        rows.append((severity, found.code, found.replica or "-", _span(found), _where(found)))
    yield from text_table(rows)
    if len(ordered) > MAX_TEXT_FINDINGS:
        yield f"... and {len(ordered) - MAX_TEXT_FINDINGS} more (--json has all)"
    yield ""
    for code in dict.fromkeys(found.code for found in ordered):
        yield f"{code}: {CODES[code].advice}"
    if first := caution(ordered):
        yield first
    yield ""


def failed(detail: str, code: str = "UNREADABLE") -> Report:
    """Make the report of an audit that could not run."""
    return Report([], -1, [finding(code, "", detail)])


def _span(found: Finding) -> str:
    if found.first_index < 0:
        return "-"
    if found.last_index <= found.first_index:
        return str(found.first_index)
    return f"{found.first_index}..{found.last_index}"


def _where(found: Finding) -> str:
    return f"{found.detail} [segment {found.segment:020d}]" if found.segment >= 0 else found.detail
