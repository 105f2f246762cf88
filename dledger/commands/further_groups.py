"""Several broker groups on this machine that share one NameServer: `dledger up --groups N`.

The first group, with the NameServer, has its files in the directory itself; each further group has a
directory below `groups/` that is named after it. A topic that is created in the cluster has queues in each
of the groups. Each group has a leader and a log of its own, and uses cores of its own.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from string import ascii_lowercase

from dledger.commands.group_actions import Wish, bring_up
from dledger.commands.group_status import ERRORS, FINE, NOT_SEEN, Seen, look_at_directory
from dledger.local import wire
from dledger.local.cluster import ClusterError, LocalCluster
from dledger.local.ports import CLAIM
from dledger.local.spec import DEFAULT_BASE_PORT, LAST_BASE_PORT, MIB, find_base_port

FOLDER = "groups"
FIRST_BASE_PORT = DEFAULT_BASE_PORT + CLAIM
MAX_GROUPS = 16
"""Largest number of groups on one machine. More are refused as useless: each group needs a core, and three
processes."""


def groups_of(directory: Path) -> list[LocalCluster]:
    """Return all groups of a directory, the one with the NameServer first. Raises NoGroup or ClusterError."""
    first = LocalCluster.open(directory)
    below = sorted(path.parent for path in (first.directory / FOLDER).glob("*/cluster.json"))
    return [first, *(LocalCluster.open(path) for path in below)]


def find_group(directory: Path, name: str | None) -> LocalCluster:
    """Return the group with this name, or the first group if no name is given. Raises ClusterError, which
    lists the existing names, if there is none."""
    groups = groups_of(directory)
    found = [group for group in groups if name in (None, group.spec.group)]
    if not found:
        known = ", ".join(group.spec.group for group in groups)
        raise ClusterError(f"there is no group {name!r} in {groups[0].directory}; the groups are {known}")
    return found[0]


def bring_up_all(
    directory: Path, wish: Wish, groups: int | None, timeout_s: float, tell: Callable[[str], None]
) -> tuple[list[LocalCluster], list[str]]:
    """Start all groups of the directory, and create new ones until there are `groups`. `wish` holds for
    all of them.

    Returns all groups, and the names of the processes that were started. Raises ClusterError if that is
    impossible.
    """
    if groups is not None and not 1 <= groups <= MAX_GROUPS:
        raise ClusterError(f"--groups {groups}: give a number from 1 to {MAX_GROUPS}")
    there = len(groups_of(directory)) if LocalCluster.known(directory) else 0
    if groups is not None and groups < there:
        raise ClusterError(
            f"--groups {groups}: {directory} has {there}, and what they hold stays; "
            f"move it to others and remove a directory of {directory / FOLDER}, or give another --dir"
        )
    first, started = bring_up(directory, wish, timeout_s, tell)
    found = groups_of(directory)
    taken = {group.spec.group for group in found} | _registered(first)
    names = further_names(first.spec.group, MAX_GROUPS, sorted(taken))
    places = [(group.directory, group.spec.group) for group in found[1:]]
    while len(places) + 1 < (groups or there):
        name = names.pop(0)
        places.append((first.directory / FOLDER / name, name))
    after = _behind(first, 0)
    for place, name in places:
        tell(f"group {name}")
        more = replace(
            wish, group=name, cluster=first.spec.cluster, namesrv=first.namesrv_addr, base_port=None
        )
        if not LocalCluster.known(place):
            more = replace(
                more,
                nodes=first.spec.nodes,
                base_port=find_base_port(first.spec.nodes, after),
                segment_mb=first.spec.segment_size // MIB,
                settings=tuple(f"{key}={value}" for key, value in first.spec.broker.items()),
            )
        group, also = bring_up(place, more, timeout_s, tell)
        after = _behind(group, after)
        started += [f"{name}/{process}" for process in also]
    return groups_of(directory), started


def _registered(group: LocalCluster) -> set[str]:
    """Return the names of all groups that the NameServer of this group knows, including groups in other
    directories."""
    try:
        return set(wire.registered_anywhere(group.spec.namesrv_addresses))
    except wire.NoAnswer:
        return set()


def _behind(group: LocalCluster, after: int) -> int:
    """Return the port from which to look for free ports: it is above the ports of this group, and at least
    `after`. If that is too high, the search begins again at FIRST_BASE_PORT."""
    port = max(after, group.spec.base_port + CLAIM)
    return port if port < LAST_BASE_PORT else FIRST_BASE_PORT


def further_names(first: str, count: int, taken: Sequence[str]) -> list[str]:
    """Names of further groups: the next letters after `broker-a`, or numbers.

    >>> further_names("broker-a", 2, ["broker-a"]), further_names("east", 2, ["east", "east-2"])
    (['broker-b', 'broker-c'], ['east-3', 'east-4'])
    """
    lettered = re.fullmatch(r"(.*-)([a-z])", first)
    if lettered is not None:
        letters = ascii_lowercase[ascii_lowercase.index(lettered[2]) + 1 :]
        names = [lettered[1] + letter for letter in letters]
    else:
        names = []
    stem = first if lettered is None else lettered[1].rstrip("-")
    names += [f"{stem}-{number}" for number in range(2, count + 2 + len(taken))]
    return [name for name in names if name not in taken][:count]


def look_at_all(groups: Sequence[LocalCluster]) -> Seen:
    """Return the state of all these groups."""
    seen = [look_at_directory(group) for group in groups]
    if len(seen) == 1:
        return seen[0]
    first = seen[0]
    lines, problems = list(first.lines), []
    for group, one in zip(groups, seen, strict=True):
        if one is not first:
            lines += [line for line in one.lines if not line.startswith("namesrv ")]
        problems += [f"{group.spec.group}: {problem}" for problem in one.problems]
    found = {**first.found, "groups": [row for one in seen for row in one.found["groups"]]}
    return Seen(found, lines, problems, _verdict([one.code for one in seen]))


def _verdict(codes: Sequence[int]) -> int:
    """Return the exit code for all groups together. It is NOT_SEEN if no group runs; a group that does not
    run beside others counts as a group without a leader."""
    if all(code == NOT_SEEN for code in codes):
        return NOT_SEEN
    return max((ERRORS if code == NOT_SEEN else code for code in codes), default=FINE)
