"""Index of messages by key (IndexService). It follows the applied log with a short delay, and answers
searches.

The index does not slow down the storing of messages. Workers read windows of the log again later, and write a
unit for each key to the files of `key_files`. So the index may be behind. A search waits until the index
contains everything that was applied when the search came.

The whole index can be deleted, because missing or damaged files, and files of another log, are rebuilt. The
position from which indexing continues after a start is in `state/index`, because the files alone do not show
how much of the log has no keys.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from dledger.audit.message_keys import MessageKeys
from dledger.broker.store import key_files
from dledger.broker.store.key_files import DamagedIndex, KeyFile, is_key_file
from dledger.broker.store.message_store import MessageStore
from dledger.errors import PASSING, refused_by_system
from dledger.formats.entry import HEADER_SIZE as ENTRY_HEADER
from dledger.formats.entry import MAX_ENTRY_SIZE, MIN_BLANK_SIZE
from dledger.formats.index_file import key_hash
from dledger.formats.state_file import STATE_DIR
from dledger.formats.store_files import CorruptFile, decode_json, encode_json
from dledger.host import LogReader
from dledger.log.reading import Rotten
from dledger.runtime.atomic_file import publish, read_file
from dledger.runtime.env import Env
from dledger.runtime.workers import Lane

INDEX_DIR = "index"
"""Directory below `storePathRootDir`, as in RocketMQ."""
PROGRESS_FILE = "index"
"""File in the directory of the state that holds the position from which indexing continues."""
WINDOW = 4 << 20
"""Number of bytes of the log that one job reads for keys, in about 5 ms. A single entry that is larger is
read as a whole."""
PASS_INTERVAL_S = 1.0
"""Seconds between two passes over newly applied entries. A job takes 2 ms, and 1 us more for each message. A
waiting search starts a pass at once."""
FLUSH_INTERVAL_S = 30.0
"""Longest time, in seconds, until slots and header of the newest file are written. After a crash, keys that
the written header does not cover are read from the log again."""
ROLL_FLUSH_INTERVAL_S = 2.0
"""Longest time, in seconds, until slots and header are written after a segment was indexed completely. It is
short because an audit expects the keys of complete segments."""
RETRY_S = 1.0
"""Seconds between two attempts while the disk is full, or while damaged data in the log waits for repair."""
CATCH_UP_S = 2.0
"""Longest time, in seconds, that a search waits until the index contains everything that was applied when the
search came."""
MAX_WAITING = 1000
"""Largest number of searches that wait at the same time. A further search is refused with `IndexBehind`."""


class IndexBehind(Exception):
    """Raised if the index does not contain everything that was applied; the text says how many bytes of the
    log are missing."""


@dataclass(frozen=True)
class Found:
    """Result of a search: positions of messages that may have the key, the newest first. `whole`: False if
    the search had to stop early, so that older messages with the key may be missing. `last_ms`,
    `last_position`: store time and position of the newest message in the index, 0 if the index is empty."""

    positions: list[int]
    whole: bool
    last_ms: int
    last_position: int


class IndexService:
    """The index by key of one broker. Only the event loop uses the object; DISK workers read and write its
    files."""

    def __init__(self, env: Env, root: str, store: MessageStore, log: LogReader) -> None:
        self._env = env
        self._store = store
        self._log = log
        self._root = f"{root}/{INDEX_DIR}"
        self._progress = f"{root}/{STATE_DIR}/{PROGRESS_FILE}"
        self._limits = store.limits
        self._files: list[KeyFile] = []
        self.indexed: int = -1
        """Log offset below which all keys are in the files; -1 before the files were examined."""
        self._saved: dict[str, object] = {}
        self._ready = asyncio.Event()
        self._wanted = asyncio.Event()
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []
        self._busy = asyncio.Lock()
        """Lock of passes, retention and rebuilding, so that only one of these changes files at a time."""
        self._told = ""

    @property
    def enabled(self) -> bool:
        """Whether the index is enabled (`messageIndexEnable`)."""
        return self._limits.index_enable

    @property
    def files(self) -> tuple[KeyFile, ...]:
        """The index files, the oldest first."""
        return tuple(self._files)

    @property
    def behind(self) -> int:
        """Number of bytes of the log that were applied and are not indexed yet."""
        return self._store.dispatcher.applied_end - max(self.indexed, self._log.begin_pos, 0)

    # -- called by the broker -------------------------------------------------------------------------

    def opened(self) -> None:
        """Begin to index, because the log and the store are open now."""
        self._ready.set()

    async def restored(self) -> None:
        """Examine the files again as at a start, because the log was replaced."""
        async with self._busy:
            self.indexed = -1
            self._wanted.set()

    async def log_begins(self) -> None:
        """Remove the files whose messages retention has removed from the log. The newest file always
        stays."""
        async with self._busy:
            while len(self._files) > 1 and self._files[0].header.end_position < self._log.begin_pos:
                await self._env.workers.run(Lane.DISK, self._env.files.unlink, self._files.pop(0).path)

    async def search(self, topic: str, key: str, begin_ms: int, end_ms: int, most: int) -> Found:
        """Find messages of a topic that may have this key and were stored within [begin, end] (ms, compared
        in whole seconds). Raises IndexBehind if the index does not catch up within `CATCH_UP_S`."""
        await self._caught_up(self._store.dispatcher.applied_end, CATCH_UP_S)
        targets = tuple(self._files)
        hashed = key_hash(topic, key)
        positions, whole = await self._env.workers.run(
            Lane.DISK, key_files.search, self._env.files, targets, hashed, begin_ms, end_ms, most
        )
        last = targets[-1].header if targets else None
        return Found(
            positions, whole, 0 if last is None else last.end_ms, 0 if last is None else last.end_position
        )

    async def find(self, wanted: Sequence[tuple[str, str]], most: int, patience_s: float) -> list[list[int]]:
        """Return a list of positions for each pair (topic, key) of `wanted`: the messages that may have the
        key, at most `most`, the newest first. Messages of any store time are found. Raises IndexBehind if the
        index does not catch up within `patience_s` with what is applied now."""
        await self._caught_up(self._store.dispatcher.applied_end, patience_s)
        files, targets = self._env.files, tuple(self._files)

        def search() -> list[list[int]]:
            hashes = [key_hash(topic, key) for topic, key in wanted]  # 15 ms for 1,000 keys of long topics
            return key_files.search_many(files, targets, hashes, most)

        return await self._env.workers.run(Lane.DISK, search)

    async def _caught_up(self, end: int, patience_s: float) -> None:
        if self.indexed >= end:
            return
        if len(self._waiting) >= MAX_WAITING:
            raise IndexBehind(f"the index of messages by key is {self.behind} bytes of log behind")
        waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((end, waiting))
        self._wanted.set()
        try:
            async with asyncio.timeout(patience_s):
                await waiting
        except TimeoutError as error:
            raise IndexBehind(f"the index of messages by key is {self.behind} bytes of log behind") from error
        finally:
            self._waiting = [one for one in self._waiting if one[1] is not waiting]

    # -- following the log ----------------------------------------------------------------------------

    async def run(self) -> None:
        """Follow the log until cancelled. Retries while the disk is full or data of the log is damaged.
        Raises NodeFailed for any other error of the disk."""
        if not self.enabled:
            return
        await self._ready.wait()
        try:
            await self._run()
        except OSError as error:
            raise refused_by_system("cannot write the index of messages by key", error) from error

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        flushed = saved = loop.time()
        rolled = False
        while True:
            try:
                async with self._busy:  # for one window, so that retention need not wait for the whole log
                    before = self.indexed
                    more = await self._step()
                    now = loop.time()
                    rolled |= self.indexed // self._log.segment_size > before // self._log.segment_size
                    if now - flushed >= (ROLL_FLUSH_INTERVAL_S if rolled else FLUSH_INTERVAL_S):
                        await self._flush()
                        flushed, rolled = now, False
                    if now - saved >= self._limits.snapshot_interval_s:
                        await self._save()
                        saved = now
                self._told = ""
                if more:
                    continue
            except (OSError, Rotten) as error:
                if isinstance(error, OSError) and error.errno not in PASSING:
                    raise
                if not self._told:
                    self._env.log.warning("building the index of messages by key waits", error=error)
                self._told = str(error)
                await asyncio.sleep(RETRY_S)
            try:
                async with asyncio.timeout(PASS_INTERVAL_S):
                    await self._wanted.wait()
            except TimeoutError:
                pass  # the interval is over, as usual
            self._wanted.clear()

    async def close(self) -> None:
        """Write everything that is only in memory, so that the next start need not index it again."""
        if self.enabled and self.indexed >= 0:
            async with self._busy:
                await self._flush()
                await self._save()

    async def _step(self) -> bool:
        """Index one window of the applied entries. Returns whether applied entries remain that are not
        indexed."""
        if self.indexed < 0:
            await self._open()
        end = self._store.dispatcher.applied_end
        if self.indexed < end:
            position = max(self.indexed, self._log.begin_pos)
            try:
                position = await self._window(position, end)
            except ValueError:
                if position >= self._log.begin_pos:
                    raise
                position = self._log.begin_pos  # retention removed the entries
            self.indexed = position
        for wanted, waiting in self._waiting:
            if wanted <= self.indexed and not waiting.done():
                waiting.set_result(None)
        return self.indexed < end

    async def _window(self, position: int, end: int) -> int:
        """Index entries from log offset `position` on, up to `end` at most. Returns the log offset at which
        to continue."""
        size = self._log.segment_size
        segment_end = position - position % size + size
        if segment_end - position < MIN_BLANK_SIZE:
            return segment_end
        run = self._env.workers.run
        length = WINDOW
        while True:
            data = await self._log.read(position, min(length, segment_end - position, end - position))
            found = await run(Lane.DISK, key_files.keys_in, data, position)
            if found.end or found.blank or not length < found.wanted <= MAX_ENTRY_SIZE:
                break
            length = found.wanted
        if not found.end and not found.blank:
            if position + len(data) >= segment_end:
                return segment_end  # too short for a blank tail
            raise ValueError(f"no whole entry at {position}")
        if found.keys is not None and len(found.keys.position):
            await self._add(found.keys)
        return segment_end if found.blank else position + found.end

    async def _add(self, keys: MessageKeys) -> None:
        run, files = self._env.workers.run, self._env.files
        while len(keys.position):
            target = self._files[-1] if self._files else None
            count = 0 if target is None else key_files.fitting(keys, target.room)
            if not count:
                if target is not None and target.header.count <= 1:
                    # A message has more keys than a file has room for: keep only the first keys.
                    count = target.room
                    only = int((keys.position == keys.position[0]).sum())
                    await run(Lane.DISK, key_files.append, files, target, _cut(keys, 0, count))
                    keys = _cut(keys, only, len(keys.position))
                    continue
                await self._roll(target)
                continue
            assert target is not None
            await run(Lane.DISK, key_files.append, files, target, _cut(keys, 0, count))
            keys = _cut(keys, count, len(keys.position))

    async def _roll(self, full: KeyFile | None) -> None:
        run, files = self._env.workers.run, self._env.files
        if full is not None:
            await run(Lane.DISK, lambda: key_files.flush(files, full, sync=True))
        await run(Lane.DISK, files.mkdir, self._root)
        path = f"{self._root}/{self._name()}"
        before = None if full is None else full.header
        slots, units = self._limits.index_slots, self._limits.index_units
        created = await run(Lane.DISK, key_files.create, files, path, slots, units, before)
        # Otherwise a power loss could remove the name of an older file and keep a newer one, unnoticed.
        await run(Lane.DISK, files.sync_dir, self._root)
        self._files.append(created)
        if full is not None:
            full.heads = None  # searches read the file from now on

    def _name(self) -> str:
        """Return a new file name made from the current time. It is always later than the name of the newest
        file."""
        now = datetime.fromtimestamp(self._env.wall.now_ms() / 1000, UTC)
        name = _time_name(now)
        while self._files and name <= self._files[-1].name:
            last = datetime.strptime(self._files[-1].name[:14], "%Y%m%d%H%M%S").replace(tzinfo=UTC)
            last += timedelta(milliseconds=int(self._files[-1].name[14:]) + 1)
            name = _time_name(last)
        return name

    async def _flush(self) -> None:
        if self._files:
            await self._env.workers.run(Lane.DISK, key_files.flush, self._env.files, self._files[-1])

    async def _save(self) -> None:
        """Save the position at which to continue, and a list of the files. By this list the next start
        notices a missing file."""
        await self._flush()
        now: dict[str, object] = {
            "position": self.indexed,
            "files": [[file.name, file.header.count, file.header.end_position] for file in self._files],
        }
        if now != self._saved:
            await publish(self._env.files, self._env.workers, Lane.DISK, self._progress, encode_json(now))
            self._saved = now

    # -- opening --------------------------------------------------------------------------------------

    async def _open(self) -> None:
        """Take over the files that are complete and belong to this log, and find the position at which to
        continue."""
        run, files = self._env.workers.run, self._env.files
        self._files = []
        self._saved = {}
        await run(Lane.DISK, files.mkdir, self._root)
        names = sorted(filter(is_key_file, await run(Lane.DISK, files.listdir, self._root)))
        progress = await run(Lane.DISK, self._read_progress)
        why = self._missing(progress, names)
        kept: list[KeyFile] = []
        try:
            for name in () if why else names:
                kept.append(await self._take(f"{self._root}/{name}", kept))
        except DamagedIndex as error:
            why = str(error)
        while kept:
            try:
                await self._verify(kept[-1])
                break
            except DamagedIndex as error:
                why = why or str(error)
                kept.pop()
        if why and names:
            self._env.log.warning(
                "the index of messages by key is rebuilt", reason=why, files=len(names) - len(kept)
            )
        for name in names[len(kept) :]:
            await run(Lane.DISK, files.unlink, f"{self._root}/{name}")
        self._files = kept
        behind = await self._behind_newest(kept)
        self.indexed = behind
        if not why and _holds(progress, kept):
            position = progress.get("position")
            if isinstance(position, int) and behind <= position <= self._log.end_pos:
                self.indexed = position

    def _read_progress(self) -> dict[str, object]:
        data = read_file(self._env.files, self._progress)
        try:
            return {} if data is None else decode_json(data)
        except CorruptFile:
            return {}

    def _missing(self, progress: dict[str, object], names: Sequence[str]) -> str:
        """Return a text that names a missing file. The text is empty if all files that should exist do
        exist."""
        for name, count, end in _listed(progress):
            if count > 1 and end >= self._log.begin_pos and name not in names:
                return f"{self._root}/{name} is missing"
        return ""

    async def _take(self, path: str, before: Sequence[KeyFile]) -> KeyFile:
        slots, units = self._limits.index_slots, self._limits.index_units
        found = await self._env.workers.run(Lane.DISK, key_files.load, self._env.files, path, slots, units)
        end = before[-1].header.end_position if before else -1
        if found.header.count > 1 and found.header.begin_position <= end:
            raise DamagedIndex(f"{path}: does not continue where {before[-1].path} ends")
        await self._check_end(found)
        return found

    async def _verify(self, newest: KeyFile) -> None:
        """Verify the units of the newest file. Older files are made durable when they are full; the newest is
        not."""
        run, files = self._env.workers.run, self._env.files
        newest.heads, newest.dirty = None, set()
        number, position = 1, newest.header.begin_position
        while number < newest.header.count or newest.heads is None:
            number, position = await run(Lane.DISK, key_files.verify, files, newest, number, position)

    async def _check_end(self, file: KeyFile) -> None:
        """Check that the last message of a file is in the log and has that key, unless retention has removed
        the message."""
        end = file.header.end_position
        if file.header.count > 1 and end >= self._log.begin_pos:
            hashed = await self._env.workers.run(Lane.DISK, key_files.last_hash, self._env.files, file)
            if hashed not in await self._hashes(end):
                raise DamagedIndex(f"{file.path}: its last message is not in the log at {end}")

    async def _hashes(self, position: int) -> list[int]:
        data = await self._entry(position)
        return (
            []
            if data is None
            else await self._env.workers.run(Lane.DISK, lambda: list(key_files.hashes_at(data, position)))
        )

    async def _entry(self, position: int) -> bytes | None:
        """Return the entry whose message is at a physical offset, or None if the log has no entry there."""
        begin = position - ENTRY_HEADER
        if not self._log.begin_pos <= begin <= self._log.end_pos - ENTRY_HEADER:
            return None
        try:
            size = int.from_bytes(bytes(await self._log.read(begin + 4, 4)), "big", signed=True)
            if not ENTRY_HEADER < size <= MAX_ENTRY_SIZE or begin + size > self._log.end_pos:
                return None
            return bytes(await self._log.read(begin, size))
        except ValueError:
            return None

    async def _behind_newest(self, kept: Sequence[KeyFile]) -> int:
        """Return the log offset just after the newest message in the files, or the beginning of the log if
        that message is not in the log."""
        end = kept[-1].header.end_position if kept else 0
        entry = await self._entry(end) if end else None
        if entry is None:
            return self._log.begin_pos
        return end - ENTRY_HEADER + len(entry)


def _cut(keys: MessageKeys, first: int, last: int) -> MessageKeys:
    return MessageKeys(*(column[first:last] for column in keys))


def _time_name(moment: datetime) -> str:
    return moment.strftime("%Y%m%d%H%M%S") + f"{moment.microsecond // 1000:03d}"


def _listed(progress: dict[str, object]) -> list[tuple[str, int, int]]:
    files = progress.get("files")
    return (
        [(str(name), int(count), int(end)) for name, count, end in files] if isinstance(files, list) else []
    )


def _holds(progress: dict[str, object], kept: Sequence[KeyFile]) -> bool:
    """Whether the newest file listed in `progress` still holds all units that it held when the progress was
    saved."""
    counts = {file.name: file.header.count for file in kept}
    listed = _listed(progress)
    return not listed or counts.get(listed[-1][0], 0) >= listed[-1][1]
