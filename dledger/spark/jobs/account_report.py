"""The result of the accounting: sums, what does not add up, and what to do about it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import NamedTuple

from dledger.audit import html
from dledger.audit.findings import EXIT_CODES, VERDICTS, Code, Severity
from dledger.audit.html import Markup
from dledger.audit.report_files import Records
from dledger.audit.text_table import text_table

MAX_TEXT_FINDINGS = 50
"""Largest number of findings in the printed table; `--json` has more."""

CODES = {
    "LOST": Code(
        Severity.CRITICAL,
        "acknowledged but missing: stop writing, keep all stores, and search each of them (spark read)",
    ),
    "SKIPPED": Code(
        Severity.CRITICAL,
        "a consumer group committed offsets beyond messages that it never processed: reset it to an "
        "offset before them",
    ),
    "NOT_YET_KNOWN": Code(
        Severity.UNKNOWN,
        "beyond the part of these stores that is known to be committed, or from a broker group "
        "without a given store: give all replicas, or ask the brokers (--namesrv)",
    ),
    "MAYBE_RETIRED": Code(
        Severity.UNKNOWN,
        "missing, and it cannot be decided whether retention or the deletion of its topic removed it, "
        "or it was lost: use acknowledgements with queue and offset, or run the job before that",
    ),
    "MISPLACED": Code(
        Severity.ERROR, "stored, but not where the acknowledgement says: compare the replicas (spark audit)"
    ),
    "UNKNOWN_CONSUMED": Code(
        Severity.ERROR,
        "a consumer processed a message that was never stored: check that the file "
        "belongs to this cluster and time",
    ),
    "DUPLICATE": Code(
        Severity.WARNING, "sent again after an unknown outcome: consumers must tolerate duplicates"
    ),
    "UNEXPECTED": Code(
        Severity.WARNING,
        "its acknowledgement was lost, or another producer wrote it: compare with the log of that producer",
    ),
    "UNCONSUMED": Code(
        Severity.WARNING, "the consumer group has not reached it yet: wait, or check the group"
    ),
    "RETIRED": Code(Severity.INFO, "nothing to do: retention has deleted it"),
}
"""Maps the codes of findings to their meaning, the worst first."""

COLUMNS = (
    ("kind", "string"),
    ("severity", "string"),
    ("code", "string"),
    ("consumer", "string"),
    ("broker", "string"),
    ("topic", "string"),
    ("queue", "bigint"),
    ("offset", "bigint"),
    ("id", "string"),
    ("count", "bigint"),
    ("detail", "string"),
)
"""Columns of the report as Parquet. A row's `kind` is `sum` (a total, named by `code`), `count` (the
number of findings with this code) or `finding` (an example)."""


class AccountFinding(NamedTuple):
    """One message (for code UNCONSUMED: one queue) that does not add up. A field that does not apply is
    None or empty."""

    code: str
    topic: str
    broker: str
    queue: int | None
    offset: int | None
    id: str
    detail: str
    consumer: str = ""

    @property
    def severity(self) -> Severity:
        """Severity of the finding's code."""
        return CODES[self.code].severity


@dataclass(frozen=True)
class ConsumerAccount:
    """Acknowledged and stored messages, as one consumer group has seen them. `passed`: messages below its
    committed offsets; `waiting`: messages from there on.

    With a file of consumed messages, also: `worked`, how many messages the group processed; `again`, how
    often it processed a message once more; `skipped`, how many it passed without processing them;
    `unknown`, how many messages of the file are neither acknowledged nor stored.
    """

    consumer: str
    passed: int
    waiting: int
    worked: int | None = None
    again: int = 0
    skipped: int = 0
    unknown: int = 0


