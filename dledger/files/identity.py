"""The small files of a store: identity, term and vote, checkpoint, configurations, poison marker."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from dledger.config import NodeConfig
from dledger.context.config_entries import read_config, search
from dledger.election.configuration import Configuration, decode_configuration, encode_configuration
from dledger.election.elector import MAX_TERM
from dledger.errors import (
    DISK_IS_FULL,
    EXIT_CONFIG,
    EXIT_START,
    EXIT_STORE,
    PASSING,
    NodeFailed,
    refused_by_system,
)
from dledger.files.foreign import foreign_store, other_node
from dledger.files.run_lock import LastRun, RunLock
from dledger.formats.store_files import (
    CHECKPOINT_FILE,
    IDENTITY_FILE,
    MEMBERS_FILE,
    POISONED_FILE,
    REFILL_FILE,
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
from dledger.log.hard_state import HardStateFile
from dledger.log.reading import Rotten
from dledger.log.recovery import REFILL_ADVICE, StoreDamaged
from dledger.log.repair_writer import NoRoom
from dledger.log.segments import SegmentError
from dledger.log.store import CLOSE_LIMIT_S, LogStore
from dledger.runtime import Env, File, Lane
from dledger.runtime.atomic_file import publish, read_file
from dledger.snapshots.service import Snapshots

_NO_COPY = (-1, b"")
LOST_POWER = "power was lost"
"""Text with which the reason begins if a node may not vote after a loss of power (safety.md S9)."""


@dataclass
class Opened:
    """Content of a store's small files when it was opened."""

    identity: Identity
    hard_state: HardStateFile
    checkpoint: Checkpoint
    configs: list[tuple[int, Configuration]]
    unsure: list[tuple[int, int]]
    """Ranges of entries that cannot be read and may be configurations."""
    may_vote: bool
    reason: str
    """Reason why the node may not vote; empty if it may."""
    lost_power: bool
    """Whether the reason is a loss of power under ASYNC_FLUSH (S9)."""


