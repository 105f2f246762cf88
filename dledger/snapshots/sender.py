"""The leader's side of an install. A leader sends a snapshot, piece by piece, to a peer that needs entries
before the beginning of the leader's log.

The whole stream is read once, checked, and kept in memory as long as some peer needs it. The peer asks for
one piece after another, so only one piece is in flight at a time.
"""

from __future__ import annotations

import asyncio
from collections import deque

from dledger.context.node_context import NodeContext
from dledger.formats.snapshot import pack_stream
from dledger.messages import InstallResponse, InstallSnapshot
from dledger.protocol import PROTOCOL_WITH_INSTALL
from dledger.replication.install import Offer
from dledger.replication.leader import LeaderReplication, PushState, SendInstall
from dledger.runtime import Lane
from dledger.snapshots.catalog import SnapshotCatalog, offer_of


class InstallSender:
    """Sends snapshots to peers (implements `dledger.peers.replicator.Installs`)."""

    def __init__(self, context: NodeContext, catalog: SnapshotCatalog) -> None:
        self._env = context.env
        self._log = context.log
        self._peers = context.peers
        self._replicator = context.replicator
        self._catalog = catalog
        self._piece_bytes = context.config.push_bytes
        self._waiting: deque[tuple[LeaderReplication, SendInstall]] = deque()
        self._wake = asyncio.Event()
        self._loaded: tuple[Offer, bytes] | None = None
        self._complained: dict[str, str] = {}
        self.started: int = 0
        self.bytes: int = 0

    def offer(self) -> Offer | None:
        """The snapshot to send: the one at the beginning of the log, or else the next usable one. None if
        there is none."""
        manifest = self._catalog.lowest(self._log.begin_pos)
        return None if manifest is None or manifest.index < 0 else offer_of(manifest)

    def send_install(self, leader: LeaderReplication, effect: SendInstall) -> None:
        """Send a piece of a snapshot now, or as soon as the snapshot has been read."""
        hello = self._peers.hellos.get(effect.peer)
        if hello is not None and hello.protocol_max < PROTOCOL_WITH_INSTALL:
            self._complain(
                effect.peer, "its version does not support snapshots: upgrade it, or empty its store"
            )
            return
        if effect.offset < 0:
            self.started += 1
            self._env.log.info(
                "peer is behind this log: installing a snapshot",
                peer=effect.peer,
                index=effect.offer.index,
                size=effect.offer.total,
            )
            self._send(leader, effect, b"")
        elif self._loaded is not None and self._loaded[0] == effect.offer:
            self._send(leader, effect, self._loaded[1])
        else:
            self._waiting.append((leader, effect))
            self._wake.set()

    def no_snapshot(self, peer: str) -> None:
        """Log that a peer needs a snapshot and this leader has none that would help it; the same text is
        logged once."""
        self._complain(
            peer, f"it needs entries before {self._log.first_index}, and no snapshot here would help it"
        )

    def forget(self) -> None:
        """Drop the pieces that wait to be sent, and the stream in memory. Called when the leadership has
        ended."""
        self._waiting.clear()
        self._loaded = None

    def on_response(self, peer: str, message: InstallResponse) -> None:
        """Handle a peer's answer to a piece, in the term of this leader."""
        leader = self._replicator.leader
        if leader is not None:
            self._replicator.perform(leader.install_response(peer, message))
            self.forget_if_idle(leader)

    def forget_if_idle(self, leader: LeaderReplication) -> None:
        """Drop the stream in memory unless a peer still needs it. Called when a peer has everything or is
        gone."""
        if not any(progress.state is PushState.INSTALL for progress in leader.progress.values()):
            self._loaded = None

    async def run(self) -> None:
        """Read the snapshots that peers need and send pieces of them, until the task is cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._waiting:
                leader, effect = self._waiting.popleft()
                if self._replicator.leader is not leader or not self._wanted(leader, effect):
                    continue
                stream = await self._read(effect.offer)
                if self._replicator.leader is not leader or not self._wanted(leader, effect):
                    continue
                if stream is None:
                    self._replicator.perform(leader.install_failed(effect.peer, effect.offer.index))
                else:
                    self._loaded = (effect.offer, stream)
                    self._send(leader, effect, stream)

    def _wanted(self, leader: LeaderReplication, effect: SendInstall) -> bool:
        progress = leader.progress.get(effect.peer)
        if progress is None or progress.state is not PushState.INSTALL:
            return False
        return progress.offer == effect.offer

    async def _read(self, offer: Offer) -> bytes | None:
        if self._loaded is not None and self._loaded[0] == offer:
            return self._loaded[1]
        manifest = next((m for m in self._catalog.manifests if m.digest == offer.digest), None)
        parts = None if manifest is None else await self._catalog.load(manifest)
        if manifest is None or parts is None:
            return None
        return await self._env.workers.run(Lane.DISK, pack_stream, manifest, parts)

    def _send(self, leader: LeaderReplication, effect: SendInstall, stream: bytes) -> None:
        offer = effect.offer
        data = stream[effect.offset : effect.offset + self._piece_bytes] if effect.offset >= 0 else b""
        self.bytes += len(data)
        self._peers.send(
            effect.peer,
            InstallSnapshot(
                leader.term,
                leader.self_id,
                offer.index,
                offer.term,
                offer.pos,
                offer.chain,
                offer.total,
                effect.offset,
                offer.digest,
                data,
            ),
        )

    def _complain(self, peer: str, text: str) -> None:
        if self._complained.get(peer) != text:
            self._complained[peer] = text
            self._env.log.error("peer cannot be brought up to date", peer=peer, why=text)
