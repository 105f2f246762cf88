"""The small files of a store: who it is, term and vote, checkpoint, configurations, poison marker."""

from __future__ import annotations

from dataclasses import dataclass

from dledger.config import NodeConfig
from dledger.errors import EXIT_CONFIG, EXIT_STORE, NodeFailed
from dledger.log.hard_state import HardStateFile
from dledger.log.recovery import StoreDamaged
from dledger.log.segments import SegmentError
from dledger.log.store import LogStore
from dledger.members import decode_config
from dledger.snapshots.service import Snapshots
from formats.entry import HEADER_SIZE, Kind, unpack_header
from formats.store_files import (
    CHECKPOINT_FILE,
    IDENTITY_FILE,
    LOCK_FILE,
    MEMBERS_FILE,
    POISONED_FILE,
    Checkpoint,
    CorruptFile,
    HardState,
    Identity,
    decode_checkpoint,
    decode_identity,
    decode_json,
    encode_checkpoint,
    encode_json,
)
from runtime import Env, File, Lane
from runtime.publish import publish, read_file

_BOOT_SIZE = 64


@dataclass
class Opened:
    """What a store told when it was opened."""

    identity: Identity
    hard_state: HardStateFile
    checkpoint: Checkpoint
    configs: list[tuple[int, dict[str, str]]]
    may_vote: bool
    reason: str


