"""The state of groups as tables, as JSON and as an exit code. It is read from the processes of a
directory, or from a NameServer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

from dledger.formats.addresses import split_addresses
from dledger.local import wire
from dledger.local.cluster import ClusterError, LocalCluster

FINE, WARNINGS, ERRORS, NOT_SEEN = 0, 1, 2, 4
"""Exit codes, the same as those of the audit."""


class NothingSeen(ClusterError):
    """Raised when there is no group to look at; the text says where it was looked for."""


@dataclass(frozen=True)
class Seen:
    """The state of groups as it was found: `found` is for programs, `lines` are for people; the problems
    and the exit code follow from it."""

    found: dict[str, Any]
    lines: list[str]
    problems: list[str] = field(default_factory=list)
    code: int = FINE

    def as_json(self) -> dict[str, Any]:
        """Return the state as one JSON object."""
        return {**self.found, "problems": self.problems}


def table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> list[str]:
    """Return lines with aligned columns; None is shown as a dash."""
    cells = [tuple(columns), *(tuple("-" if value is None else str(value) for value in row) for row in rows)]
    widths = [max(len(row[at]) for row in cells) for at in range(len(columns))]
    return [
        "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in cells
    ]


def status_lines(status: dict[str, Any]) -> list[str]:
    """Return `LocalCluster.status()` as lines for people."""
    lines = []
    for server in status["namesrv"]:
        whose = f"pid {server['pid'] or '-'}" if server["own"] else "of others"
        lines.append(f"namesrv {server['addr']}  {whose}")
    for group in status["groups"]:
        lines.append(f"group {group['name']}  leader {group['leader'] or '-'}")
        columns = ("id", "role", "term", "end_index", "committed_index", "pid", "addr", "store")
        lines += table(columns, [[node[name] for name in columns] for node in group["nodes"]])
    return lines


def look_at_directory(cluster: LocalCluster) -> Seen:
    """Return the state of a group of this machine: its processes, what they report, and whether clients
    find it."""
    status = cluster.status()
    (group,) = status["groups"]
    if not cluster.running():
        return Seen(
            status, status_lines(status), ["nothing runs: start the group with `dledger up`"], NOT_SEEN
        )
    problems = []
    for node in group["nodes"]:
        if node["role"] == "DOWN":
            problems.append(f"{node['id']} is down: `dledger restart` starts it again")
        elif node["role"] == "SILENT":
            problems.append(f"{node['id']} runs (pid {node['pid']}) and does not answer")
    if group["leader"] is None:
        problems.insert(0, "there is no leader: nothing can be sent or read until a majority is up")
        return Seen(status, status_lines(status), problems, ERRORS)
    if unshown := cluster.unshown(group["leader"]):
        problems.append(f"clients do not find the group: {unshown}")
    return Seen(status, status_lines(status), problems, WARNINGS if problems else FINE)


def look_at_namesrv(namesrv: str, only: str | None) -> Seen:
    """Return the brokers that NameServers know, and whether these brokers answer. `only` names the one
    group to look at.

    Raises NothingSeen if no NameServer answers, or none knows any broker, or none knows the group `only`.
    """
    servers: list[dict[str, Any]] = []
    told: dict[str, dict[str, wire.Registered]] = {}
    problems = []
    for address in split_addresses(namesrv):
        try:
            told[address] = wire.registered(address)
        except wire.NoAnswer as error:
            problems.append(f"NameServer {error}")
            servers.append({"addr": address, "answers": False})
            continue
        servers.append({"addr": address, "answers": True})
    known = wire.merged(told.values())
    if not told:
        raise NothingSeen(f"no NameServer answers: {'; '.join(problems)}")
    if not known:
        raise NothingSeen(f"no broker is registered at {namesrv}")
    if only is not None and only not in known:
        near = get_close_matches(only, known, 1)
        hint = f"did you mean {near[0]!r}?" if near else f"the groups are {', '.join(known)}"
        raise NothingSeen(f"no group {only!r} is registered at {namesrv}: {hint}")
    for address, there in told.items():
        if lacks := [name for name in known if name not in there and only in (None, name)]:
            problems.append(
                f"NameServer {address} does not list {', '.join(lacks)}, as others do: clients that "
                "ask only this one do not find the group (brokers register with all NameServers in "
                "namesrvAddr)"
            )
    code = WARNINGS if problems else FINE
    groups = []
    for name, group in known.items():
        if only in (None, name):
            row, wrong = _look_at_group(name, group)
            groups.append(row)
            problems += wrong
            code = max(code, (WARNINGS if wrong else FINE) if row["leader"] else ERRORS)
    lines = [f"namesrv {one['addr']}{'' if one['answers'] else '  does not answer'}" for one in servers]
    rows = [
        (
            group["name"],
            group["cluster"],
            next((node["addr"] for node in group["nodes"] if node["id"] == "0"), None),
            ", ".join(node["addr"] for node in group["nodes"] if node["id"] != "0") or None,
        )
        for group in groups
    ]
    lines += table(("group", "cluster", "leader", "followers"), rows)
    return Seen({"namesrv": servers, "groups": groups}, lines, problems, code)


def _look_at_group(name: str, group: wire.Registered) -> tuple[dict[str, Any], list[str]]:
    """Return the state of one group, and its problems. `leader` is None if no leader is registered, or if
    the leader does not answer."""
    nodes = [
        {"id": number, "addr": address, "answers": wire.listens(address)}
        for number, address in sorted(group.addresses.items(), key=lambda item: int(item[0]))
    ]
    wrong = [f"{name}: {node['addr']} does not answer from here" for node in nodes if not node["answers"]]
    leader = next((node["addr"] for node in nodes if node["id"] == "0" and node["answers"]), None)
    if "0" not in group.addresses:
        wrong.insert(0, f"{name}: no leader is registered")
    return {"name": name, "cluster": group.cluster, "leader": leader, "nodes": nodes}, wrong
