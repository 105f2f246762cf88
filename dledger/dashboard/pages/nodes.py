"""The nodes of all broker groups: their roles, how far each log is, and who led when."""

from __future__ import annotations

import msgspec

from dledger.dashboard.pages.overview import GroupHealth, health_of
from dledger.dashboard.pages.page import Asked, NotThere, Page, command
from dledger.dashboard.watching import KEPT_S, NodeView
from dledger.remoting.node_report import RoleChange


class Span(msgspec.Struct, frozen=True):
    """A time in which a node kept its role and term."""

    node: str
    begin_ms: int
    end_ms: int
    role: str
    term: int
    why: str
    """Why it came into this role."""


class GroupNodes(msgspec.Struct, frozen=True):
    """One broker group with its nodes, and their roles in the last hour."""

    health: GroupHealth
    nodes: list[NodeView]
    spans: list[Span]


class Nodes(msgspec.Struct, frozen=True):
    """The data of the page."""

    cluster: str
    problem: str
    groups: list[GroupNodes]
    from_ms: int
    """Where the lines of time begin."""
    to_ms: int


class NodePage(msgspec.Struct, frozen=True):
    """The data of the page of one node."""

    node: NodeView
    settings: dict[str, str]
    figures: dict[str, str]
    from_ms: int
    to_ms: int
    spans: list[Span]


async def load(asked: Asked) -> Nodes:
    """Load the page from what is known about the cluster already."""
    cluster = asked.cluster
    now = cluster.now_ms()
    begin = now - KEPT_S * 1000
    groups = [
        GroupNodes(
            health_of(name, nodes),
            list(nodes.values()),
            [span for node in nodes.values() for span in spans_of(node.id, node.changes, begin, now)],
        )
        for name, nodes in sorted(cluster.nodes.items())
    ]
    return Nodes(cluster.name, cluster.problem, groups, begin, now)


def spans_of(node: str, changes: tuple[RoleChange, ...], begin_ms: int, end_ms: int) -> list[Span]:
    """The times between the changes of a node, as far as they are within begin and end."""
    found: list[Span] = []
    for change in changes:
        if found and (found[-1].role, found[-1].term) == (change.role, change.term):
            continue  # only the leader that it knows changed
        if found:
            found[-1] = msgspec.structs.replace(found[-1], end_ms=change.at_ms)
        found.append(Span(node, change.at_ms, end_ms, change.role, change.term, change.why))
    return [
        msgspec.structs.replace(span, begin_ms=max(span.begin_ms, begin_ms))
        for span in found
        if span.end_ms > begin_ms
    ]


async def load_node(asked: Asked) -> NodePage:
    """Load the page of one node: its settings and figures are asked of it."""
    group, id_ = asked.names["group"], asked.names["node"]
    node = asked.cluster.nodes.get(group, {}).get(id_)
    if node is None:
        raise NotThere(f"{id_} of {group}")
    settings: dict[str, str] = {}
    figures: dict[str, str] = {}
    if node.reached:
        brokers = asked.admin.brokers
        settings = await asked.facts.get(brokers.settings, node.address)
        figures = await asked.facts.get(brokers.runtime, node.address)
    now = asked.cluster.now_ms()
    begin = now - KEPT_S * 1000
    return NodePage(node, settings, figures, begin, now, spans_of(id_, node.changes, begin, now))


PAGE = Page("nodes", "nodes", "Nodes", load, lambda asked: "dledger admin broker list", listed=True)
NODE = Page(
    "node",
    "nodes/{group}/{node}",
    "Node",
    load_node,
    lambda asked: command("dledger admin broker config", asked.names["group"]),
)
