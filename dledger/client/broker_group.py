"""A broker group as a client sees it: its addresses, and where its leader probably is. Pure."""

from __future__ import annotations

from collections.abc import Mapping

LEADER_ID = 0
"""Broker id of the leader in routes (RocketMQ's MixAll.MASTER_ID)."""
LEADER_HINT = "leaderAddr"
"""Header field of an answer with code 14 SERVICE_NOT_AVAILABLE. It holds the leader's address as the
answering broker knows it."""


class BrokerGroup:
    """Addresses of the brokers with one name, and which of them is believed to be the leader.

    NameServers learn of a leader change late. So what a broker itself said (a hint, an accepted message)
    counts more than their answer, until their answer *changes*, because a change means that the new leader
    has registered.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.addresses: dict[int, str] = {}
        self.leader: str | None = None
        """Address that writes are sent to; None while no leader is known."""

    @property
    def registered_leader(self) -> str | None:
        """The leader's address according to the NameServers; None if they know no leader."""
        return self.addresses.get(LEADER_ID)

    def registered(self, addresses: Mapping[int, str]) -> bool:
        """Store the addresses that a NameServer returned. Returns True if that changed the leader."""
        before, old = self.registered_leader, self.leader
        self.addresses = dict(sorted(addresses.items()))
        now = self.registered_leader
        if now is not None and now != before:
            self.leader = now
        return self.leader != old and self.leader is not None

    def accepted(self, address: str) -> bool:
        """Note that the broker at this address took a write, so it is the leader. Returns True if it was not
        known as the leader."""
        news = self.leader != address
        self.leader = address
        return news

    def failed(self, address: str) -> None:
        """Note that the broker at this address cannot be reached or is no leader."""
        if self.leader == address:
            self.leader = None

    def candidates(self, last: str | None = None) -> list[str]:
        """Addresses at which the leader may be, the likeliest first. `last`, the address that has just
        failed, comes at the end."""
        ordered = [self.leader, *self.addresses.values()]
        found = [address for address in dict.fromkeys(ordered) if address is not None and address != last]
        if last is not None:
            found.append(last)
        return found

    def address_of(self, broker_id: int) -> str | None:
        """Address of the broker to read from. It is the leader's address if no broker has this id."""
        if broker_id != LEADER_ID and broker_id in self.addresses:
            return self.addresses[broker_id]
        return self.leader or self.registered_leader
