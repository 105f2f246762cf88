"""The first page: whether the cluster is well, its rates, the largest backlogs, and what happened."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from dledger.dashboard.pages.page import Asked, Page
from dledger.dashboard.watching import KEPT_S, Backlog, NodeView

MAX_BACKLOGS = 10
MAX_EVENTS = 20


class GroupHealth(msgspec.Struct, frozen=True):
    """The health of one broker group. `state` is `well`, `at-risk` (one more loss stops writes, or a node has
    a problem), `down` (no leader serves) or `unknown`."""

    name: str
    state: str
    nodes: int
    """Voters of the group."""
    reached: int
    """Voters that answer and reach the leader."""
    spare: int
    """How many more voters the group can lose and still serve."""
    leader: str | None
    disk_used: float | None
    """The largest share of a disk that is in use at one of its nodes, 0 to 1."""
    problems: tuple[str, ...]


class Event(msgspec.Struct, frozen=True):
    """Something that happened at a node."""

    at_ms: int
    group: str
    node: str
    role: str
    term: int
    leader: str | None
    why: str


class Series(msgspec.Struct, frozen=True):
    """Rates of one broker group over the last hour: times in ms since the epoch, messages a second."""

    group: str
    at_ms: tuple[int, ...]
    rate_in: tuple[float, ...]
    rate_out: tuple[float, ...]


class Overview(msgspec.Struct, frozen=True):
    """The data of the page."""

    cluster: str
    problem: str
    """Why the last look at the cluster failed; empty if it did not."""
    groups: list[GroupHealth]
    rate_in: float
    rate_out: float
    series: list[Series]
    backlogs: list[Backlog]
    backlog_problem: str
    events: list[Event]


async def load(asked: Asked) -> Overview:
    """Load the page from what is known about the cluster already: nothing is asked."""
    cluster = asked.cluster
    groups = [health_of(name, nodes) for name, nodes in sorted(cluster.nodes.items())]
    series = [
        Series(
            name,
            tuple(one.at_ms for one in samples),
            tuple(round(one.rate_in, 1) for one in samples),
            tuple(round(one.rate_out, 1) for one in samples),
        )
        for name, samples in sorted(cluster.rates.items())
    ]
    now = [samples[-1] for samples in cluster.rates.values() if samples]
    return Overview(
        cluster=cluster.name,
        problem=cluster.problem,
        groups=groups,
        rate_in=sum(one.rate_in for one in now),
        rate_out=sum(one.rate_out for one in now),
        series=series,
        backlogs=[one for one in cluster.backlogs if one.messages][:MAX_BACKLOGS],
        backlog_problem=cluster.backlog_problem,
        events=events_of(cluster.nodes.values(), cluster.now_ms())[:MAX_EVENTS],
    )


def health_of(name: str, nodes: Mapping[str, NodeView]) -> GroupHealth:
    """The health of one broker group."""
    voters = [one for one in nodes.values() if one.voter]
    reached = [one for one in voters if one.reached]
    leader = next((one for one in reached if one.serving), None)
    raft = any(one.term is not None for one in reached)
    quorum = len(voters) // 2 + 1 if raft else 1
    spare = max(0, len(reached) - quorum)
    problems = [
        f"{one.id}: {text}"
        for one in nodes.values()
        for text in (*((one.problem,) if one.problem else ()), *one.reasons, *one.warnings, *one.statements)
    ]
    disks = [one.disk_used for one in nodes.values() if one.disk_used is not None]
    if not voters:
        state = "unknown"
    elif leader is None:
        state = "down"
    else:
        state = "at-risk" if problems or len(reached) < len(voters) else "well"
    return GroupHealth(
        name=name,
        state=state,
        nodes=len(voters),
        reached=len(reached),
        spare=spare if leader is not None else 0,
        leader=leader.id if leader is not None else None,
        disk_used=max(disks, default=None),
        problems=tuple(problems),
    )


def events_of(groups: Iterable[Mapping[str, NodeView]], now_ms: int) -> list[Event]:
    """Changes of roles in the last hour that have a reason, the newest first."""
    found = [
        Event(one.at_ms, node.group, node.id, one.role, one.term, one.leader, one.why)
        for nodes in groups
        for node in nodes.values()
        for one in node.changes
        if one.why and one.at_ms >= now_ms - KEPT_S * 1000
    ]
    return sorted(found, key=lambda one: -one.at_ms)


PAGE = Page("overview", "", "Overview", load, lambda asked: "dledger admin broker list", listed=True)