class StoreFiles:
    """Opens and writes the small files of `<store_dir>/dledger-<id>/`."""

    def __init__(self, env: Env, config: NodeConfig) -> None:
        self._env = env
        self._config = config
        self._dir = config.node_dir
        self._lock: RunLock | None = None
        self._checkpoint: File | None = None
        self._hard_state: HardStateFile | None = None
        self._saved_checkpoint = Checkpoint()
        self._saved_configs: dict[str, object] = {}
        self._members_told = False
        """Whether the file `members` exists. For a new store it is also true, because the file is not needed
        yet."""
        self._saving_configs = asyncio.Lock()
        self._poisoned = False
        self._refill = ""

    async def open(self, log: LogStore, snapshots: Snapshots) -> Opened:
        """Open or make the store and recover its log. Raises NodeFailed, which says what is wrong and what to
        do."""
        try:
            return await self._open(log, snapshots)
        except StoreDamaged as error:
            self._let_others_in()
            raise NodeFailed(str(error), EXIT_STORE) from error
        except SegmentError as error:
            self._let_others_in()
            # Without the last segment, a node whose machine lost power would forget what it had acknowledged,
            # and vote: nothing else records what was in it.
            raise NodeFailed(f"{error}: {REFILL_ADVICE}; never delete that file alone", EXIT_STORE) from error
        except (OSError, NoRoom) as error:
            self._let_others_in()
            if isinstance(error, NoRoom) or error.errno in PASSING:
                raise NodeFailed(
                    f"cannot open the store {self._dir} now: {error}. The store is intact: make room "
                    "(or raise the limit that the error names) and start the node again",
                    EXIT_START,
                ) from error
            raise refused_by_system(f"cannot open the store {self._dir}", error) from error
        except BaseException:
            self._let_others_in()
            raise

    async def _open(self, log: LogStore, snapshots: Snapshots) -> Opened:
        run = self._env.workers.run
        self._pool = log.pool
        refused = await run(Lane.DISK, self._not_ours)
        if refused:  # before anything is made here: tools want the directory of one node alone
            raise NodeFailed(refused, EXIT_CONFIG)
        await run(Lane.DISK, self._env.files.mkdir, self._dir)
        before = await run(Lane.DISK, self._take_lock)
        power_lost, clean = before.other_boot, before.clean
        identity, new = await self._open_identity()
        hard_state = await run(Lane.DISK, HardStateFile.open, self._env.files, self._dir)
        await run(Lane.FLUSH, hard_state.settle)
        await run(Lane.FLUSH, self._env.files.sync_dir, self._dir)
        self._hard_state = hard_state
        if hard_state.loaded is not None and hard_state.loaded.term > MAX_TERM:
            raise NodeFailed(
                f"term {hard_state.loaded.term} in {self._dir} is too high to be reached by "
                "elections: an older version of this program accepted it from an outsider. Stop all "
                "nodes that have such a term, and run `dledger recover --reset-term` on each of "
                "their stores",
                EXIT_STORE,
            )
        poison = await run(Lane.DISK, self._read, POISONED_FILE)
        await self._read_refill()
        # What may be lost depends on the mode of the run that lost the power, not on that of this one. Stores
        # of older programs do not record it: then the setting is assumed to be unchanged.
        synced = self._config.sync_flush if before.sync_flush is None else before.sync_flush
        if power_lost and not clean and not new and not synced and not self._refill:
            await self.must_refill(
                f"{LOST_POWER} under ASYNC_FLUSH: entries that were not yet fsynced may be lost"
            )
        if clean and self._lock is not None:
            await run(Lane.DISK, self._lock.clear_clean)
        await snapshots.open()
        found = await log.open(
            power_lost=power_lost,
            discard_above_mark=poison is not None,
            on_doubt=self.must_refill,
            bases=snapshots.catalog.bases(),
            begins=snapshots.catalog.begins,
            replace=snapshots.catalog.replacing,
            killed=not clean,
            written=before.written,
        )
        if snapshots.catalog.begins and log.begin_pos == 0:
            await snapshots.catalog.say_begins(0)  # so that new entries do not count as left over
        self._poisoned = poison is not None
        data = await run(Lane.DISK, self._read, CHECKPOINT_FILE)
        checkpoint = (decode_checkpoint(data) if data else None) or Checkpoint()
        if checkpoint.committed_index > log.last_index and not (self._refill or self._poisoned):
            await self.must_refill(
                f"the log ends at {log.last_index}, but {checkpoint.committed_index} was committed"
            )
        if hard_state.loaded is None:
            if not new and (identity.cluster or log.last_index >= 0):
                identity = await self._forgot_votes(identity)
            await run(Lane.FLUSH, hard_state.begin, HardState(max(0, log.last_term)))
        if new:
            await self.save_identity(identity)
        if self._lock is not None:
            await run(Lane.DISK, self._lock.note_run, self._config.sync_flush, log.last_index)
            log.note_written = self._lock.note_written
        if found.cut:
            self._env.log.warning(
                "the log ended with a partly written entry, which was cut off",
                end=found.last_index,
                why=found.cut,
            )
        for first, last in found.faulty:
            self._env.log.error(
                "entries are corrupt: they will be repaired from peers", first=first, last=last
            )
        configs, unsure = await self._read_configs(log, snapshots, found.configs, new)
        reason = self._refill
        if poison is not None:
            reason = f"an earlier run ended with a failed write: {poison.decode(errors='replace')}"
        lost_power = poison is None and self._refill.startswith(LOST_POWER)
        return Opened(identity, hard_state, checkpoint, configs, unsure, not reason, reason, lost_power)

    async def _forgot_votes(self, identity: Identity) -> Identity:
        """Give this store a new identity, because no copy of term and vote can be read (S7, S18)."""
        if len(self._config.peers) == 1:
            raise NodeFailed(
                f"term and vote of {self._dir} cannot be read, and there is no peer that could send them",
                EXIT_STORE,
            )
        self._env.log.error("term and vote cannot be read: this node rejoins as a new member")
        identity = replace(identity, incarnation=self._env.ids.uuid())
        await self.save_identity(identity)
        return identity

    async def _read_refill(self) -> None:
        data = await self._env.workers.run(Lane.DISK, self._read, REFILL_FILE)
        self._refill = "" if data is None else data.decode(errors="replace")

    async def must_refill(self, reason: str) -> None:
        """Record, also for later starts, that entries may be lost, until a leader has refilled the store."""
        self._env.log.error("this node does not vote until a leader has refilled it", reason=reason)
        try:
            await self._publish(REFILL_FILE, reason.encode())
        except OSError as error:
            # Prepared segments only save time, so one may be removed, known to the pool or not.
            if error.errno not in DISK_IS_FULL or not await self._pool.give_up_one():
                raise
            await self._publish(REFILL_FILE, reason.encode())
        self._refill = reason

    def _read(self, name: str) -> bytes | None:
        return read_file(self._env.files, f"{self._dir}/{name}")

    def _not_ours(self) -> str:
        files, root = self._env.files, self._config.store_dir
        new = not files.exists(f"{self._dir}/{IDENTITY_FILE}")
        return (foreign_store(files, root, self._dir) if new else "") or other_node(
            files, root, self._config.self_id
        )

    def _take_lock(self) -> LastRun:
        """Lock the store against other processes. Return what the file says about the last run and its
        end."""
        try:
            self._lock = RunLock.take(self._env.files, self._dir, self._env.boot_id)
        except BlockingIOError as error:
            raise NodeFailed(f"{self._dir} is in use by another process", EXIT_START) from error
        return self._lock.last_run()

    def _let_others_in(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    async def _open_identity(self) -> tuple[Identity, bool]:
        data = await self._env.workers.run(Lane.DISK, self._read, IDENTITY_FILE)
        config = self._config
        if data is None:
            return Identity(config.group, config.self_id, self._env.ids.uuid(), config.segment_size), True
        try:
            identity = decode_identity(data)
        except CorruptFile as error:
            raise NodeFailed(damaged(f"{self._dir}/{IDENTITY_FILE}", error), EXIT_STORE) from error
        for name, stored, wanted in (
            ("dLegerGroup", identity.group, config.group),
            ("dLegerSelfId", identity.node, config.self_id),
            ("mapedFileSizeCommitLog", identity.segment_size, config.segment_size),
        ):
            if stored != wanted:
                raise NodeFailed(
                    f"{self._dir} was created with {name}={stored}, but the configuration says "
                    f"{wanted}: this cannot be changed for an existing store",
                    EXIT_CONFIG,
                )
        return identity, False

    async def _read_configs(
        self, log: LogStore, snapshots: Snapshots, scanned: list[int], new: bool
    ) -> tuple[list[tuple[int, Configuration]], list[tuple[int, int]]]:
        """Return (index, configuration) for all configurations, ascending, and the ranges of entries that
        cannot be read and may be configurations."""
        noted = await self._noted_configs()
        self._members_told = noted is not None or new
        rotten: list[tuple[int, int]] = []
        if not self._members_told:
            # Founders that were replaced long ago must not count again.
            self._env.log.warning("searching the whole log for configurations", without=MEMBERS_FILE)
            scanned, rotten = await search(log, log.first_index, log.last_index)
            if log.begin_pos > 0 and snapshots.base_config() is None:
                rotten.append((log.first_index - 1, log.first_index - 1))
        entries, unsure = await self._believed_configs(log, scanned, noted or {})
        unsure += rotten
        return entries, unsure

    async def _believed_configs(
        self, log: LogStore, places: list[int], noted: Mapping[int, tuple[int, bytes]]
    ) -> tuple[list[tuple[int, Configuration]], list[tuple[int, int]]]:
        """Read the configurations at `places`. `noted` has copies of them, as index -> (term, copy). Also
        return the entries that cannot be read."""
        entries: list[tuple[int, Configuration]] = []
        unsure: list[tuple[int, int]] = []
        for index, (term, copy) in sorted((dict.fromkeys(places, _NO_COPY) | dict(noted)).items()):
            if index < log.first_index and not log.base.known:
                # The snapshot at the log's beginning, which has the configuration, is lost.
                before = decode_configuration(copy)
                entries = entries if before is None else [(index, before)]
            if not log.first_index <= index <= log.last_index:
                continue
            configuration = decode_configuration(copy) if term == log.term_of(index) else None
            try:
                configuration = configuration or await read_config(log, index)
            except Rotten:
                unsure.append((index, index))
            except OSError as error:
                log.put_off(error, index, index)
                unsure.append((index, index))  # read again when the node runs
            if configuration is not None:
                entries.append((index, configuration))
        return entries, unsure

    async def _noted_configs(self) -> dict[int, tuple[int, bytes]] | None:
        """Return index -> (term, copy) of the configuration entries, with `_NO_COPY` for those that could not
        be read.

        None if the file is missing or cannot be read. Also None for a file of an older program, which kept no
        copies, because such a file is not enough if the log begins later.
        """
        data = await self._env.workers.run(Lane.DISK, self._read, MEMBERS_FILE)
        if data is None:
            return None
        try:
            value = decode_json(data)
        except CorruptFile as error:
            self._env.log.error("the saved members cannot be read", file=MEMBERS_FILE, error=error)
            return None
        try:
            if "copies" not in value:
                return None
            noted = {int(index): _NO_COPY for index in value.get("indexes", [])}  # type: ignore[attr-defined]
            copies = value["copies"]
            return noted | {int(i): (int(term), bytes.fromhex(copy)) for i, term, copy in copies}  # type: ignore[attr-defined]
        except (TypeError, ValueError) as error:
            raise NodeFailed(damaged(f"{self._dir}/{MEMBERS_FILE}", error), EXIT_STORE) from error

    async def save_identity(self, identity: Identity) -> None:
        """Replace the identity file."""
        await self._publish(IDENTITY_FILE, encode_json(identity))

    async def save_configs(
        self, entries: list[tuple[int, int, Configuration]], unsure: Iterable[tuple[int, int]]
    ) -> None:
        """Save where the configuration entries are, their terms, and a copy of each. So a corrupt entry or
        snapshot cannot keep a node from knowing whose votes count.

        `unsure` are entries that cannot be read and may be configurations. They are saved if the file named
        them. If there was no file, none is written, and the next start searches the log again. Raises OSError
        (ENOSPC) if the disk is full; the call can be repeated.
        """
        ranges = list(unsure)
        if ranges and not self._members_told:
            return
        lost = [index for first, last in ranges for index in range(first, last + 1)]
        async with self._saving_configs:
            copies = [(index, term, encode_configuration(config).hex()) for index, term, config in entries]
            value = {"copies": copies, "indexes": sorted([*lost, *(index for index, _, _ in entries)])}
            if value != self._saved_configs:
                await self._publish(MEMBERS_FILE, encode_json(value))
                self._saved_configs, self._members_told = value, True

    async def save_checkpoint(self, checkpoint: Checkpoint) -> None:
        """Overwrite the checkpoint if it changed. It is a hint and not fsynced; if the disk is full, it is
        written later."""
        if checkpoint == self._saved_checkpoint:
            return
        try:
            await self._env.workers.run(Lane.DISK, self._write_checkpoint, checkpoint)
        except OSError as error:
            if error.errno not in PASSING:
                raise refused_by_system(f"cannot write {self._dir}/{CHECKPOINT_FILE}", error) from error
            self._env.log.warning("cannot write the checkpoint", error=error)
            return
        self._saved_checkpoint = checkpoint

    def _write_checkpoint(self, checkpoint: Checkpoint) -> None:
        if self._checkpoint is None:
            self._checkpoint = self._env.files.open(f"{self._dir}/{CHECKPOINT_FILE}", create=True)
        self._checkpoint.pwritev([encode_checkpoint(checkpoint)], 0)

    async def clear_poison(self) -> None:
        """Remove the markers, because the store is whole again."""
        run = self._env.workers.run
        for name, there in ((POISONED_FILE, self._poisoned), (REFILL_FILE, bool(self._refill))):
            if there:
                await run(Lane.DISK, self._env.files.unlink, f"{self._dir}/{name}")
                await run(Lane.DISK, self._env.files.sync_dir, self._dir)
        self._poisoned, self._refill = False, ""

    async def close(self, checkpoint: Checkpoint, *, clean: bool) -> None:
        """Save the last checkpoint and unlock the store. `clean` says whether everything that was written is
        fsynced."""
        try:
            async with asyncio.timeout(CLOSE_LIMIT_S):
                await self.save_checkpoint(checkpoint)
                if clean and not self._config.sync_flush and self._lock is not None:
                    await self._env.workers.run(Lane.DISK, self._lock.note_clean)
                if self._hard_state is not None:
                    await self._env.workers.run(Lane.FLUSH, self._hard_state.close)
        except (OSError, TimeoutError) as error:
            self._env.log.error("store not closed cleanly", error=repr(error))
        if self._checkpoint is not None:
            self._checkpoint.close()
        self._let_others_in()

    async def _publish(self, name: str, data: bytes) -> None:
        try:
            await publish(self._env.files, self._env.workers, Lane.DISK, f"{self._dir}/{name}", data)
        except OSError as error:
            if error.errno in PASSING:
                raise
            raise refused_by_system(f"cannot write {self._dir}/{name}", error) from error


def damaged(path: str, error: Exception) -> str:
    """Return the text about a file that cannot be read and is needed. The file may also be from a newer
    program."""
    return f"{path}: {error}. If it is damaged: {REFILL_ADVICE}"