@dataclass(frozen=True)
class Account:
    """The result of the accounting. `produced`: number of acknowledged messages; `stored`: how many of
    these are in the log; `copies`: how many copies are stored beyond the first; `told`: number of lines in
    the file of acknowledgements; `without_id`: number of unexpectedly stored messages without a unique id.
    `findings` are examples; `counts` has the number of messages for each code."""

    produced: int
    stored: int
    copies: int
    told: int
    without_id: int
    counts: Mapping[str, int]
    findings: list[AccountFinding] = field(repr=False)
    consumers: tuple[ConsumerAccount, ...] = ()

    def with_consumer(
        self, one: ConsumerAccount, counts: Mapping[str, int], findings: list[AccountFinding]
    ) -> Account:
        """Return this account with one more consumer group."""
        return replace(self, consumers=(*self.consumers, one), counts=counts, findings=findings)

    @property
    def severity(self) -> Severity:
        """The worst severity of all findings."""
        return max((CODES[code].severity for code in self.counts), default=Severity.INFO)

    @property
    def exit_code(self) -> int:
        """Exit code: 0 all adds up, 1 warnings, 2 errors, 3 critical, 4 something could not be determined."""
        return EXIT_CODES[self.severity]

    def as_json(self) -> dict[str, object]:
        """Return one JSON object."""
        return {
            "verdict": VERDICTS[self.severity],
            "exit_code": self.exit_code,
            "produced": self.produced,
            "stored": self.stored,
            "copies": self.copies,
            "acknowledgements": self.told,
            "without_id": self.without_id,
            "counts": {code: self.counts[code] for code in CODES if code in self.counts},
            "consumers": [asdict(consumer) for consumer in self.consumers],
            "findings": [
                {"severity": found.severity.name.lower(), **found._asdict()} for found in self._ordered()
            ],
        }

    def lines(self) -> Iterator[str]:
        """Yield the lines of the table for people."""
        yield from text_table([(name, html.number(count)) for name, count in self._sums()], right=(1,))
        yield ""
        ordered = self._ordered()
        if ordered:
            rows = [("severity", "code", "topic", "queue", "offset", "id", "detail")]
            for found in ordered[:MAX_TEXT_FINDINGS]:
                queue = "-" if found.queue is None else f"{found.broker} {found.queue}".strip()
                offset = "-" if found.offset is None else str(found.offset)
                severity = found.severity.name.lower()
                rows.append(
                    (severity, found.code, found.topic or "-", queue, offset, found.id or "-", found.detail)
                )
            yield from text_table(rows)
            if len(ordered) > MAX_TEXT_FINDINGS:
                yield f"... and {len(ordered) - MAX_TEXT_FINDINGS} more examples (--json has all)"
            yield ""
            for code in self._codes():
                yield f"{code}: {CODES[code].advice}"
            yield ""
        counted = " ".join(f"{code.lower()}={self.counts[code]}" for code in self._codes())
        sums = f"produced={self.produced} stored={self.stored}"
        yield f"account: {VERDICTS[self.severity]} {sums} {counted}".rstrip()

    def page(self, when: str) -> str:
        """Return the report as one self-contained HTML page."""
        codes = ", ".join(f"{html.number(self.counts[code])} {code}" for code in self._codes())
        facts = [
            f"{html.number(self.produced)} acknowledged",
            f"{html.number(self.stored)} of them stored",
            when,
        ]
        sentence = codes or "Every acknowledged message is stored once, and there are no other messages."
        parts = [html.banner(self.severity, sentence, facts)]
        if self.counts:
            items = [
                Markup(
                    f"<li>{html.pill(severity)} <b>{code} × {html.number(self.counts[code])}</b>: "
                    f"{html.text(advice)}</li>"
                )
                for code, (severity, advice) in CODES.items()
                if self.counts.get(code)
            ]
            parts.append(html.section("What to do", Markup(f"<ol>{html.join(items)}</ol>")))
        parts.append(html.section("Sums", html.table(("", "messages"), self._sums())))
        parts += [self._examples(code) for code in self._codes()]
        footer = (
            "A message is identified by its unique id (UNIQ_KEY). Exit codes: 0 everything adds up, "
            "1 to 3 the severity, 4 not known."
        )
        return html.page("Produced = stored = consumed", parts, footer=footer)

    def records(self) -> Records:
        """Return the sums, the counts and the examples as rows of a table."""
        blank = (None, None, "")
        rows: list[tuple[object, ...]] = [
            ("sum", "", name, "", "", "", *blank, count, "") for name, count in self._sums()
        ]
        for code in self._codes():
            severity = CODES[code].severity.name.lower()
            rows.append(("count", severity, code, "", "", "", *blank, self.counts[code], ""))
        for found in self._ordered():
            place = (found.broker, found.topic, found.queue, found.offset)
            severity = found.severity.name.lower()
            rows.append(("finding", severity, found.code, found.consumer, *place, found.id, 1, found.detail))
        return Records(COLUMNS, rows)

    def _codes(self) -> list[str]:
        return [code for code in CODES if self.counts.get(code)]

    def _ordered(self) -> list[AccountFinding]:
        order = list(CODES)
        return sorted(
            self.findings,
            key=lambda f: (
                order.index(f.code),
                f.consumer,
                f.topic,
                f.broker,
                f.queue or 0,
                f.offset or 0,
                f.id,
            ),
        )

    def _sums(self) -> list[tuple[str, int]]:
        sums = [
            ("acknowledged", self.produced),
            ("of these stored", self.stored),
            ("stored again", self.copies),
            ("stored without acknowledgement", self.counts.get("UNEXPECTED", 0)),
        ]
        for one in self.consumers:
            sums += [(f"{one.consumer}: passed", one.passed), (f"{one.consumer}: waiting", one.waiting)]
            if one.worked is not None:
                sums += [(f"{one.consumer}: worked on", one.worked), (f"{one.consumer}: again", one.again)]
        return sums

    def _examples(self, code: str) -> Markup:
        found = [one for one in self._ordered() if one.code == code]
        rows: list[list[html.Cell]] = [
            [one.consumer or None, one.topic or None, one.broker or None,
             None if one.queue is None else str(one.queue), None if one.offset is None else one.offset,
             Markup(f"<code>{html.text(one.id)}</code>") if one.id else None, one.detail]
            for one in found
        ]  # fmt: skip
        headings = ("consumer", "topic", "broker", "queue", "offset", "id", "what was seen")
        heading = f"{code} × {html.number(self.counts[code])}"
        note = "" if len(found) >= self.counts[code] or code == "UNCONSUMED" else f"The first {len(found)}."
        return html.section(heading, html.table(headings, rows), note)
