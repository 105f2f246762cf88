"""What a broker reports about itself to monitoring and to consoles: whether it is healthy, degraded and
ready."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from dledger.broker.core import Core
from dledger.broker.registration.registrar import Registrar
from dledger.broker.status_values import texts, whole
from dledger.runtime.program import open_files

SCARCE = 0.9
"""Share of a limit. A warning is given if at least this share is used."""


class Health:
    """The health of one broker."""

    def __init__(
        self, core: Core, opened: asyncio.Event, connections: Callable[[], int], registrar: Registrar
    ) -> None:
        """`opened` is set when the log is open. `connections` counts the connections of clients."""
        self._core = core
        self._opened = opened
        self._connections = connections
        self._registrar = registrar

    def report(self) -> dict[str, object]:
        """Return the object that /health shows.

        A broker is healthy if `reasons` is empty. A reason is, for example, that the log is being opened or
        that no leader is known. A healthy broker is degraded if it has `warnings`. For example, a member is
        not reachable, so that the group survives one failure less; or clocks or store times are wrong. A
        store time that is ahead of the clock is only a warning, because it affects all members at once, maybe
        for years, and each of them still works.

        `namesrv` says for each NameServer whether it accepted the last registration, and `namesrv_failures`
        why it did not. A failed registration does not make a broker unhealthy. Otherwise all brokers would
        become unhealthy at once while one NameServer is replaced.
        """
        node, store, config = self._core.node, self._core.store, self._core.settings.now
        if not self._opened.is_set():
            return {"healthy": False, "broker": config.broker_name, "reasons": ["the log is being opened"]}
        status = node.status()
        leader = node.leader_id
        reasons = texts(status.get("reasons"))
        if leader is None:
            reasons.append("no leader is known")
        warnings = [
            f"{peer} is not reached: the group can survive one failure less" for peer in _not_reached(status)
        ]
        warnings += texts(status.get("warnings"))
        warnings += self.scarce()
        lag = whole(status.get("committed_index")) - store.applied_index
        meta = {} if leader is None else node.peer_meta(leader)
        return {
            "healthy": not reasons,
            "degraded": not reasons and bool(warnings),
            "broker": config.broker_name,
            "id": config.self_id,
            "role": node.role.value,
            "term": node.term,
            "leader": leader,
            "leader_addr": meta.get("client_addr"),
            "serving": node.serving,
            "committed_index": status.get("committed_index"),
            "applied_index": store.applied_index,
            "apply_lag": lag,
            "namesrv": dict(self._registrar.registered),
            "namesrv_failures": {addr: error.remark for addr, error in self._registrar.failures.items()},
            "reasons": reasons,
            "warnings": warnings,
            "node": status,
        }

    def scarce(self) -> list[str]:
        """Return warnings about limits that are nearly reached. Beyond these limits, clients would be refused
        or files could not be opened."""
        found = []
        connections, most = self._connections(), self._core.settings.now.server.max_connections
        if connections >= SCARCE * most:
            found.append(
                f"{connections} client connections are open and the limit is {most} "
                "(maxConnections): further ones are refused"
            )
        files = open_files()
        if files is not None and files[0] >= SCARCE * files[1]:
            found.append(f"{files[0]} files and connections are open and the limit is {files[1]} (ulimit -n)")
        return found

    def why_not_ready(self) -> str:
        """Return the reason why clients should not use this broker now. It is empty if this broker leads, or
        knows the leader."""
        if not self._opened.is_set():
            return "the log is being opened"
        return "no leader is known" if self._core.node.leader_id is None else ""


def _not_reached(status: dict[str, object]) -> list[str]:
    """Return the voters to which this node has no connection."""
    peers, voters = status.get("peers"), status.get("voters")
    if not isinstance(peers, dict) or not isinstance(voters, list):
        return []
    return sorted(peer for peer in voters if peer in peers and not peers[peer]["connected"])
