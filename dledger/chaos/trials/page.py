"""The report of a trial: one self-contained HTML page, made from the result alone. Pure.

It is for a reader who was not there and does not know this project: what was done, what happened, and what
was shown.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import inf

from dledger.audit.findings import Severity
from dledger.audit.html import Markup, banner, join, page, section, table, text
from dledger.chaos.trials import charts
from dledger.chaos.trials.charts import Mark, Scale, Span
from dledger.chaos.trials.nemeses import NEMESES
from dledger.chaos.trials.result import BIN_S, Result, percentile, times_of
from dledger.chaos.trials.system import Seen

DOCUMENTATION = "docs/howto/chaos.md"


def report(result: Result) -> str:
    """The whole page."""
    scale = Scale(max([result.seconds, result.ended_s, *(one.at_s for one in result.roles)]))
    title = f"Trial {result.scenario}: a group of {result.size or len(result.nodes)} brokers under faults"
    parts = [
        _verdict(result),
        _what_was_done(result),
        _timeline(result, scale),
        _clients(result, scale),
        _failovers(result, scale),
        _rules(result),
        _flights(result),
        _again(result),
    ]
    footer = f"Format {result.version}. {DOCUMENTATION} explains each part."
    return page(title, [part for part in parts if part], style=charts.STYLE, footer=footer)


def _verdict(result: Result) -> Markup:
    broken = [verdict for verdict in result.verdicts if not verdict.holds]
    counts = result.counts
    failed = counts["failed_faults"]
    facts = [
        f"{counts['faults']} faults" + (f" ({failed} more failed)" if failed else ""),
        f"{counts['elections']} leaders",
        f"{counts['acknowledged'] + counts['load']:,} sends acknowledged",
        f"{counts['received']:,} received",
        f"{counts['entries']:,} log entries read back",
    ]
    if again := counts.get("stored_again", 0):
        facts.append(f"{again:,} messages of other clients stored again")
    if not broken:
        sentence = f"All {len(result.verdicts)} rules hold. They are listed below."
        return banner(Severity.INFO, sentence, facts, "Every rule holds")
    names = ", ".join(verdict.name for verdict in broken)
    sentence = f"{len(broken)} of {len(result.verdicts)} rules are broken: {names}."
    return banner(Severity.CRITICAL, sentence, facts, "A rule was broken")


def _what_was_done(result: Result) -> Markup:
    kinds: dict[str, int] = {}
    for fault in result.faults:
        kinds[f"{fault.kind} ({fault.target})"] = kinds.get(f"{fault.kind} ({fault.target})", 0) + 1
    rows = [(name, count, NEMESES[name.partition(" ")[0]].about) for name, count in sorted(kinds.items())]
    said = (
        f"{result.purpose} This went on for {result.seconds:g} seconds, in a group of "
        f"{result.size or len(result.nodes)} brokers with {result.flush}. The clients were: "
        f"{', '.join(result.clients)}."
    )
    aim = f"The aim: {result.must_hold} What was judged is listed at the end."
    where = f", at {result.group}" if result.group else ""
    when = f"Begun {result.began}, with {result.program}{where}." if result.began else ""
    words = f"<p>{text(said)}</p><p>{text(aim)}</p><p class=note>{text(when)}</p>"
    faults = table(("fault", "times", "what it is"), rows)
    errors = [(one.begin_s, one.kind, one.error) for one in result.faults if one.error]
    failed = table(("at s", "fault", "why it failed"), errors) if errors else ""
    notes = join(Markup(f"<li>{text(note)}</li>") for note in result.notes)
    listed = f"<details><summary>What the faults did</summary><ul>{notes}</ul></details>" if notes else ""
    return section("What was done", Markup(f"{words}{faults}{failed}{listed}"))


def spans_of(seen: Sequence[Seen], end_s: float) -> dict[str, list[Span]]:
    """The states of each node over time."""
    states = [(one.node, one.at_s, charts.state_of(one.role, serving=one.serving), one.term) for one in seen]
    return charts.spans_of(states, end_s)


def _timeline(result: Result, scale: Scale) -> Markup:
    marks = [
        Mark(
            fault.begin_s,
            fault.end_s,
            fault.nodes,
            f"{fault.begin_s:.2f} s: {fault.kind}" + (f" ({fault.error})" if fault.error else ""),
        )
        for fault in result.faults
    ]
    marks = [mark if mark.lanes else replace(mark, lanes=result.nodes) for mark in marks]
    drawn = charts.lanes(result.nodes, spans_of(result.roles, scale.seconds), marks, scale)
    note = (
        "One lane for each node; the number is the term of the leader. Each node was asked ten times a "
        "second. While a lane is blank, its node is no member of the group. "
        f"No fault begins after {result.seconds:g} s; then everything that waits has to come."
    )
    return section("Who led when", Markup(charts.legend() + drawn), note)


def _clients(result: Result, scale: Scale) -> Markup:
    bins = [(one.at_s, one.acknowledged / BIN_S, one.failed / BIN_S) for one in result.bins]
    longest = [
        (one.at_s, one.max_ms, f"{one.at_s:g} s: longest {one.max_ms:g} ms")
        for one in result.bins
        if one.max_ms is not None
    ]
    drawn = charts.columns(bins, BIN_S, scale, "sends/s")
    note = (
        "Sends of all clients that were acknowledged, by the time of the acknowledgement; sends that failed "
        "stand on top, in another colour. Below: the longest send of each half second, on a logarithmic axis."
    )
    rows = [(one.client, one.acknowledged, one.unknown, one.refused, one.received) for one in result.programs]
    listed = table(("client", "sends acknowledged", "outcome unknown", "refused", "received"), rows)
    parts = Markup(drawn + charts.spread(longest, scale, line=True) + (listed if rows else ""))
    return section("What clients saw", parts, note)


def _failovers(result: Result, scale: Scale) -> Markup:
    if not result.failovers:
        return Markup("")
    times = times_of(result.failovers)
    if not times:
        return Markup("")
    summary = table(
        ("faults at a leader", "median ms", "p90 ms", "p99 ms", "longest ms"),
        [(len(times), *(percentile(times, share) for share in (0.5, 0.9, 0.99)), times[-1])],
    )
    points = [
        (one.at_s, one.ms, f"{one.at_s:.1f} s: {one.kind} of {one.node}, {one.ms:g} ms")
        for one in result.failovers
        if one.ms is not None
    ]
    slowest = sorted(result.failovers, key=lambda one: -inf if one.ms is None else -one.ms)[:10]
    parts = table(
        ("at s", "fault", "leader", "noticed ms", "elected ms", "serving ms", "acknowledged ms"),
        [
            (
                one.at_s,
                one.kind,
                one.node,
                one.parts.noticed_ms,
                one.parts.elected_ms,
                one.parts.serving_ms,
                one.ms,
            )
            for one in slowest
        ],
    )
    note = (
        "From the fault to the first acknowledgement of a message that was first sent after the fault, by a "
        "client that sends one every 5 ms; it shares a process with the other clients. The table shows the "
        "slowest ones, and when another node noticed, had a quorum of votes on disk, and served."
    )
    return section("Time without a leader", Markup(summary + charts.spread(points, scale) + parts), note)


def _rules(result: Result) -> Markup:
    rows = [
        (
            _word(verdict.holds),
            verdict.name,
            verdict.rule if verdict.holds else f"{verdict.rule} — {verdict.text}",
            verdict.checked,
        )
        for verdict in result.verdicts
    ]
    source = (
        "from the running brokers"
        if result.left_out
        else ("from the files of a node after all brokers had ended")
    )
    note = (
        f"The judges read the log {source}, and compare it with what clients were told. A rule is left out "
        "if it is about clients that did not take part."
    )
    shown = table(("", "rule", "which says", "facts checked"), rows)
    left = table(("left out", "why"), list(result.left_out.items())) if result.left_out else ""
    return section("What was shown", Markup(f"{shown}{left}"), note)


def _flights(result: Result) -> Markup:
    if not result.flights:
        return Markup("")
    rows = [
        (one.node, one.steps, "; ".join(one.problems) or "every decision is the same", "; ".join(one.missing))
        for one in result.flights
    ]
    note = (
        "Each node notes what its pure core (election and replication) saw and decided. Here the last of "
        "it was replayed: `dledger chaos replay` does the same, step by step."
    )
    return section("Flight recordings", table(("node", "steps", "replayed", "not recorded"), rows), note)


def _word(holds: bool) -> Markup:
    level, word = ("info", "✔ holds") if holds else ("critical", "✖ BROKEN")
    return Markup(f'<span class="pill {level}">{word}</span>')


def _again(result: Result) -> Markup:
    said = (
        "The seed fixes the plan of faults and sends. What the processes do at the same moment is decided by "
        "the kernel, so another run meets other interleavings."
    )
    return section("Run it again", Markup(f"<p><code>{text(result.command)}</code></p><p>{text(said)}</p>"))
