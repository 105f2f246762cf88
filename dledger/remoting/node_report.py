"""The answer to 28011 SHOW_NODE, which RocketMQ does not have."""

from __future__ import annotations

import msgspec


class PeerReport(msgspec.Struct, frozen=True):
    """What a leader knows of another node of its group."""

    connected: bool = False
    lag_entries: int | None = None
    """Entries of the leader's log that are not durable at the node."""


class LogReport(msgspec.Struct, frozen=True):
    """The replicated log of a node: a part of its status."""

    voters: tuple[str, ...] = ()
    learners: tuple[str, ...] = ()
    peers: dict[str, PeerReport] = msgspec.field(default_factory=dict)
    committed_index: int | None = None
    durable_index: int | None = None
    end_index: int | None = None
    used_ratio: float | None = None
    """Share of the disk that is in use, 0 to 1."""
    flush_ms_mean: float | None = None
    flush_ms_max: float | None = None
    loop_lag_ms_max: float | None = None
    statements: tuple[str, ...] = ()


class RoleChange(msgspec.Struct, frozen=True):
    """A change of a node's role, its term or the leader that it knows. `why` is empty if only the leader
    changed."""

    at_ms: int
    role: str
    term: int
    leader: str | None = None
    why: str = ""


class NodeReport(msgspec.Struct, frozen=True):
    """Answer to 28011 SHOW_NODE: the health of a node as `/health` shows it, the addresses of the brokers of
    its group by node id (empty for one that is not connected), and its last changes of role, the oldest
    first."""

    healthy: bool = False
    id: str = ""
    role: str = "UNKNOWN"
    term: int | None = None
    leader: str | None = None
    serving: bool = False
    applied_index: int | None = None
    reasons: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    members: dict[str, str] = msgspec.field(default_factory=dict)
    role_changes: tuple[RoleChange, ...] = ()
    node: LogReport = msgspec.field(default_factory=LogReport)
