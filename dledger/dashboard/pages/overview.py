"""The first page: whether the cluster is well, its rates, the largest backlogs, and what happened."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from dledger.dashboard.pages.page import Asked, Page
from dledger.dashboard.watching import KEPT_S, Backlog, NodeView, leader_of

MAX_BACKLOGS = 10
MAX_EVENTS = 20


class GroupHealth(msgspec.Struct, frozen=True):
    """The health of one broker group. `state` is one of `STATES`."""

    name: str
    state: str
    nodes: int
    """Voters of the group; for brokers of Apache RocketMQ all brokers."""
    reached: int
    """Voters that answer this dashboard, and to which the leader is connected."""
    spare: int
    """How many more voters the group can lose and still serve."""
    leader: str | None
    disk_used: float | None
    """The largest share of a disk that is in use at one of its nodes, 0 to 1."""
    problems: tuple[str, ...]


STATES = ("well", "at-risk", "down", "hidden", "without-failover", "unknown")
"""`at-risk`: one more loss stops writes, or a node has a problem. `down`: no leader serves. `hidden`: other
nodes know a leader, and this dashboard does not reach it. `without-failover`: a master of Apache RocketMQ.
`unknown`: nothing is known."""


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
    looked_ms: int
    """When the nodes were last looked at, in ms since the epoch; 0: not yet."""
    groups: list[GroupHealth]
    rate_in: float | None
    """Messages a second now, of all broker groups; None if nothing is known."""
    rate_out: float | None
    series: list[Series]
    backlogs: list[Backlog]
    backlogs_ms: int
    """When the backlogs were last looked at; 0: not yet."""
    backlog_problem: str
    events: list[Event]


async def load(asked: Asked) -> Overview:
    """Load the page from what is known about the cluster already: nothing is asked."""
    cluster = asked.cluster
    groups = [health_of(name, nodes) for name, nodes in sorted(cluster.nodes.items())]
    series = []
    for name in sorted(cluster.nodes):
        samples = cluster.samples(name)
        series.append(
            Series(
                name,
                tuple(one.at_ms for one in samples),
                tuple(round(one.rate_in, 1) for one in samples),
                tuple(round(one.rate_out, 1) for one in samples),
            )
        )
    now = [one for one in map(cluster.rate, cluster.nodes) if one is not None]
    return Overview(
        cluster=cluster.name,
        problem=cluster.problem,
        looked_ms=cluster.looked_ms,
        groups=groups,
        rate_in=sum(one.rate_in for one in now) if now else None,
        rate_out=sum(one.rate_out for one in now) if now else None,
        series=series,
        backlogs=[one for one in cluster.backlogs if one.messages][:MAX_BACKLOGS],
        backlogs_ms=cluster.backlogs_ms,
        backlog_problem=cluster.backlog_problem,
        events=events_of(cluster.nodes.values(), cluster.now_ms())[:MAX_EVENTS],
    )


def health_of(name: str, nodes: Mapping[str, NodeView]) -> GroupHealth:
    """The health of one broker group."""
    voters = [one for one in nodes.values() if one.voter]
    reached = [one for one in voters if one.reached and one.connected is not False]
    leader = leader_of(one for one in voters if one.reached)
    raft = any(one.term is not None for one in nodes.values())
    problems = [
        f"{one.id}: {text}"
        for one in nodes.values()
        for text in (*((one.problem,) if one.problem else ()), *one.reasons, *one.warnings, *one.statements)
    ]
    disks = [one.disk_used for one in nodes.values() if one.disk_used is not None]
    spare = max(0, len(reached) - (len(voters) // 2 + 1)) if leader is not None and raft else 0
    return GroupHealth(
        name=name,
        state=_state(voters, reached, leader, raft=raft, problems=bool(problems)),
        nodes=len(voters),
        reached=len(reached),
        spare=spare,
        leader=leader.id if leader is not None else _known_leader(voters),
        disk_used=max(disks, default=None),
        problems=tuple(problems),
    )


def _known_leader(voters: Iterable[NodeView]) -> str | None:
    """The leader that the node with the highest term knows."""
    knowing = [one for one in voters if one.reached and one.leader is not None]
    return max(knowing, key=lambda one: one.term or 0).leader if knowing else None


def _state(
    voters: list[NodeView], reached: list[NodeView], leader: NodeView | None, *, raft: bool, problems: bool
) -> str:
    if not any(one.reached for one in voters):
        return "unknown"
    if leader is None:
        known = _known_leader(voters)
        away = known is not None and not any(one.id == known and one.reached for one in voters)
        return "hidden" if away else "down"
    if not raft:
        return "without-failover"
    return "at-risk" if problems or len(reached) < len(voters) else "well"


def events_of(groups: Iterable[Mapping[str, NodeView]], now_ms: int) -> list[Event]:
    """Changes of roles in the last hour that have a reason, the newest first."""
    found = [
        Event(one.at_ms, node.group, node.id, one.role, one.term, one.leader, one.why)
        for nodes in groups
        for node in nodes.values()
        for one in node.changes
        if one.why and one.at_ms >= now_ms - KEPT_S * 1000
    ]
    return sorted(found, key=lambda one: one.at_ms)[::-1]


PAGE = Page("overview", "", "Overview", load, lambda asked: "dledger admin broker list", listed=True)
