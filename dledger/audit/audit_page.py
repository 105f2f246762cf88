"""The page of an audit. It is for an operator at 3 a.m., so the faults and the advice come first.

Then follow the places of the faults (a strip for each replica), then all details. Pure: made from the report
alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import TYPE_CHECKING

from dledger.audit import html
from dledger.audit.advice import caution
from dledger.audit.coverage_picture import KINDS, Picture, Strip, merge, pictures
from dledger.audit.findings import CODES, Finding, Severity
from dledger.audit.html import Markup

if TYPE_CHECKING:
    from dledger.audit.report import Report

MAX_FINDINGS_OF_A_CODE = 200
"""Largest number of findings of one code on the page. The reports in JSON and Parquet have all."""
RESOLUTION = 2000
"""Two ranges of one kind are drawn as one if the gap between them is smaller than the axis divided by this
number."""
MAX_PLACES = 12
"""Largest number of damaged ranges that are listed under a strip."""

STYLE = """
.strips { display: grid; grid-template-columns: max-content 1fr; gap: .15rem 1rem; align-items: center; }
.strips .name { font-weight: 600; }
.strips .under { grid-column: 2; font-size: .88rem; color: var(--soft); margin-bottom: .7rem; }
.strip { position: relative; height: 2rem; border: 1px solid var(--line); border-radius: .2rem;
  background: var(--gap); overflow: hidden; }
.strip i, .key i { position: absolute; top: 0; bottom: 0; }
.key { display: inline-flex; align-items: center; gap: .45rem; margin-right: 1.3rem; }
.key b { position: relative; width: 1.6rem; height: 1rem; border: 1px solid var(--line); overflow: hidden;
  background: var(--gap); }
.key i { left: 0; right: 0; }
.commit { border-left: 2px dashed var(--ink); width: 0; z-index: 9; }
.axis { grid-column: 2; display: flex; justify-content: space-between; font-size: .82rem;
  color: var(--soft); font-variant-numeric: tabular-nums; }
.read { background: var(--read); }
.retired { background: var(--retired); }
.lagging { background: repeating-linear-gradient(90deg, var(--lagging) 0 3px, transparent 3px 8px); }
.uncommitted { background: repeating-linear-gradient(90deg, var(--uncommitted) 0 6px, var(--gap) 6px 8px); }
.unread { background: repeating-linear-gradient(45deg, var(--unread) 0 5px, var(--gap) 5px 9px);
  z-index: 4; }
.missing { background: repeating-linear-gradient(-45deg, var(--missing) 0 2px, var(--gap) 2px 8px);
  outline: 1px solid var(--missing); outline-offset: -1px; z-index: 5; }
.divergent { background: repeating-linear-gradient(0deg, var(--divergent) 0 5px, var(--gap) 5px 7px);
  z-index: 7; }