class StoreFiles:
    """Opens and writes the small files of `<store_dir>/dledger-<id>/`."""

    def __init__(self, env: Env, config: NodeConfig) -> None:
        self._env = env
        self._config = config
        self._dir = config.node_dir
        self._lock: File | None = None
        self._checkpoint: File | None = None
        self._hard_state: HardStateFile | None = None
        self._saved_checkpoint = Checkpoint()
        self._saved_configs: list[int] = []
        self._poisoned = False

    async def open(self, log: LogStore, snapshots: Snapshots) -> Opened:
        """Open or make the store and recover its log. NodeFailed says what is wrong and what to do."""
        run = self._env.workers.run
        try:
            await run(Lane.DISK, self._env.files.mkdir, self._dir)
            power_lost = await run(Lane.DISK, self._take_lock)
            identity, new = await self._open_identity()
            hard_state = await run(Lane.DISK, HardStateFile.open, self._env.files, self._dir)
            await run(Lane.FLUSH, hard_state.settle)
            await run(Lane.FLUSH, self._env.files.sync_dir, self._dir)
            self._hard_state = hard_state
            poison = await run(Lane.DISK, self._read, POISONED_FILE)
            self._poisoned = poison is not None
            await snapshots.open()
            found = await log.open(
                power_lost=power_lost,
                discard_above_mark=self._poisoned,
                bases=snapshots.bases,
                replace=snapshots.replace,
            )
            if hard_state.loaded is None:
                if not new and (identity.cluster or log.last_index >= 0):
                    # Both slots unreadable: this store has forgotten its votes (S7).
                    raise NodeFailed(
                        f"term and vote of {self._dir} cannot be read: delete this node's store directory "
                        "and restart it to refill it from its peers",
                        EXIT_STORE,
                    )
                await run(Lane.FLUSH, hard_state.save, HardState())
            if new:
                await self.save_identity(identity)
            await run(Lane.DISK, self._note_boot)
        except (StoreDamaged, SegmentError) as error:
            raise NodeFailed(str(error), EXIT_STORE) from error
        except OSError as error:
            raise NodeFailed(f"cannot open the store {self._dir}: {error}", EXIT_STORE) from error
        if found.cut:
            self._env.log.warning("log ends with a torn tail, cut", end=found.last_index, why=found.cut)
        data = await run(Lane.DISK, self._read, CHECKPOINT_FILE)
        checkpoint = (decode_checkpoint(data) if data else None) or Checkpoint()
        configs = await self._read_configs(log, found.configs)
        reason = (
            f"an earlier run ended with a failed write: {poison.decode(errors='replace')}" if poison else ""
        )
        return Opened(identity, hard_state, checkpoint, configs, poison is None, reason)

    def _read(self, name: str) -> bytes | None:
        return read_file(self._env.files, f"{self._dir}/{name}")

    def _take_lock(self) -> bool:
        """Keep others out; True when the machine was started anew since the last run."""
        try:
            self._lock = self._env.files.lock(f"{self._dir}/{LOCK_FILE}")
        except BlockingIOError as error:
            raise NodeFailed(f"{self._dir} is in use by another process", EXIT_CONFIG) from error
        before = self._lock.pread(_BOOT_SIZE, 0).rstrip(b"\0 ")
        return before != self._boot()

    def _boot(self) -> bytes:
        return self._env.boot_id.encode()[:_BOOT_SIZE]

    def _note_boot(self) -> None:
        """This start of the machine has recovered the log (not before: a start may be cut short)."""
        if self._lock is not None:
            self._lock.pwritev([self._boot().ljust(_BOOT_SIZE, b"\0")], 0)

    async def _open_identity(self) -> tuple[Identity, bool]:
        data = await self._env.workers.run(Lane.DISK, self._read, IDENTITY_FILE)
        config = self._config
        if data is None:
            return Identity(config.group, config.self_id, self._env.ids.uuid(), config.segment_size), True
        try:
            identity = decode_identity(data)
        except CorruptFile as error:
            raise NodeFailed(f"{self._dir}/{IDENTITY_FILE}: {error}", EXIT_STORE) from error
        for name, stored, wanted in (
            ("dLegerGroup", identity.group, config.group),
            ("dLegerSelfId", identity.node, config.self_id),
            ("mapedFileSizeCommitLog", identity.segment_size, config.segment_size),
        ):
            if stored != wanted:
                raise NodeFailed(
                    f"{self._dir} was made with {name}={stored}, the configuration says {wanted}: "
                    "it cannot be changed for an existing store",
                    EXIT_CONFIG,
                )
        return identity, False

    async def _read_configs(self, log: LogStore, scanned: list[int]) -> list[tuple[int, dict[str, str]]]:
        data = await self._env.workers.run(Lane.DISK, self._read, MEMBERS_FILE)
        indexes = list(scanned)
        if data is not None:
            try:
                noted = decode_json(data).get("indexes", [])
            except CorruptFile as error:
                raise NodeFailed(f"{self._dir}/{MEMBERS_FILE}: {error}", EXIT_STORE) from error
            indexes += [index for index in noted if isinstance(index, int)] if isinstance(noted, list) else []
        entries = []
        for index in sorted(dict.fromkeys(indexes)):
            if not log.first_index <= index <= log.last_index:
                continue
            pos, size = log.locate(index)
            entry = await log.read(pos, size)
            members = decode_config(memoryview(entry)[HEADER_SIZE:])
            if unpack_header(entry).kind == Kind.CONFIG and members is not None:
                entries.append((index, members))
        return entries

    async def save_identity(self, identity: Identity) -> None:
        """Replace the identity file."""
        await self._publish(IDENTITY_FILE, encode_json(identity))

    async def save_configs(self, indexes: list[int]) -> None:
        """Remember where the configuration entries are (their content is in the log)."""
        if indexes != self._saved_configs:
            await self._publish(MEMBERS_FILE, encode_json({"indexes": list(indexes)}))
            self._saved_configs = list(indexes)

    async def save_checkpoint(self, checkpoint: Checkpoint) -> None:
        """Overwrite the checkpoint if it changed: a hint for tools, so it is not fsynced."""
        if checkpoint != self._saved_checkpoint:
            await self._env.workers.run(Lane.DISK, self._write_checkpoint, checkpoint)
            self._saved_checkpoint = checkpoint

    def _write_checkpoint(self, checkpoint: Checkpoint) -> None:
        try:
            if self._checkpoint is None:
                self._checkpoint = self._env.files.open(f"{self._dir}/{CHECKPOINT_FILE}", create=True)
            self._checkpoint.pwritev([encode_checkpoint(checkpoint)], 0)
        except OSError as error:
            raise NodeFailed(f"cannot write {self._dir}/{CHECKPOINT_FILE}: {error}", EXIT_STORE) from error

    async def clear_poison(self) -> None:
        """The store is whole again."""
        if self._poisoned:
            run = self._env.workers.run
            await run(Lane.DISK, self._env.files.unlink, f"{self._dir}/{POISONED_FILE}")
            await run(Lane.DISK, self._env.files.sync_dir, self._dir)
            self._poisoned = False

    async def close(self, checkpoint: Checkpoint) -> None:
        """Last checkpoint, then let others in."""
        await self.save_checkpoint(checkpoint)
        if self._hard_state is not None:
            await self._env.workers.run(Lane.FLUSH, self._hard_state.close)
        if self._checkpoint is not None:
            self._checkpoint.close()
        if self._lock is not None:
            self._lock.close()

    async def _publish(self, name: str, data: bytes) -> None:
        try:
            await publish(self._env.files, self._env.workers, Lane.DISK, f"{self._dir}/{name}", data)
        except OSError as error:
            raise NodeFailed(f"cannot write {self._dir}/{name}: {error}", EXIT_STORE) from error
