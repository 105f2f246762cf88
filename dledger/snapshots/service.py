"""Puts snapshots, installs and retention of one node together."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from dledger.context.applier import Applier
from dledger.context.node_context import NodeContext
from dledger.context.node_events import NodeEvents
from dledger.errors import EXIT_STORE, NodeFailed
from dledger.formats.snapshot import Manifest
from dledger.formats.store_files import CorruptFile
from dledger.messages import InstallResponse, InstallSnapshot, Message
from dledger.snapshots.boundary import BoundarySnapshots
from dledger.snapshots.catalog import SnapshotCatalog
from dledger.snapshots.receiver import InstallReceiver
from dledger.snapshots.retainer import Retainer
from dledger.snapshots.sender import InstallSender

_ADVICE = "delete this node's store directory and restart it to refill it from its peers"


class Snapshots:
    """The snapshots of one node. Call `open` before the log is opened and `start_host` after that. Run
    `tasks` as long as the node runs."""

    def __init__(
        self, context: NodeContext, applier: Applier, install_begins: Callable[[], None], events: NodeEvents
    ) -> None:
        config = context.config
        self._env = context.env
        self._log = context.log
        self._host = context.host
        self._replicator = context.replicator
        self.catalog: SnapshotCatalog = SnapshotCatalog(
            context.env, config.node_dir, config.retention.snapshots_kept
        )
        self.boundary: BoundarySnapshots = BoundarySnapshots(context, self.catalog, self._published)
        self.sender: InstallSender = InstallSender(context, self.catalog)
        self.receiver: InstallReceiver = InstallReceiver(
            context, applier, install_begins, self.catalog, events
        )
        self.retainer: Retainer = Retainer(context, applier, self.catalog)
        context.replicator.installs = self.sender

    # Start

    async def open(self) -> None:
        """Find the snapshots of the store. Raises OSError, or NodeFailed if the store cannot be used."""
        catalog = self.catalog
        try:
            await catalog.open()
        except (CorruptFile, ValueError) as error:
            raise NodeFailed(
                f"the saved beginning of the log cannot be read: {error}: {_ADVICE}", EXIT_STORE
            ) from error
        await self.receiver.open()
        if catalog.replacing and (catalog.begins is None or not catalog.has(catalog.begins)):
            raise NodeFailed(
                f"the install of a snapshot was interrupted, and the snapshot in {catalog.directory} "
                f"is damaged: {_ADVICE}",
                EXIT_STORE,
            )

    async def start_host(self, applied: int) -> int:
        """Give the host the state before the beginning of the log, and return the index up to which the host
        then holds the state. Call it after `Host.open`."""
        log, catalog = self._log, self.catalog
        for manifest in catalog.manifests:
            if not self._fits(manifest):
                # Published for an install that did not come to pass, or ahead of a log that lost its tail.
                self._env.log.warning("snapshot does not match the log and was removed", index=manifest.index)
                await catalog.discard(manifest)
        await catalog.prune(log.begin_pos)
        restored = -1
        if catalog.replacing or applied < log.first_index - 1:
            restored = applied = await self._restore()
        if catalog.replacing:
            await catalog.say_begins(log.begin_pos)
        begins = catalog.lowest(log.begin_pos)
        if log.begin_pos > 0 and begins is not None and begins.index != restored and begins.index <= applied:
            parts = await catalog.load(begins)
            if parts is not None:
                await self._host.log_begins(parts, begins.index, begins.pos)
        return applied

    async def _restore(self) -> int:
        while (manifest := self.catalog.lowest(self._log.begin_pos)) is not None:
            parts = await self.catalog.load(manifest)
            if parts is not None:
                self._env.log.info("state restored from a snapshot", index=manifest.index)
                await self._host.restore(parts, manifest.index, manifest.pos)
                return manifest.index
        raise NodeFailed(
            f"the log begins at index {self._log.first_index}, and neither the derived state nor a snapshot "
            f"in {self.catalog.directory} reaches back to it: {_ADVICE}",
            EXIT_STORE,
        )

    def base_config(self) -> tuple[int, bytes] | None:
        """Index and configuration from the snapshot at which the log begins (S19). None if the log begins
        with the first entry, or no snapshot has the configuration."""
        begins = self._log.begin_pos
        fitting = (one for one in self.catalog.manifests if one.pos >= begins and self._fits(one))
        manifest = next(fitting, None)
        if manifest is None or begins == 0 or not manifest.config:
            return None
        return manifest.index, manifest.config

    def _fits(self, manifest: Manifest) -> bool:
        """Whether the log reaches the snapshot. The snapshot of an install that is not done yet is ahead of
        the log."""
        log = self._log
        return manifest.index <= log.last_index and log.term_of(manifest.index) in (manifest.term, None)

    # Work

    def tasks(self) -> list[tuple[str, Coroutine[Any, Any, None]]]:
        """The tasks to run with the node, as (name, coroutine)."""
        return [
            ("snapshots", self.boundary.run()),
            ("install-send", self.sender.run()),
            ("install", self.receiver.run()),
            ("retention", self.retainer.run()),
        ]

    def receive(self, peer: str, message: InstallSnapshot | InstallResponse) -> None:
        """Handle a message of an install in the current term."""
        if isinstance(message, InstallSnapshot):
            self.receiver.receive(peer, message)
        else:
            self.sender.on_response(peer, message)

    def defers(self, peer: str, message: Message) -> bool:
        """Whether a push has to wait because the log is being replaced. If so, the push is kept, and handled
        afterwards."""
        if self.receiver.replacing:
            self.receiver.defer(peer, message)
        return self.receiver.replacing

    def status(self) -> dict[str, object]:
        """Figures for the node's status."""
        newest = self.catalog.manifests[-1:]
        return {
            "begin_pos": self._log.begin_pos,
            "snapshots": len(self.catalog.manifests),
            "snapshot_index": newest[0].index if newest else -1,
            "snapshots_skipped": self.boundary.skipped,
            "installs_sent": self.sender.started,
            "installs_done": self.receiver.done,
            "installing": self.receiver.replacing,
        }

    def _published(self) -> None:
        self.retainer.wake()
        leader = self._replicator.leader
        if leader is not None:
            self._replicator.perform(leader.offers_changed())