.corrupt { background: var(--corrupt); z-index: 6; }
.caution { font-weight: 600; border-left: .3rem solid var(--critical); padding-left: .7rem; }
details { margin: .2rem 0 .6rem; } summary { cursor: pointer; color: var(--soft); }
"""


_COVERAGE = (
    "Each bar is the log of one replica, from the first index on the left to the last on the right. Where "
    "one point of a bar stands for several entries, it shows the worst of them."
)


def audit_page(report: Report, when: str) -> str:
    """Make the whole page. `when` is a readable time of the audit."""
    groups = sorted({str(replica["group"]) for replica in report.replicas} - {""})
    title = f"Audit of {', '.join(groups) or 'a log'}"
    drawn = [each for each in pictures(report) if each.width]
    facts = [
        report.scope or f"{len(report.replicas)} replica{'s' if len(report.replicas) != 1 else ''}",
        f"{html.number(report.entries)} entries read",
        *([report.kept.text(), *(f"not kept: {why}" for why in report.kept.problems)] if report.kept else []),
        f"compared up to index {html.number(report.compared_up_to)}",
        f"{report.seconds:.1f} s",
        when,
    ]
    parts = [html.banner(report.severity, _sentence(report), facts)]
    if report.findings:
        parts.append(html.section("What to do", _advice(report)))
    for each in drawn:
        heading = "Coverage" if len(drawn) == 1 else f"Coverage of {each.group or 'a log'}"
        parts.append(html.section(heading, _strips(each), _COVERAGE))
    if report.findings:
        parts.append(html.section("Findings", html.join(_findings(report))))
    if report.replicas:
        parts.append(html.section("Replicas", _replicas(report)))
    footer = (
        "Severities and exit codes: information 0, warning 1, error 2, critical 3, could not look 4. "
        "Indexes and segments are those of the log files; a segment is named by the offset of its "
        "first byte."
    )
    return html.page(title, parts, style=STYLE, footer=footer)


def _sentence(report: Report) -> str:
    """Return one sentence with the most important result of the report."""
    if not report.findings:
        return (
            "Every committed entry was read on every replica, and the replicas agree."
            if len(report.replicas) > 1
            else "Every committed entry was read, and all checks passed."
        )
    if all(found.code == "NOT_AUDITED" for found in report.findings):
        absent = ", ".join(report.not_audited)
        return f"Every committed entry was read on {report.scope}, and these agree; {absent} was not checked."
    severity = report.severity
    only = f" (of {report.scope})" if report.scope else ""
    worst = [found for found in report.ordered() if found.severity == severity]
    codes = [f"{len(list(same))} × {code}" for code, same in groupby(sorted(f.code for f in worst))]
    if severity is Severity.INFO:
        return f"Nothing to do{only}. Noted: {', '.join(codes)}."
    return f"{', '.join(codes)}: {worst[0].detail}{only}"


def _advice(report: Report) -> Markup:
    """Return one line for each advice, the most urgent first, with the replicas that need it."""
    by_advice: dict[str, list[Finding]] = {}
    for found in report.ordered():
        by_advice.setdefault(CODES[found.code].advice, []).append(found)
    items = []
    for advice, findings in by_advice.items():
        names = sorted({name for found in findings for name in found.replica.split(",") if name})
        codes = ", ".join(dict.fromkeys(found.code for found in findings))
        where = f" on {', '.join(names)}" if names else ""
        label = html.pill(Severity(findings[0].severity))
        items.append(Markup(f"<li>{label} <b>{html.text(codes + where)}</b>: {html.text(advice)}</li>"))
    first = caution(report.findings)
    warned = f'<p class="caution">{html.text(first)}</p>' if first else ""
    return Markup(f"{warned}<ol>{html.join(items)}</ol>")


def _strips(drawn: Picture) -> Markup:
    rows = []
    for strip in drawn.strips:
        bands = [_band(drawn, *band) for band in _visible(drawn, strip)]
        if drawn.first <= strip.committed <= drawn.last:
            bands.append(
                Markup(
                    f'<i class="commit" style="left:{_percent(drawn, strip.committed + 1)}" '
                    f'title="committed up to index {strip.committed}"></i>'
                )
            )
        told = html.text(_told(strip))
        rows.append(
            Markup(
                f'<div class="name">{html.text(strip.replica)}</div>'
                f'<div class="strip" role="img" aria-label="{told}">{html.join(bands)}</div>'
                f'<div class="under">{told}</div>'
            )
        )
    ticks = [drawn.first + (drawn.width - 1) * part // 4 for part in range(5)]
    axis = html.join(Markup(f"<span>{html.number(tick)}</span>") for tick in dict.fromkeys(ticks))
    used = [kind for kind in KINDS if any(kind.name in strip.spans for strip in drawn.strips)]
    keys = [
        Markup(f'<span class="key"><b><i class="{kind.name}"></i></b>{kind.name}: {kind.meaning}</span>')
        for kind in used
    ]
    keys.append(Markup('<span class="key">┆ the replica knows entries up to here to be committed</span>'))
    return Markup(
        f'<div class="strips">{html.join(rows)}<div class="axis">{axis}</div></div><p>{html.join(keys)}</p>'
    )


def _visible(drawn: Picture, strip: Strip) -> Iterator[tuple[str, int, int]]:
    """Return the bands to draw. A band is a range of entries in one state. Bands of one state are joined if
    the gap between them is too small to be seen."""
    gap = drawn.width // RESOLUTION
    for kind in reversed(KINDS):
        spans = [(first, last + gap) for first, last in strip.spans.get(kind.name, ())]
        yield from ((kind.name, first, last - gap) for first, last in merge(spans))


def _band(drawn: Picture, kind: str, first: int, last: int) -> Markup:
    place = f"{first:,d}" if first == last else f"{first:,d} to {last:,d}"
    return Markup(
        f'<i class="{kind}" title="{kind}: {place}" style="'
        f"left:min({_percent(drawn, first)},calc(100% - 3px));"
        f'width:max(3px,{100 * (last - first + 1) / drawn.width:.4f}%)"></i>'
    )


def _percent(drawn: Picture, index: int) -> str:
    return f"{100 * (index - drawn.first) / drawn.width:.4f}%"


def _told(strip: Strip) -> str:
    """Describe the strip in words: how many entries of each kind, and the places of the damage."""
    words = [
        f"{html.number(strip.entries(kind.name))} {kind.name}" for kind in KINDS if kind.name in strip.spans
    ]
    damaged = [band for band in strip.bands() if band[0] in ("corrupt", "divergent", "missing", "unread")]
    places = [
        f"{kind} {first:,d}" + (f"–{last:,d}" if last > first else "")
        for kind, first, last in damaged[:MAX_PLACES]
    ]
    if len(damaged) > MAX_PLACES:
        places.append(f"and {len(damaged) - MAX_PLACES} more")
    return ", ".join(words) + (f" ({'; '.join(places)})" if places else "") if words else "nothing known"


def _findings(report: Report) -> Iterator[Markup]:
    by_code: dict[str, list[Finding]] = {}
    for found in report.ordered():
        by_code.setdefault(found.code, []).append(found)
    for code, findings in by_code.items():
        severity = Severity(max(found.severity for found in findings))
        heading = Markup(f"<h3>{html.pill(severity)} {html.text(code)} × {html.number(len(findings))}</h3>")
        shown = findings[:MAX_FINDINGS_OF_A_CODE]
        rows = [
            (found.replica or "several", _indexes(found), _segment(found), found.detail) for found in shown
        ]
        content = html.table(("replica", "index", "segment", "what was seen"), rows)
        if len(findings) > len(shown):
            more = f"and {html.number(len(findings) - len(shown))} more: see the report as JSON or Parquet"
            content = html.join([content, Markup(f'<p class="note">{more}</p>')])
        if severity is Severity.INFO:
            content = Markup(f"<details><summary>show</summary>{content}</details>")
        yield html.join([heading, Markup(f"<p>{html.text(CODES[code].advice)}</p>"), content])


def _indexes(found: Finding) -> str:
    if found.first_index < 0:
        return "–"
    if found.last_index <= found.first_index:
        return f"{found.first_index:,d}"
    return f"{found.first_index:,d} – {found.last_index:,d}"


def _segment(found: Finding) -> Markup:
    return Markup(f"<code>{found.segment:020d}</code>") if found.segment >= 0 else Markup("–")


def _replicas(report: Report) -> Markup:
    headings = ("replica", "first", "end", "committed", "term", "segments", "entries", "bytes", "store")
    keys = ("replica", "first_index", "end_index", "committed_index", "last_term", "segments", "entries")
    rows = [
        [
            *(_cell(replica[key]) for key in keys),
            html.size_text(int(str(replica["bytes"]))),
            Markup(f"<code>{html.text(replica['store'])}</code>"),
        ]
        for replica in report.replicas
    ]
    return html.table(headings, rows)


def _cell(value: object) -> html.Cell:
    return value if isinstance(value, int) else str(value)
