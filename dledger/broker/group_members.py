"""The members of the group, with the addresses that clients use."""

from __future__ import annotations

from dledger.broker.config import BrokerConfig
from dledger.broker.ports import Node
from dledger.broker.status_values import texts
from dledger.runtime.live_settings import LiveSettings


class GroupMembers:
    """Answers questions about the other brokers of the group from what the node knows."""

    def __init__(self, node: Node, settings: LiveSettings[BrokerConfig]) -> None:
        self._node = node
        self._settings = settings

    def addresses(self) -> dict[str, str]:
        """Return the address for clients of each broker, by node id. The address is empty if it is not known
        yet."""
        status, config = self._node.status(), self._settings.now
        nodes = [*texts(status.get("voters")), *texts(status.get("learners"))] or list(config.peers)
        known = {node: self._node.peer_meta(node).get("client_addr", "") for node in nodes}
        return {**known, config.self_id: config.client_addr}

    def older_ips(self) -> set[str]:
        """Return the IP addresses of connected members whose programs are too old to make proofs."""
        known = {self._node.peer_meta(peer).get("store_ip", "") for peer in self._node.peers_without_proofs}
        return known - {""}
