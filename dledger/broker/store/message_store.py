"""The derived store of one broker: opening, applying, flushing, snapshots (DefaultMessageStore). Reading is
in `reader`.

Everything in this module lives on the event loop; DISK workers read and write the files.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from posixpath import dirname
from typing import Annotated

from dledger.broker.store.consume_queue import (
    ConsumeQueue,
    PendingWrite,
    QueueTable,
    cut_queue,
    file_ranges,
    free_units,
    make_directories,
    queue_dir,
    start_writeback,
    sync_file,
    write_units,
)
from dledger.broker.store.dispatch import Dispatcher
from dledger.errors import PASSING, TOO_MANY_FILES, refused_by_system
from dledger.formats.consume_queue import UNITS_PER_FILE
from dledger.formats.state import TABLES, ReplicatedState, Source, queue_ends, unpack_parts
from dledger.formats.state_file import (
    SNAPSHOT_FILE,
    STATE_DIR,
    CorruptSnapshot,
    Snapshot,
    seal_snapshot,
    snapshot_pieces,
    unpack_snapshot,
)
from dledger.host import Chunk, LogReader, misfit
from dledger.runtime.atomic_file import publish, read_file
from dledger.runtime.cooperative import gathered
from dledger.runtime.env import Env
from dledger.runtime.files import Files
from dledger.runtime.settings import Setting
from dledger.runtime.workers import Lane

QUEUES_DIR = "consumequeue"
"""Directory below `storePathRootDir`, as in RocketMQ."""
MOVED = ".old-"
"""Suffix of a directory to which outdated queues are moved until they are removed. A number follows the
suffix."""
MOVED_TOGETHER = 64
"""Largest number of topics whose outdated queues are removed between two flushes."""
SYNCS = 2
"""Number of fsyncs in flight, one per job. While one fsync waits for the device, the result of another is
being returned."""


@dataclass(frozen=True)
class StoreLimits:
    """Limits of the store. Intervals are in seconds; sizes are in entries or in units of ConsumeQueues (20
    bytes each)."""

    flush_interval_s: Annotated[float, Setting("flushIntervalConsumeQueue", 1, 600_000, "ms")] = 1.0
    """Longest time until units of the ConsumeQueues are written to their files."""
    flush_units: Annotated[int, Setting("flushConsumeQueueUnits", 1, 100_000_000)] = 200_000
    """If this many units of all ConsumeQueues are not in files yet, the next flush starts early."""
    snapshot_interval_s: Annotated[float, Setting("snapshotIntervalMs", 100, 86_400_000, "ms")] = 30.0
    """Longest time until the next snapshot of the state."""
    snapshot_entries: Annotated[int, Setting("snapshotEntries", 1, 1_000_000_000)] = 100_000
    """If this many entries were applied since the last snapshot, the next snapshot starts early. So a start
    replays hardly more than these entries, in 0.3 s. While it replays them, the node could be elected without
    being able to serve."""
    snapshot_share: float = 0.1
    """Largest share of the time that snapshots may take if they start early because of `snapshot_entries`.
    With thousands of queues, the fsyncs of a snapshot take seconds."""
    hot_units_total: Annotated[int, Setting("hotConsumeQueueUnits", 1000, 1_000_000_000)] = 2_000_000
    """Number of ConsumeQueue units kept in memory for reading, for all queues together. A unit has 20
    bytes."""
    hot_units_queue: Annotated[int, Setting("hotConsumeQueueUnitsPerQueue", 16, 100_000_000)] = 16_384
    """Number of ConsumeQueue units kept in memory for reading, for each queue."""
    index_enable: Annotated[bool, Setting("messageIndexEnable")] = True
    """Whether IndexFiles are written, so that messages can be found by key."""
    index_slots: Annotated[int, Setting("maxHashSlotNum", 1000, 100_000_000)] = 5_000_000
    """Number of hash slots of an IndexFile, 4 bytes each. The slots of the newest file are also in memory."""
    index_units: Annotated[int, Setting("maxIndexNum", 20_000, 500_000_000)] = 20_000_000
    """Largest number of keys in an IndexFile, 20 bytes each."""
    write_group: int = 64
    """Number of queues that one worker job writes."""


class MessageStore:
    """The replicated state, the queues and their files."""

    def __init__(
        self,
        env: Env,
        root: str,
        limits: StoreLimits | None = None,
        tables: Sequence[Source] = TABLES,
    ) -> None:
        self._env = env
        self._root = root
        self.queue_root: str = f"{root}/{QUEUES_DIR}"
        self._moved: list[str] = []
        """Directories that hold outdated queues and are to be removed."""
        self._moved_count = 0
        self._state_dir = f"{root}/{STATE_DIR}"
        self.limits: StoreLimits = limits or StoreLimits()
        self.tables: tuple[Source, ...] = tuple(tables)
        self.state: ReplicatedState = ReplicatedState(self.tables)
        self.queues: QueueTable = QueueTable(self.state)
        self.dispatcher: Dispatcher = Dispatcher(self.state, self.queues)
        self.on_arrival: Callable[[list[ConsumeQueue]], None] = lambda queues: None
        """Function that is called once per chunk of applied entries, with the queues that got messages."""
        self.on_ops: Callable[[list[str]], None] = lambda ops: None
        """Function that is called once per chunk of applied entries, with the names of the system operations
        in it, if there are any."""
        self.on_deleted: Callable[[list[str]], None] = lambda topics: None
        """Function that is called once per chunk of applied entries, with the topics that were deleted in it,
        if there are any."""
        self.leaving: dict[str, None] = {}
        """Deleted topics whose files still exist. Until the files are removed, no queue of a new topic with
        the same name is written."""
        self._unsynced_names: dict[str, None] = {}
        """Directories in which directories of queues were made, and which were not synced since then."""
        self.snapshot_index: int = -1
        self._log: LogReader | None = None
        self._opened = False
        self._messages_flushed = 0
        self._flush_now = asyncio.Event()
        self._writing = asyncio.Lock()
        self._waits = False
        """Whether the last flush or snapshot failed in a way that may pass by itself: no room, or too many
        open files."""

    @property
    def applied_index(self) -> int:
        """Index of the last entry that state and queues contain. It is the read point of every answer
        (safety.md S25)."""
        return self.dispatcher.applied_index

    # -- called by the node -------------------------------------------------------------------------

    async def open(self, log: LogReader) -> int:
        """Load the store's own snapshot if it belongs to the log; otherwise start empty. Returns the index of
        the last entry that the store contains, or -1 if it is empty.

        If the log no longer has the entries that follow, the node then passes a boundary snapshot to
        `restore`.
        """
        self._log = log
        await self._env.workers.run(Lane.DISK, self._find_moved)
        snapshot: Snapshot | None = await self._env.workers.run(Lane.DISK, self._load)
        if snapshot is not None and (
            why := await misfit(log, snapshot.applied, snapshot.term, snapshot.end_pos)
        ):  # the log lost its tail (ASYNC_FLUSH and a power loss), or was recovered or replaced
            self._env.log.warning("snapshot refused, replaying the log", reason=why)
            snapshot = None
        if snapshot is not None and not await self._env.workers.run(
            Lane.DISK, _cut_queues, self._env.files, self.queue_root, snapshot.state
        ):
            self._env.log.warning("ConsumeQueue files do not reach the snapshot, replaying the log")
            snapshot = None
        if snapshot is None:
            snapshot = Snapshot(-1, 0, ReplicatedState(self.tables))
            await self._forget_files()
        self._begin(snapshot)
        self.snapshot_index = snapshot.applied
        await self._env.workers.run(Lane.DISK, self._env.files.mkdir, self._state_dir)
        await self._env.workers.run(Lane.DISK, self._env.files.mkdir, self.queue_root)
        self._opened = True
        return snapshot.applied

    def _begin(self, snapshot: Snapshot) -> None:
        self.state = snapshot.state
        self.queues = QueueTable(self.state)
        self.dispatcher = Dispatcher(self.state, self.queues)
        self.dispatcher.applied_index = snapshot.applied
        self.dispatcher.applied_end = snapshot.end_pos
        self._messages_flushed = 0
        self.leaving.clear()

    async def _forget_files(self) -> None:
        """Remove the snapshot and move the queues aside. Otherwise data that was refused could be taken for
        valid later, when the log has grown. `_remove_moved` removes the queues."""
        run = self._env.workers.run
        await run(Lane.DISK, self._env.files.mkdir, self._state_dir)
        await run(Lane.DISK, self._env.files.unlink, f"{self._state_dir}/{SNAPSHOT_FILE}")
        await run(Lane.DISK, self._env.files.sync_dir, self._state_dir)
        self._unsynced_names.clear()
        if not await run(Lane.DISK, self._env.files.exists, self.queue_root):
            return
        # Rename now and remove later, because removing 50,000 queues takes minutes on a busy disk.
        self._moved_count += 1
        away = f"{self.queue_root}{MOVED}{self._moved_count}"
        await run(Lane.DISK, self._env.files.rename, self.queue_root, away)
        await run(Lane.DISK, self._env.files.sync_dir, self._root)
        self._moved.append(away)

    def _find_moved(self) -> None:
        """Find outdated queues that an earlier process moved aside but did not remove."""
        prefix = QUEUES_DIR + MOVED
        names = self._env.files.listdir(self._root)
        numbers = [name.removeprefix(prefix) for name in names if name.startswith(prefix)]
        found = sorted(int(number) for number in numbers if number.isdigit())
        self._moved = [f"{self.queue_root}{MOVED}{number}" for number in found]
        self._moved_count = max(found, default=0)

    async def _remove_moved(self) -> None:
        """Remove the outdated queues of at most `MOVED_TOGETHER` topics."""
        if not self._moved:
            return
        run, files, away = self._env.workers.run, self._env.files, self._moved[0]
        topics = await run(Lane.DISK, files.listdir, away)
        for topic in topics[:MOVED_TOGETHER]:
            await run(Lane.DISK, _remove, files, f"{away}/{topic}")
        if len(topics) <= MOVED_TOGETHER:
            await run(Lane.DISK, files.rmtree, away)
            self._moved.pop(0)

    def snapshot(self) -> Iterator[tuple[str, bytes]]:
        """Yield the replicated state after the last applied entry, as pairs: the name of a part of the state,
        and the next bytes of this part."""
        return self.state.copy().part_pieces()

    async def restore(self, parts: Mapping[str, bytes], index: int, pos: int) -> None:
        """Replace the state by `parts`, the state after entry `index`. All queues are then empty, and
        continue at the offsets in that state."""
        async with self._writing:
            state = await self._env.workers.run(Lane.DISK, unpack_parts, parts, self.tables)
            await self._forget_files()
            await self._env.workers.run(Lane.DISK, self._env.files.mkdir, self.queue_root)
            self._begin(Snapshot(index, pos, state))
            self.snapshot_index = -1

    async def log_begins(self, parts: Mapping[str, bytes]) -> None:
        """Note that the log now begins where the snapshot `parts` was taken. Messages before that point no
        longer exist in any queue (safety.md S14)."""
        run = self._env.workers.run
        ends = await run(Lane.DISK, queue_ends, parts)
        moved: list[ConsumeQueue] = []
        for (topic, queue_id), (end, first) in ends.items():
            queue = self.queues.get(topic, queue_id)
            if queue is None or queue.bounds.first_position != first:
                continue  # the topic was deleted: these ends belong to the earlier topic
            if queue.bounds.min < end <= queue.bounds.next:
                queue.bounds.min = end
                self.state.touch(topic)
                if end >= UNITS_PER_FILE:
                    moved.append(queue)
        if moved:
            async with self._writing:  # a snapshot that is being saved needs its files to stay
                await self._free(moved)

    async def _free(self, queues: list[ConsumeQueue]) -> None:
        try:
            await self._write_pending()
        except OSError as error:
            self._wait(error)
        freed: list[tuple[str, int]] = []  # (directory, first offset that exists)
        for queue in queues:
            first = min(queue.bounds.min, queue.flushed)  # a later flush continues in this file
            queue.synced = max(queue.synced, first - first % UNITS_PER_FILE)
            freed.append((queue_dir(self.queue_root, queue.topic, queue.queue_id), first))
        for start in range(0, len(freed), self.limits.write_group):
            group = freed[start : start + self.limits.write_group]
            await self._env.workers.run(Lane.DISK, free_units, self._env.files, group)

    def apply(self, chunk: Chunk) -> None:
        """Apply committed, durable entries, and wake the readers of their queues."""
        touched = self.dispatcher.apply(chunk)
        if touched:
            self.on_arrival(touched)
        if self.dispatcher.system_ops:
            self.on_ops(self.dispatcher.system_ops)
        if self.dispatcher.deleted:
            self.leaving.update(dict.fromkeys(self.dispatcher.deleted))
            self.on_deleted(self.dispatcher.deleted)
        if self.dispatcher.messages - self._messages_flushed >= self.limits.flush_units:
            self._flush_now.set()

    # -- background ---------------------------------------------------------------------------------

    async def run(self) -> None:
        """Flush and take snapshots until cancelled. Retries while the disk is full. Raises NodeFailed for any
        other error of the disk (architecture rule 7)."""
        try:
            await self._run()
        except OSError as error:
            raise refused_by_system("cannot write queues or snapshot", error) from error

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time() + self.limits.snapshot_interval_s
        earliest = loop.time()
        while True:
            try:
                async with asyncio.timeout(self.limits.flush_interval_s):
                    await self._flush_now.wait()
            except TimeoutError:
                pass  # the interval is over, as usual
            if not self._opened:
                continue
            behind = self.applied_index - self.snapshot_index
            began = loop.time()
            # Files are removed only just before a snapshot that knows of the deletion: after a crash
            # between the two, the start has to replay the whole log.
            many = bool(behind >= self.limits.snapshot_entries or self.leaving) and began >= earliest
            try:
                if behind and (began >= due or many):
                    await self.save_snapshot()
                    self._waits = False
                    now = loop.time()
                    due = now + self.limits.snapshot_interval_s
                    earliest = now + (now - began) * (1 / self.limits.snapshot_share - 1)
                else:
                    await self.flush()
                await self._remove_moved()
            except OSError as error:
                self._wait(error)
                try:
                    await self._remove_moved()  # this may free the room that is missing
                except OSError as again:
                    self._wait(again)
                await asyncio.sleep(self.limits.flush_interval_s)  # each attempt copies all pending units
                now = loop.time()
                earliest = now + (now - began) * (1 / self.limits.snapshot_share - 1)
                due = max(due, earliest)

    def _wait(self, error: OSError) -> None:
        """Note that a write must be tried again. The data that is missing in the files stays in memory. Only
        the first of several failures in a row is logged. Raises `error` if trying again cannot help."""
        if error.errno not in PASSING:
            raise error
        if not self._waits:
            self._env.log.warning("cannot write queues or a snapshot, trying again", error=error)
        self._waits = True

    async def flush(self) -> None:
        """Write new units of messages to the ConsumeQueue files (not fsynced), and free memory."""
        async with self._writing:
            await self._write_pending()

    async def save_snapshot(self) -> None:
        """Fsync the ConsumeQueue files, then publish the state. A crash in between leaves the older snapshot.
        The files of deleted topics are removed first, because a snapshot that knows a new topic of the same
        name must not find the files of the old topic."""
        async with self._writing:
            await self._remove_deleted()
            applied = self.applied_index
            term = None if self._log is None else self._log.term_of(applied)
            pieces = snapshot_pieces(applied, self.dispatcher.applied_end, self.state.copy(), term)
            targets = [(queue, queue.bounds.next) for queue in self.queues.all()]
            await self._write_pending()
            await self._sync([(queue, last) for queue, last in targets if queue.synced < last])
            packed = await gathered(("state", piece) for piece in pieces)
            data = await self._env.workers.run(Lane.DISK, seal_snapshot, packed["state"])
            path = f"{self._state_dir}/{SNAPSHOT_FILE}"
            await publish(self._env.files, self._env.workers, Lane.DISK, path, data)
            self.snapshot_index = applied

    async def _remove_deleted(self) -> None:
        """Remove the files of deleted topics, including topics that are deleted while it runs. The caller
        holds the lock `_writing`."""
        run, files = self._env.workers.run, self._env.files
        while self.leaving:
            topics = list(self.leaving)
            for topic in topics:
                await run(Lane.DISK, files.rmtree, f"{self.queue_root}/{topic}")
                self._unsynced_names.pop(f"{self.queue_root}/{topic}", None)
            await run(Lane.DISK, files.sync_dir, self.queue_root)
            for topic in topics:
                del self.leaving[topic]
            self._messages_flushed = -1  # so that units that were not written are found

    async def _sync(self, targets: list[tuple[ConsumeQueue, int]]) -> None:
        """Fsync the units below the given offset of each queue, and the names of their files and directories.
        Raises NodeFailed if an fsync fails, even if the disk was only full, because data may be lost and the
        next fsync would not report it."""
        run, files = self._env.workers.run, self._env.files
        ranges: list[tuple[str, int, int]] = []
        directories: dict[str, None] = {}
        for queue, last in targets:
            directory = queue_dir(self.queue_root, queue.topic, queue.queue_id)
            ranges += file_ranges(directory, queue.synced, last)
            if not queue.names_synced or (queue.synced - 1) // UNITS_PER_FILE != (last - 1) // UNITS_PER_FILE:
                directories[directory] = None  # a file may be new
        directories |= self._unsynced_names
        # Let the device write all files before the first fsync. Otherwise each of ten thousand files costs
        # one commit of the file system's journal.
        for start in range(0, len(ranges), self.limits.write_group):
            await run(Lane.DISK, start_writeback, files, ranges[start : start + self.limits.write_group])
        try:
            await self._run_each(partial(sync_file, files, path) for path, _, _ in ranges)
            await self._run_each(partial(files.sync_dir, directory) for directory in directories)
        except OSError as error:
            if error.errno in TOO_MANY_FILES:
                raise  # opening the file failed, not the fsync
            raise refused_by_system("cannot fsync queues", error) from error
        self._unsynced_names.clear()
        for queue, last in targets:
            queue.names_synced = True
            queue.synced = last

    async def _run_each(self, jobs: Iterable[Callable[[], None]]) -> None:
        """Run jobs in workers. Each job has only one durable action, as the simulator requires. If some jobs
        fail, wait for all jobs in flight, then raise one of the errors. An error that allows no retry is
        preferred."""
        under_way: deque[asyncio.Future[None]] = deque()
        failed: list[BaseException] = []
        try:
            for job in jobs:
                if len(under_way) >= SYNCS:
                    await under_way.popleft()
                under_way.append(self._env.workers.run(Lane.DISK, job))
            while under_way:
                await under_way.popleft()
        except OSError as error:
            failed.append(error)
        finally:
            rest = await asyncio.gather(*under_way, return_exceptions=True)
            failed += [outcome for outcome in rest if isinstance(outcome, BaseException)]
        for worst in sorted(failed, key=_of_too_many_files):
            raise worst

    async def _write_pending(self) -> None:
        """Write the units of messages that are not in the ConsumeQueue files yet. If this fails, the next
        call writes them."""
        self._flush_now.clear()
        messages = self.dispatcher.messages
        if messages == self._messages_flushed:
            return  # examining 400,000 queues takes 0.1 s
        queues = (queue for queue in self.queues.all() if queue.topic not in self.leaving)
        writes = (queue.pending_write(self.queue_root) for queue in queues)
        await self._write([write for write in writes if write is not None])
        self._messages_flushed = messages

    async def _write(self, writes: list[PendingWrite]) -> None:
        files = self._env.files
        for start in range(0, len(writes), self.limits.write_group):
            group = writes[start : start + self.limits.write_group]
            new = [write for write in group if not write.queue.directory_made]
            if new:
                paths = [write.directory for write in new]
                await self._env.workers.run(Lane.DISK, make_directories, files, paths)
                self._unsynced_names[self.queue_root] = None
                for write in new:
                    write.queue.directory_made = True
                    self._unsynced_names[dirname(write.directory)] = None
            await self._env.workers.run(Lane.DISK, write_units, files, group)
            for write in group:
                write.queue.flushed = write.last
        keep = min(self.limits.hot_units_queue, self.limits.hot_units_total // max(1, self.queues.count))
        for write in writes:
            write.queue.trim(keep)

    # -- worker jobs --------------------------------------------------------------------------------

    def _load(self) -> Snapshot | None:
        data = read_file(self._env.files, f"{self._state_dir}/{SNAPSHOT_FILE}")
        if data is None:
            return None
        try:
            return unpack_snapshot(data, self.tables)
        except CorruptSnapshot as error:
            self._env.log.warning("snapshot refused, replaying the log", reason=error)
            return None


def _remove(files: Files, path: str) -> None:
    """Remove a file or a directory."""
    if files.is_dir(path):
        files.rmtree(path)
    else:
        files.unlink(path)


def _of_too_many_files(error: BaseException) -> bool:
    return isinstance(error, OSError) and error.errno in TOO_MANY_FILES


def _cut_queues(files: Files, root: str, state: ReplicatedState) -> bool:
    """Cut all queues to the bounds in the state, and remove queues that the state does not know. Returns
    False if files hold fewer units than the bounds say."""
    for topic in files.listdir(root):
        for name in files.listdir(f"{root}/{topic}") if files.is_dir(f"{root}/{topic}") else ():
            known = state.queues.get(topic, {})
            if not name.isdigit() or int(name) not in known:
                files.rmtree(f"{root}/{topic}/{name}")
    return all(
        cut_queue(files, queue_dir(root, topic, queue_id), bounds)
        for topic, queues in sorted(state.queues.items())
        for queue_id, bounds in sorted(queues.items())
    )
