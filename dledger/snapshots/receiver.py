"""The follower's side of an install (safety.md S20).

Pieces are appended to `snapshots/incoming-<index>/stream`. Each piece is fsynced before it is acknowledged,
so that the transfer can resume after a crash or with another leader. When all pieces are there, these steps
follow:

1. The stream is checked and published as a snapshot of this store. So far the old state is untouched.
2. The file `begins` says `replace`. From now on the old log no longer counts, and after a restart the node
   continues with step 3.
3. The log is emptied and begins after the snapshot. The host restores its state from the snapshot.
4. The file `begins` no longer says `replace`, and the leader is answered.

Pushes that arrive during steps 2-4 wait, and the node does not vote in that time.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from dledger.context.applier import Applier
from dledger.context.node_context import NodeContext
from dledger.context.node_events import NodeEvents
from dledger.errors import DISK_IS_FULL, PASSING, refused_by_system
from dledger.formats.snapshot import Manifest, unpack_stream
from dledger.formats.store_files import CorruptFile, decode_json, encode_json
from dledger.messages import Code, InstallResponse, InstallSnapshot, Message
from dledger.replication.install import Offer
from dledger.runtime import Lane
from dledger.runtime.atomic_file import read_file, write_synced
from dledger.runtime.files import Files
from dledger.snapshots.catalog import SnapshotCatalog, base_of

MAX_TOTAL = 4 * 1024 * 1024 * 1024
"""Limit, in bytes, of the stream of a snapshot. A larger one is refused."""
MAX_WAITING = 8
"""Largest number of pieces that wait while one is written. The leader has one piece in flight; further ones
come from earlier leaders."""
NO_ROOM_PAUSE_S = 1.0
"""Seconds after which the leader is asked again for a piece that found no room on the disk."""
_PREFIX = "incoming-"
_STREAM = "stream"
_OFFER = "offer"


@dataclass
class _Incoming:
    offer: Offer
    directory: str
    size: int


class InstallReceiver:
    """Receives installs from leaders. `receive` accepts pieces, and the task `run` writes them and installs
    the snapshot."""

    def __init__(
        self,
        context: NodeContext,
        applier: Applier,
        install_begins: Callable[[], None],
        catalog: SnapshotCatalog,
        events: NodeEvents,
    ) -> None:
        self._env = context.env
        self._log = context.log
        self._host = context.host
        self._peers = context.peers
        self._held = context.held
        self._elector = context.elector
        self._replicator = context.replicator
        self._applier = applier
        self._install_begins = install_begins
        self._catalog = catalog
        self._events = events
        self._incoming: _Incoming | None = None
        self._waiting: deque[tuple[str, InstallSnapshot]] = deque(maxlen=MAX_WAITING)
        self._wake = asyncio.Event()
        self._deferred: list[tuple[str, Message]] = []
        self.replacing: bool = False
        """True while the log is being replaced. Meanwhile pushes must be deferred."""
        self.done: int = 0

    # Start

    async def open(self) -> None:
        """Find an unfinished transfer. Raises OSError."""
        self._incoming = await self._find_incoming()

    async def _find_incoming(self) -> _Incoming | None:
        run, files = self._env.workers.run, self._env.files
        best: _Incoming | None = None
        for name in await run(Lane.DISK, files.listdir, self._catalog.directory):
            if not name.startswith(_PREFIX):
                continue
            directory = f"{self._catalog.directory}/{name}"
            found = await run(Lane.DISK, _read_incoming, files, directory)
            if found is None or best is not None:
                await run(Lane.DISK, files.rmtree, directory)
            else:
                best = found
        return best

    # Pieces

    def receive(self, peer: str, message: InstallSnapshot) -> None:
        """Accept a piece from the leader of the current term."""
        self._waiting.append((peer, message))
        self._wake.set()

    def defer(self, peer: str, message: Message) -> None:
        """Keep a push that arrived while the log is being replaced. It is handled afterwards."""
        self._deferred.append((peer, message))

    async def run(self) -> None:
        """Write pieces, and install complete snapshots, until the task is cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._waiting:
                peer, message = self._waiting.popleft()
                try:
                    await self._piece(peer, message)
                except OSError as error:
                    if error.errno not in DISK_IS_FULL or self.replacing:
                        raise refused_by_system("cannot write an incoming snapshot", error) from error
                    self._env.log.error("no room for an incoming snapshot, trying again", error=error)
                    await asyncio.sleep(NO_ROOM_PAUSE_S)
                    # Never answer with the total, which means "installed". When the last byte is asked for
                    # again, the snapshot is published.
                    size = 0 if self._incoming is None else self._incoming.size
                    self._answer(peer, message, min(size, message.total - 1))

    async def _piece(self, peer: str, message: InstallSnapshot) -> None:
        if message.term != self._elector.term:
            return  # from the leader of an earlier term
        if self._have(message):
            await self._forget_incoming()
            self._answer(peer, message, message.total)
            return
        offer = Offer(
            message.index, message.entry_term, message.pos, message.chain, message.total, message.digest
        )
        if not 0 < offer.total <= MAX_TOTAL or offer.index < 0 or offer.pos % self._log.segment_size:
            self._env.log.error("impossible snapshot refused", peer=peer, index=offer.index, size=offer.total)
            self._answer(peer, message, 0, Code.UNEXPECTED_ARGUMENT)
            return
        incoming = self._incoming
        if incoming is None or incoming.offer != offer:
            incoming = await self._begin(offer)
        if message.data and message.offset == incoming.size < offer.total:
            data = bytes(message.data)[: offer.total - incoming.size]
            path = f"{incoming.directory}/{_STREAM}"
            await self._env.workers.run(Lane.DISK, _append_synced, self._env.files, path, data, incoming.size)
            incoming.size += len(data)
        if incoming.size < offer.total:
            self._answer(peer, message, incoming.size)
        elif await self._install(peer, message, incoming):
            self._answer(peer, message, offer.total)
        else:
            self._answer(peer, message, 0, Code.INCONSISTENT_STATE)

    def _have(self, message: InstallSnapshot) -> bool:
        """Whether the snapshot is not needed, because this log already holds the snapshot's entry, or because
        that entry is committed on this node."""
        return (
            self._log.term_of(message.index) == message.entry_term
            or message.index <= self._replicator.commit_index
        )

    def _answer(self, peer: str, message: InstallSnapshot, offset: int, code: Code = Code.SUCCESS) -> None:
        self._peers.send(peer, InstallResponse(message.term, code, message.index, offset))

    async def _begin(self, offer: Offer) -> _Incoming:
        await self._forget_incoming()
        run, files = self._env.workers.run, self._env.files
        directory = f"{self._catalog.directory}/{_PREFIX}{offer.index}"
        await run(Lane.DISK, files.rmtree, directory)
        await run(Lane.DISK, files.mkdir, directory)
        await run(Lane.DISK, write_synced, files, f"{directory}/{_STREAM}", b"")
        await run(Lane.DISK, write_synced, files, f"{directory}/{_OFFER}", encode_json(_offer_fields(offer)))
        await run(Lane.DISK, files.sync_dir, directory)
        self._incoming = _Incoming(offer, directory, 0)
        return self._incoming

    async def _forget_incoming(self) -> None:
        incoming, self._incoming = self._incoming, None
        if incoming is not None:
            await self._env.workers.run(Lane.DISK, self._env.files.rmtree, incoming.directory)

    # Installing

    async def _install(self, peer: str, message: InstallSnapshot, incoming: _Incoming) -> bool:
        """Check and publish the snapshot, then replace the log. Returns False if the received bytes are not
        the announced snapshot."""
        run, files = self._env.workers.run, self._env.files
        offer = incoming.offer
        found = await run(Lane.DISK, _read_stream, files, f"{incoming.directory}/{_STREAM}", offer)
        if isinstance(found, str):
            self._env.log.error("incoming snapshot is not what was announced", peer=peer, why=found)
            await self._forget_incoming()
            return False
        manifest, parts = found
        await self._catalog.publish(manifest, parts)
        await self._forget_incoming()
        async with self._catalog.changing, self._applier.busy:
            if self._have(message):
                return True
            await self._replace(message.leader, manifest, parts)
        return True

    async def _say_begins(self, pos: int, *, replace: bool = False) -> None:
        """Record where the log begins. If the disk has no room, this waits for as long as it takes, because
        the record may already be on the disk and cannot be taken back. A prepared segment is removed to make
        room."""
        said = False
        while True:
            try:
                return await self._catalog.say_begins(pos, replace=replace)
            except OSError as error:
                if error.errno not in PASSING:
                    raise
                if not said:
                    self._env.log.error("cannot save the beginning of the log, trying again", error=error)
                    said = True
                if error.errno in DISK_IS_FULL and await self._log.pool.give_up_one():
                    continue
            await asyncio.sleep(NO_ROOM_PAUSE_S)

    async def _replace(self, leader: str, manifest: Manifest, parts: dict[str, bytes]) -> None:
        self._env.log.warning(
            "installing a snapshot", index=manifest.index, before=self._log.last_index, pos=manifest.pos
        )
        self.replacing = True
        self._install_begins()
        await self._say_begins(manifest.pos, replace=True)
        await self._log.reset(base_of(manifest))
        await self._host.restore(parts, manifest.index, manifest.pos)
        await self._say_begins(manifest.pos)
        await self._catalog.prune(manifest.pos)
        self.done += 1
        self.replacing = False
        self._events.installed(leader, manifest)
        release = self._held.hold()
        for peer, deferred in reversed(self._deferred):
            self._held.again(peer, deferred)
        self._deferred.clear()
        release()


