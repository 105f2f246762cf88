"""The page of one simulated run: who led when, and each election as a picture of its messages. Pure.

It is the same page as that of a trial, as far as there is the same to tell. In a simulated run every message
is known, so the page can show what a trial cannot: who asked whom for a vote, who said no, and which entry
made the term safe.
"""

from __future__ import annotations

from collections.abc import Sequence

from dledger.audit.findings import Severity
from dledger.audit.html import Markup, banner, page, section, table, text
from dledger.chaos.scenarios.picture import Became, Flight, Picture
from dledger.chaos.scenarios.plan import Plan
from dledger.chaos.scenarios.runner import Outcome
from dledger.chaos.trials import charts
from dledger.chaos.trials.charts import Arrow, Mark, Scale, Span

NS = 1e9
MOST_ELECTIONS = 12
"""Largest number of elections that one page shows in detail."""
MOST_ARROWS = 70
"""Largest number of messages of one close-up."""
BEFORE_S, AFTER_S = 0.002, 0.004
"""How much of the time before the first vote request and after the beginning of service a close-up shows."""
QUIET_S = 1.0
"""An election begins with the first vote request after this much time without one, or after the last
election."""
KINDS = {"pre-vote": "vote", "vote": "vote", "append": "append", "compare": "append", "answer": "answer"}
"""Maps kinds of messages to the classes of the picture. Heartbeats are left out."""


def report(plan: Plan, outcome: Outcome, picture: Picture, command: str) -> str:
    """The whole page. `command` repeats the run."""
    seconds = max([plan.duration_ms / 1000, *(one.at / NS for one in picture.became)])
    scale = Scale(seconds)
    names = sorted({one.node for one in picture.became})
    spans = spans_of(picture.became, seconds)
    parts = [
        _verdict(outcome),
        _what_was_done(plan),
        _timeline(plan, names, spans, scale),
        *_elections(names, spans, picture),
        section("Run it again", Markup(f"<p><code>{text(command)}</code></p><p>{text(_SAME)}</p>")),
    ]
    title = f"Simulated run {plan.seed} ({plan.profile}): {len(names)} nodes under faults"
    left = f" {picture.left_out:,} messages were not recorded." if picture.left_out else ""
    footer = f"docs/internals/simulator.md explains the simulator.{left}"
    return page(title, parts, style=charts.STYLE + charts.ARROW_STYLE, footer=footer)


_SAME = "A simulated run is a function of its seed: the same command gives the same page, on every machine."


def spans_of(became: Sequence[Became], end_s: float) -> dict[str, list[Span]]:
    """The states of each node over time."""
    states = [
        (one.node, one.at / NS, charts.state_of(one.role, serving=one.serving), one.term) for one in became
    ]
    return charts.spans_of(states, end_s)


def _verdict(outcome: Outcome) -> Markup:
    facts = [
        f"{sum(outcome.faults.values())} faults",
        f"{outcome.elections} leaders",
        f"{outcome.entries:,} log entries",
        f"{outcome.simulated_s:,.0f} s of virtual time",
        f"{sum(outcome.checks.values()):,} checks",
    ]
    if outcome.violation:
        return banner(Severity.CRITICAL, outcome.violation, facts, "A rule was broken")
    sentence = "Every rule held after every event, and after the last fault all logs became equal."
    return banner(Severity.INFO, sentence, facts, "Every rule holds")


def _what_was_done(plan: Plan) -> Markup:
    kinds: dict[str, int] = {}
    for fault in plan.faults:
        kinds[fault.kind] = kinds.get(fault.kind, 0) + 1
    said = (
        f"{plan.nodes} nodes, with simulated clocks, disks and networks, and clients that made "
        f"{len(plan.operations):,} operations. The profile {plan.profile} drew these faults:"
    )
    return section(
        "What was done", Markup(f"<p>{text(said)}</p>{table(('fault', 'times'), sorted(kinds.items()))}")
    )


def _timeline(plan: Plan, names: Sequence[str], spans: dict[str, list[Span]], scale: Scale) -> Markup:
    marks = [
        Mark(
            fault.at_ms / 1000,
            None,
            tuple(names),
            f"{fault.at_ms / 1000:.2f} s: {fault.kind} ({fault.target})",
        )
        for fault in plan.faults
    ]
    note = (
        "One lane for each node; the number is the term of the leader. A red line is a fault; rest the "
        f"pointer on it to see which. The faults end at {plan.duration_ms / 1000:g} s."
    )
    return section("Who led when", Markup(charts.legend() + charts.lanes(names, spans, marks, scale)), note)


def _elections(names: Sequence[str], spans: dict[str, list[Span]], picture: Picture) -> list[Markup]:
    found = []
    for number, (begin, end) in enumerate(elections_of(picture)[:MOST_ELECTIONS], 1):
        arrows = arrows_of(picture.flights, begin, end)
        note = f"From {begin:.4f} s to {end:.4f} s of virtual time. Time goes down; its steps are not equal."
        if number == 1:
            note += (
                " A node that misses its leader first asks whether it could win (pre-vote), which changes "
                "nothing. With a majority of yes it raises its term, saves term and vote, and asks for "
                "votes. With a majority of votes it leads: it appends an entry that opens its term, and "
                "serves when a majority has that entry on disk."
            )
        drawn = charts.close_up(names, arrows, spans, begin, end)
        found.append(section(f"Election {number}", drawn, note))
    return found


def elections_of(picture: Picture) -> list[tuple[float, float]]:
    """When each election began and ended, in seconds. It ends when a node serves."""
    votes = [flight.sent / NS for flight in picture.flights if flight.kind in ("pre-vote", "vote")]
    found: list[tuple[float, float]] = []
    for one in picture.became:
        if not one.serving:
            continue
        end = one.at / NS
        earliest = found[-1][1] if found else 0.0
        own = [at for at in votes if earliest < at <= end]
        if not own:
            continue
        begin = own[-1]
        for at in reversed(own):
            if begin - at > QUIET_S:
                break
            begin = at
        found.append((begin - BEFORE_S, end + AFTER_S))
    return found


def arrows_of(flights: Sequence[Flight], begin_s: float, end_s: float) -> list[Arrow]:
    """The messages of a close-up, at most MOST_ARROWS: the votes first, then the earliest others."""
    inside = [flight for flight in flights if flight.kind in KINDS and begin_s <= flight.sent / NS <= end_s]
    inside.sort(key=lambda flight: (KINDS[flight.kind] != "vote", flight.sent))
    chosen = sorted(inside[:MOST_ARROWS], key=lambda flight: flight.sent)
    return [
        Arrow(
            flight.sender,
            flight.receiver,
            KINDS[flight.kind],
            flight.text,
            flight.sent / NS,
            None if flight.received < 0 else flight.received / NS,
        )
        for flight in chosen
    ]
