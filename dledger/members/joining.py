"""How a new store becomes part of a group (safety.md S18), and which facts about the members are saved on
disk."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping

from dledger.context.node_context import NodeContext
from dledger.election.identity import form_or_join
from dledger.errors import PASSING
from dledger.files.identity import StoreFiles
from dledger.formats.store_files import Identity
from dledger.members.effects import MemberEffects

FOUNDING_S = 10.0
"""Time, in seconds, for which a new node waits for the others before it logs which of them are missing."""


class Joining:
    """Makes one new node join or form a group, and saves what it knows of the members. Files are written in a
    task of its own, so that messages do not wait."""

    def __init__(self, context: NodeContext, store: StoreFiles, membership: MemberEffects) -> None:
        self._say = context.env.log.child(f"node.{context.config.self_id}")
        self._config = context.config
        self._log = context.log
        self._members = context.members
        self._peers = context.peers
        self._elector = context.elector
        self._store = store
        self._membership = membership
        self._wake = asyncio.Event()

    def wake(self) -> None:
        """Check again, because a peer connected, or there is something to save."""
        self._wake.set()

    async def run(self) -> None:
        """Form or join a group, and record the members, until cancelled."""
        loop = asyncio.get_running_loop()
        patience: float | None = loop.time() + FOUNDING_S
        waits = False
        while True:
            try:
                async with asyncio.timeout_at(patience):
                    await self._wake.wait()
            except TimeoutError:
                patience = None
                for reason in self.waits_for():
                    self._say.warning(reason)
                continue
            self._wake.clear()
            try:
                formed = form_or_join(
                    self._members.identity, self._config.peers, self._peers.hellos, self._peers.founders()
                )
                if formed is not None:
                    await self._become(formed)
                await self.save_configs()
                if self._elector.may_vote:
                    await self._store.clear_poison()
                waits = False
            except OSError as error:
                if error.errno not in PASSING:
                    raise
                if not waits:
                    self._say.warning("identity or members not saved, trying again", error=error)
                waits = True
                await asyncio.sleep(self._config.disk_check_s)
                self._wake.set()

    async def save_configs(self) -> None:
        """Save durably which entries are configurations."""
        noted = [(index, self._log.term_of(index) or 0, config) for index, config in self._members.noted]
        await self._store.save_configs(noted, self._members.unsure)

    async def _become(self, identity: Identity) -> None:
        await self._store.save_identity(identity)
        self._say.info("group formed or joined", cluster=identity.cluster, members=identity.members)
        self._membership.founded(identity)
        self._peers.refresh()

    def waits_for(self) -> Iterator[str]:
        """Yield why this new node belongs to no group yet. Only a node that reaches all others can form a
        group."""
        identity = self._members.identity
        if identity.cluster or not identity.incarnation:
            return
        for reason in self.apart(self._config.peers):
            yield f"no group yet: {reason}"

    def apart(self, peers: Mapping[str, str]) -> Iterator[str]:
        """Yield why there is no connection to some of these peers: one side refuses, or the peer cannot be
        reached."""
        for peer, address in sorted(peers.items()):
            if peer == self._config.self_id or self._peers.connected(peer):
                continue
            heard = (
                "it reaches this node: check dLegerPeers"
                if peer in self._peers.hellos
                else "and has not connected to this node"
            )
            yield self._peers.refusals.get(peer) or f"{peer} is not reached at {address}, {heard}"