def _offer_fields(offer: Offer) -> dict[str, object]:
    return {
        "chain": offer.chain,
        "digest": offer.digest,
        "index": offer.index,
        "pos": offer.pos,
        "term": offer.term,
        "total": offer.total,
    }


# Below: blocking, for worker jobs.


def _append_synced(files: Files, path: str, data: bytes, at: int) -> None:
    file = files.open(path)
    try:
        file.pwritev([data], at)
        file.fdatasync()
    finally:
        file.close()


def _read_incoming(files: Files, directory: str) -> _Incoming | None:
    """Read an unfinished transfer. Returns None if it cannot be resumed."""
    try:
        data = read_file(files, f"{directory}/{_OFFER}")
        fields = None if data is None else decode_json(data)
        size = files.size(f"{directory}/{_STREAM}")
    except (CorruptFile, ValueError, FileNotFoundError):
        return None
    if fields is None or set(fields) != set(_offer_fields(Offer(0, 0, 0, 0, 0, ""))):
        return None
    offer = Offer(**fields)  # type: ignore[arg-type]
    return _Incoming(offer, directory, min(size, offer.total))


def _read_stream(files: Files, path: str, offer: Offer) -> tuple[Manifest, dict[str, bytes]] | str:
    data = read_file(files, path)
    try:
        manifest, parts = unpack_stream(data or b"")
    except (CorruptFile, ValueError) as error:
        return str(error)
    told = (manifest.index, manifest.term, manifest.pos, manifest.chain, manifest.total, manifest.digest)
    if told != (offer.index, offer.term, offer.pos, offer.chain, offer.total, offer.digest):
        return "the manifest is another snapshot's"
    return manifest, parts
