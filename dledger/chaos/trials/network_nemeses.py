"""The faults of networks. Every function breaks some links, and returns what joins them again."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from dledger.chaos.scenarios.plan import Fault
from dledger.chaos.trials.network import CLIENTS, Network, ProxiedNetwork
from dledger.chaos.trials.system import SystemUnderTest, Undo

Way = tuple[str, str]
"""A link: its source and its target."""
RESETS, HOLDS = 0.0005, 0.02
"""Probabilities with which a flaky link resets a connection and holds data back, for each piece of data."""


def _network(system: SystemUnderTest) -> Network:
    assert system.network is not None  # it prepares what the table of nemeses asks for
    return system.network


def _proxy(system: SystemUnderTest) -> ProxiedNetwork:
    assert system.proxy is not None
    return system.proxy


def _cut(system: SystemUnderTest, ways: Iterable[Way]) -> Undo:
    network, cut = _network(system), list(ways)
    for way in cut:
        network.cut(*way)

    def undo() -> None:
        for way in cut:
            network.join(*way)

    return undo


def _between(some: Iterable[str], others: Sequence[str]) -> list[Way]:
    """All links from and to some hosts."""
    return [way for one in some for other in others for way in ((one, other), (other, one))]


def _others(system: SystemUnderTest, nodes: Sequence[str]) -> list[str]:
    return [node for node in system.nodes if node not in nodes]


def partition(system: SystemUnderTest, nodes: Sequence[str], fault: Fault) -> Undo:
    """These nodes and the other nodes hear nothing of each other. Clients reach all of them."""
    return _cut(system, _between(nodes, _others(system, nodes)))


def one_way(system: SystemUnderTest, nodes: Sequence[str], fault: Fault) -> Undo:
    """Half of the time these nodes hear nothing of the others, else the others hear nothing of them."""
    others = _others(system, nodes)
    if fault.pick & 1:
        return _cut(system, [(other, node) for node in nodes for other in others])
    return _cut(system, [(node, other) for node in nodes for other in others])


def bridge(system: SystemUnderTest, nodes: Sequence[str], fault: Fault) -> Undo:
    """The other nodes are in two halves that hear nothing of each other; this node hears both."""
    others = _others(system, nodes)
    half = len(others) // 2
    return _cut(system, _between(others[:half], others[half:]))


def ring(system: SystemUnderTest, nodes: Sequence[str], fault: Fault) -> Undo:
    """Each node hears only the node before it. Of five nodes it also hears the node behind it."""
    count = len(nodes)
    steps = (1,) if count <= 3 else (1, count - 1)
    ways = [
        (nodes[place], nodes[(place + step) % count])
        for place in range(count)
        for step in range(1, count)
        if step not in steps
    ]
    return _cut(system, ways)


def clients_cut(system: SystemUnderTest, nodes: Sequence[str], fault: Fault) -> Undo:
    """Clients and these nodes hear nothing of each other; the nodes hear each other, and the NameServer."""
    return _cut(system, _between(nodes, [CLIENTS]))


def half_open(system: SystemUnderTest, nodes: Sequence[str], fault: Fault) -> Undo:
    """Connections between these nodes and all others stay open, and lose everything. At the end they are
    reset."""
    proxy, ways = _proxy(system), _between(nodes, [CLIENTS, *_others(system, nodes)])
    for way in ways:
        proxy.drop(*way)

    def undo() -> None:
        for way in ways:
            proxy.restore(*way)

    return undo


def slow_link(system: SystemUnderTest, nodes: Sequence[str], fault: Fault) -> Undo:
    """Everything between these nodes and all others comes `amount` milliseconds later, and up to half as much
    more."""
    proxy, ways = _proxy(system), _between(nodes, [CLIENTS, *_others(system, nodes)])
    for way in ways:
        proxy.delay(*way, fault.amount, fault.amount // 2)

    def undo() -> None:
        for way in ways:
            proxy.delay(*way, 0)

    return undo


def flaky(system: SystemUnderTest, nodes: Sequence[str], fault: Fault) -> Undo:
    """Connections between these nodes and all others are reset, and data is held back, at random."""
    proxy, ways = _proxy(system), _between(nodes, [CLIENTS, *_others(system, nodes)])
    for place, way in enumerate(ways):
        proxy.flaky(*way, fault.pick + place, RESETS, HOLDS)

    def undo() -> None:
        for way in ways:
            proxy.flaky(*way, 0, 0.0, 0.0)

    return undo


def reconnect_storm(system: SystemUnderTest, nodes: Sequence[str], fault: Fault) -> None:
    """All connections of clients to these nodes are reset at once."""
    proxy = _proxy(system)
    found = sum(proxy.reset(CLIENTS, node) for node in nodes)
    system.note(f"{found} connections of clients reset")
