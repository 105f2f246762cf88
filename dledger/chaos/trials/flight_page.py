"""The page of a replayed flight recording: what the core of one node became, and each step at which it
changed. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dledger.audit.findings import Severity
from dledger.audit.html import Markup, banner, join, page, section, table, text
from dledger.chaos.trials import charts
from dledger.chaos.trials.charts import Mark, Scale, Span
from dledger.flight.steps import Replay, Step

MOST_CHANGES = 200
"""Largest number of changes of role or term that one page lists: the last ones."""
LAST_STEPS = 60
"""How many of the last steps one page lists."""
LONGEST_EVENT = 160
"""Number of characters of an event or an effect that one page shows."""
STARTS = "elector open("
"""How the event begins that is the first one of a process."""


def report(result: Replay, verdict: str) -> str:
    """The whole page. `result` has to hold all steps."""
    parts = [
        banner(
            Severity.INFO if result.agrees else Severity.CRITICAL,
            verdict,
            [f"node {result.node}", f"{result.total_steps:,} steps", f"core {result.version}"],
            "The replay agrees" if result.agrees else "The replay does not agree",
        ),
        _timeline(result),
        _steps("When role or term changed", list(changes_of(result.steps))[-MOST_CHANGES:]),
        _steps("The last steps", result.steps[-LAST_STEPS:]),
        _texts("What does not agree", result.problems),
        _texts("What the files do not hold", result.missing),
    ]
    title = f"Flight recording of node {result.node}"
    footer = "docs/howto/when-something-breaks.md explains the flight recorder."
    return page(title, [part for part in parts if part], style=charts.STYLE, footer=footer)


def changes_of(steps: Sequence[Step]) -> Iterator[Step]:
    """The steps after which role or term differ from those before, and those with a problem."""
    before: tuple[str, int] | None = None
    for step in steps:
        now = (step.role, step.term)
        if now != before or step.problem:
            yield step
        before = now


def spans_of(steps: Sequence[Step], begin_s: float) -> list[Span]:
    """The roles of the node over time, in seconds since `begin_s`. While the process did not run, there is no
    role."""
    found: list[Span] = []
    for step in steps:
        at_s, state = step.time_s - begin_s, charts.state_of(step.role, serving=step.role == "LEADER")
        same = found and (found[-1].state, found[-1].term) == (state, step.term)
        if found and not step.event.startswith(STARTS):
            found[-1] = Span(found[-1].begin_s, at_s, found[-1].state, found[-1].term)
            if same:
                continue
        found.append(Span(at_s, at_s, state, step.term))
    return found


def _timeline(result: Replay) -> Markup:
    if not result.steps:
        return Markup("")
    begin_s = result.steps[0].time_s
    scale = Scale(result.steps[-1].time_s - begin_s)
    marks = [
        Mark(step.time_s - begin_s, None, (result.node,), f"step {step.number}: {step.problem}")
        for step in result.steps
        if step.problem
    ]
    spans = {result.node: spans_of(result.steps, begin_s)}
    note = "The number is the term of the leader. A red line is a step at which the replay does not agree."
    drawn = charts.lanes([result.node], spans, marks, scale)
    return section("What the node was", Markup(charts.legend() + drawn), note)


def _steps(heading: str, steps: Sequence[Step]) -> Markup:
    rows = [
        (
            step.number,
            f"{step.time_s:.6f}",
            step.role,
            step.term,
            step.commit_index,
            _shortened(step.event),
            join((text(_shortened(effect)) for effect in step.effects), Markup("<br>")),
            step.problem,
        )
        for step in steps
    ]
    heads = ("step", "time s", "role", "term", "committed", "what came in", "what it decided", "problem")
    return section(heading, table(heads, rows))


def _shortened(said: str) -> str:
    return said if len(said) <= LONGEST_EVENT else f"{said[:LONGEST_EVENT]} ..."


def _texts(heading: str, texts: Sequence[str]) -> Markup:
    if not texts:
        return Markup("")
    return section(heading, Markup(f"<ul>{join(Markup(f'<li>{text(one)}</li>') for one in texts)}</ul>"))
