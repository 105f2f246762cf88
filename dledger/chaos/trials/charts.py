"""The pictures of a report, as SVG. All share one time axis, so a reader can look up and down. Pure.

Colours never stand alone: each state also has a pattern or a text, and each mark a title that is shown when
the pointer rests on it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import log10

from dledger.audit.html import Markup, join, text

WIDTH = 1000
LEFT = 58
"""Space for the names at the left of each picture, in units of the picture."""
LANE = 26
GAP = 8
AXIS = 22

STYLE = """
:root { --leader: #1c7c4f; --electing: #e0a100; --follower: #bcd3e6; --learner: #d9cdf0; --silent: #ffffff;
  --fault: #b3261e; --ok: #3aa274; --bad: #b3261e; --dot: #26547c; --grid: #d6dce3; }
@media (prefers-color-scheme: dark) { :root { --leader: #3fbf86; --electing: #f2b84b; --follower: #2f4a61;
  --learner: #4d3f6b; --silent: #12161b; --fault: #ff8a80; --ok: #3aa274; --bad: #ff8a80; --dot: #8fc1e8;
  --grid: #313a44; } }
svg.chart { width: 100%; height: auto; display: block; font: 12px system-ui, sans-serif; fill: var(--ink); }
svg.chart .soft { fill: var(--soft); }
svg.chart .grid { stroke: var(--grid); stroke-width: 1; }
svg.chart .leader { fill: var(--leader); } svg.chart .electing { fill: var(--electing); }
svg.chart .follower { fill: var(--follower); } svg.chart .learner { fill: var(--learner); }
svg.chart .silent { fill: url(#hatch); stroke: var(--grid); }
svg.chart .term { fill: #ffffff; font-weight: 600; }
svg.chart .fault { fill: var(--fault); opacity: .22; }
svg.chart .strike { stroke: var(--fault); stroke-width: 2; }
svg.chart .ok { fill: var(--ok); } svg.chart .bad { fill: var(--bad); } svg.chart .dot { fill: var(--dot); }
svg.chart .line { fill: none; stroke: var(--dot); stroke-width: 1.5; }
.legend { display: flex; flex-wrap: wrap; gap: .3rem 1.2rem; color: var(--soft); font-size: .9rem;
  margin: .2rem 0 .6rem; }
.legend svg { width: 1.6em; height: .9em; vertical-align: -.1em; margin-right: .4em; }
"""
_HATCH = Markup(
    '<defs><pattern id="hatch" width="6" height="6" patternTransform="rotate(45)" '
    'patternUnits="userSpaceOnUse"><rect width="6" height="6" fill="var(--silent)"/>'
    '<line x1="0" y1="0" x2="0" y2="6" stroke="var(--soft)" stroke-width="2"/></pattern></defs>'
)
STATES = (
    ("leader", "leads and serves"),
    ("electing", "stands for election, or leads and does not serve yet"),
    ("follower", "follows"),
    ("learner", "learns: has no vote"),
    ("silent", "does not answer"),
)
"""The states of a node in a picture: CSS class and meaning."""
OUTSIDE = "outside"
"""The state of a node while it is not a member of the group. It is not drawn."""


@dataclass(frozen=True)
class Span:
    """A time in which a node was in one state. Times are in seconds."""

    begin_s: float
    end_s: float
    state: str
    """A CSS class of STATES, or OUTSIDE."""
    term: int


_STATE_OF_ROLE = {
    "LEADER": "electing",
    "CANDIDATE": "electing",
    "FOLLOWER": "follower",
    "LEARNER": "learner",
    "OUTSIDE": OUTSIDE,
}


def state_of(role: str, *, serving: bool) -> str:
    """The state (STATES) of a node with this role. A leader that does not serve yet counts as electing."""
    return "leader" if serving else _STATE_OF_ROLE.get(role, "silent")


def spans_of(changes: Sequence[tuple[str, float, str, int]], end_s: float) -> dict[str, list[Span]]:
    """The states of each node over time. Each change is (node, seconds, state, term); changes are sorted by
    time, and the last state of a node lasts until `end_s`."""
    own: dict[str, list[tuple[float, str, int]]] = {}
    for node, at_s, state, term in changes:
        own.setdefault(node, []).append((at_s, state, term))
    return {
        node: [
            Span(at_s, until_s, state, term)
            for (at_s, state, term), until_s in zip(
                states, [*(at_s for at_s, _, _ in states[1:]), end_s], strict=True
            )
        ]
        for node, states in own.items()
    }


@dataclass(frozen=True)
class Mark:
    """A fault in the picture, at some lanes. `end_s` is None for a fault of one moment."""

    begin_s: float
    end_s: float | None
    lanes: tuple[str, ...]
    title: str


class Scale:
    """Turns seconds into the x coordinate."""

    def __init__(self, seconds: float) -> None:
        self.seconds = max(seconds, 0.001)

    def x(self, at_s: float) -> float:
        """The x coordinate of a time."""
        share = min(max(at_s / self.seconds, 0.0), 1.0)
        return LEFT + (WIDTH - LEFT - 4) * share

    def ticks(self) -> list[float]:
        """Round times for the axis: at most eleven."""
        step = 10 ** max(0, int(log10(self.seconds)) - 1)
        for factor in (1, 2, 5, 10, 20, 50):
            if self.seconds / (step * factor) <= 10:
                step *= factor
                break
        return [step * number for number in range(int(self.seconds / step) + 1)]


def _svg(height: float, parts: Iterable[object], label: str) -> Markup:
    return Markup(
        f'<svg class="chart" viewBox="0 0 {WIDTH} {height:.0f}" role="img" aria-label="{text(label)}">'
        f"{_HATCH}{join(parts)}</svg>"
    )


def _rect(kind: str, x: float, y: float, wide: float, high: float, title: str) -> Markup:
    return Markup(
        f'<rect class="{kind}" x="{x:.1f}" y="{y:.1f}" width="{max(wide, 0.8):.1f}" height="{high:.1f}">'
        f"<title>{text(title)}</title></rect>"
    )


def _words(x: float, y: float, said: object, kind: str = "", anchor: str = "start") -> Markup:
    return Markup(f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{text(said)}</text>')


def _axis(scale: Scale, height: float) -> list[Markup]:
    parts = []
    for at in scale.ticks():
        x = scale.x(at)
        parts.append(Markup(f'<line class="grid" x1="{x:.1f}" y1="0" x2="{x:.1f}" y2="{height:.0f}"/>'))
        parts.append(_words(x, height + 15, f"{at:g} s", "soft", "middle"))
    return parts


def lanes(names: Sequence[str], spans: dict[str, list[Span]], marks: Sequence[Mark], scale: Scale) -> Markup:
    """One lane for each node with its states and terms, and the faults on the lanes that they struck."""
    top = {name: number * (LANE + GAP) for number, name in enumerate(names)}
    height = len(names) * (LANE + GAP)
    parts = _axis(scale, height)
    for name in names:
        y = top[name]
        parts.append(_words(0, y + LANE / 2 + 4, name))
        for span in [one for one in spans.get(name, []) if one.state != OUTSIDE]:
            x, end = scale.x(span.begin_s), scale.x(span.end_s)
            meaning = dict(STATES)[span.state]
            title = f"{name} {meaning}, term {span.term}, {span.begin_s:.2f} to {span.end_s:.2f} s"
            parts.append(_rect(span.state, x, y, end - x, LANE, title))
            if span.state == "leader" and end - x > 24:
                parts.append(_words((x + end) / 2, y + LANE / 2 + 4, span.term, "term", "middle"))
    for mark in marks:
        for name in mark.lanes or names[:0]:
            y, x = top[name], scale.x(mark.begin_s)
            if mark.end_s is not None:
                parts.append(_rect("fault", x, y - 3, scale.x(mark.end_s) - x, LANE + 6, mark.title))
            parts.append(
                Markup(
                    f'<line class="strike" x1="{x:.1f}" y1="{y - 4}" x2="{x:.1f}" y2="{y + LANE + 4}">'
                    f"<title>{text(mark.title)}</title></line>"
                )
            )
    return _svg(height + AXIS, parts, "who led when, and the faults")


def legend() -> Markup:
    """What the colours and patterns of `lanes` mean."""
    entries = [
        Markup(
            f'<span><svg class="chart" viewBox="0 0 32 18">{_HATCH}'
            f'<rect class="{kind}" width="32" height="18"/></svg>{text(meaning)}</span>'
        )
        for kind, meaning in STATES
    ]
    entries.append(
        Markup(
            '<span><svg class="chart" viewBox="0 0 32 18"><rect class="fault" width="32" height="18"/>'
            '<line class="strike" x1="2" y1="0" x2="2" y2="18"/></svg>a fault, until it is undone</span>'
        )
    )
    return Markup(f'<div class="legend">{join(entries)}</div>')


def columns(
    bins: Sequence[tuple[float, float, float]], wide_s: float, scale: Scale, unit: str, height: float = 120
) -> Markup:
    """Columns over time. Each bin is (begin in seconds, good, bad); `bad` stands on top of `good`."""
    top = max((good + bad for _, good, bad in bins), default=0) or 1
    parts = _axis(scale, height)
    parts += [
        _words(0, 12, f"{top:,.0f}", "soft"),
        _words(0, 26, unit, "soft"),
        _words(0, height, "0", "soft"),
    ]
    for at, good, bad in bins:
        x, wide = scale.x(at), scale.x(at + wide_s) - scale.x(at) - 0.6
        high = (height - 4) * good / top
        if good:
            parts.append(_rect("ok", x, height - high, wide, high, f"{at:g} s: {good:,.0f} {unit}"))
        if bad:
            more = max((height - 4) * bad / top, 2.0)
            parts.append(_rect("bad", x, height - high - more, wide, more, f"{at:g} s: {bad:,.0f} failed"))
    return _svg(height + AXIS, parts, unit)


def spread(
    points: Sequence[tuple[float, float, str]], scale: Scale, *, line: bool = False, height: float = 140
) -> Markup:
    """Times in ms over the time of the trial, on a logarithmic axis. Each point is (seconds, ms, title)."""
    values = [max(ms, 0.1) for _, ms, _ in points] or [1.0]
    low, high = int(log10(min(values)) // 1), -int(-log10(max(values)) // 1)
    high = max(high, low + 1)

    def y(ms: float) -> float:
        return (height - 8) * (1 - (log10(max(ms, 0.1)) - low) / (high - low)) + 4

    parts = _axis(scale, height)
    for power in range(low, high + 1):
        at = y(10**power)
        parts.append(Markup(f'<line class="grid" x1="{LEFT}" y1="{at:.1f}" x2="{WIDTH}" y2="{at:.1f}"/>'))
        parts.append(_words(0, at + 4, f"{10**power:g} ms", "soft"))
    if line:
        path = " ".join(f"{scale.x(at):.1f},{y(ms):.1f}" for at, ms, _ in points)
        parts.append(Markup(f'<polyline class="line" points="{path}"/>'))
    for at, ms, title in points:
        radius = 1.6 if line else 3.5
        parts.append(
            Markup(
                f'<circle class="dot" cx="{scale.x(at):.1f}" cy="{y(ms):.1f}" r="{radius}">'
                f"<title>{text(title)}</title></circle>"
            )
        )
    return _svg(height + AXIS, parts, "times in milliseconds")


@dataclass(frozen=True)
class Arrow:
    """A message in a close-up. Times are in seconds; `received_s` is None if it never arrived."""

    sender: str
    receiver: str
    kind: str
    """A CSS class: `vote`, `append` or `answer`."""
    text: str
    sent_s: float
    received_s: float | None


ROW = 15
"""Smallest distance between two events of a close-up, in units of the picture."""
LONG_MS = 2.0
"""A pause of this many ms or more gets some more room."""


def close_up(
    names: Sequence[str], arrows: Sequence[Arrow], spans: dict[str, list[Span]], begin_s: float, end_s: float
) -> Markup:
    """The messages between nodes from one moment to another. Time goes down. Its steps are not equal: each
    event has room, and the times stand at the left."""
    times = sorted({
        round(at, 7)
        for arrow in arrows
        for at in (arrow.sent_s, arrow.received_s)
        if at is not None and begin_s <= at <= end_s
    } | {
        round(span.begin_s, 7) for own in spans.values() for span in own if begin_s < span.begin_s < end_s
    } | {round(begin_s, 7), round(end_s, 7)})  # fmt: skip
    rows, y = {}, 34.0
    for before, at in zip([times[0], *times], times, strict=False):
        if at != times[0]:
            y += ROW + (10 if (at - before) * 1000 >= LONG_MS else 0)
        rows[at] = y
    height = y + 20
    place = {name: 190 + (WIDTH - 300) * number / max(len(names) - 1, 1) for number, name in enumerate(names)}
    parts: list[Markup] = [_ARROWS]
    last = -100.0
    for at, row in rows.items():
        if row - last >= 24:
            parts.append(_words(0, row + 4, f"+{(at - begin_s) * 1000:.1f} ms", "soft"))
            last = row
    for name in names:
        x = place[name]
        parts.append(_words(x, 16, name, "", "middle"))
        for span in spans.get(name, []):
            top, bottom = max(span.begin_s, begin_s), min(span.end_s, end_s)
            if bottom <= top:
                continue
            from_y, to_y = _row(rows, top), _row(rows, bottom)
            title = f"{name} {dict(STATES)[span.state]}, term {span.term}"
            parts.append(_rect(span.state, x - 7, from_y, 14, to_y - from_y, title))
            if to_y - from_y > 14:
                parts.append(
                    _words(x + 12, from_y + 11, f"term {span.term}" if span.term >= 0 else "", "soft")
                )
    for arrow in arrows:
        parts.append(_arrow(arrow, place, rows, end_s))
    return _svg(height, parts, "messages between the nodes")


def _row(rows: dict[float, float], at_s: float) -> float:
    at = round(at_s, 7)
    if at in rows:
        return rows[at]
    return next((y for time, y in rows.items() if time >= at), max(rows.values()))


def _arrow(arrow: Arrow, place: dict[str, float], rows: dict[float, float], end_s: float) -> Markup:
    x1, x2, y1 = place[arrow.sender], place[arrow.receiver], _row(rows, arrow.sent_s)
    lost, late = arrow.received_s is None, arrow.received_s is not None and arrow.received_s > end_s
    y2 = y1 + ROW if arrow.received_s is None else _row(rows, min(arrow.received_s, end_s))
    side = 9 if x2 > x1 else -9
    x1, x2 = x1 + side, x2 - side
    if lost:
        x2 = x1 + (x2 - x1) * 0.45
    said = arrow.text + (" (lost)" if lost else "")
    anchor = "start" if side > 0 else "end"
    mark = "" if lost or late else f' marker-end="url(#head-{arrow.kind})"'
    title = f"{arrow.sender} to {arrow.receiver}: {said}"
    line = (
        f'<line class="flight {arrow.kind}{" lost" if lost else ""}" x1="{x1:.1f}" y1="{y1:.1f}" '
        f'x2="{x2:.1f}" y2="{y2:.1f}"{mark}><title>{text(title)}</title></line>'
    )
    return Markup(line + _words(x1 + side, y1 - 3, said, f"said {arrow.kind}", anchor))


ARROW_STYLE = """
svg.chart .flight { stroke-width: 1.4; } svg.chart .lost { stroke-dasharray: 3 3; }
svg.chart .flight.vote, #head-vote path { stroke: var(--electing); }
svg.chart .flight.append, #head-append path { stroke: var(--leader); }
svg.chart .flight.answer, #head-answer path { stroke: var(--soft); }
#head-vote path { fill: var(--electing); } #head-append path { fill: var(--leader); }
#head-answer path { fill: var(--soft); }
svg.chart .said { font-size: 10.5px; }
"""
_ARROWS = Markup(
    "<defs>"
    + "".join(
        f'<marker id="head-{kind}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
        'orient="auto"><path d="M0,0 L8,4 L0,8 z"/></marker>'
        for kind in ("vote", "append", "answer")
    )
    + "</defs>"
)
