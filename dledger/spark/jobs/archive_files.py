"""The files of an archive, and how a batch is added to them exactly once. This module does not use Spark.

```
<root>/topic=<topic>/day=<yyyy-mm-dd>/<batch>-<number>.parquet    what readers see
<root>/_archive/<batch>.json                                      one record per batch, never deleted
<root>/_archive/staging/<batch>/topic=.../day=.../part-*.parquet  a batch being written
<root>/_archive/lock
```

Spark, Arrow and pandas skip names that begin with `_`, so `spark.read.parquet(root)` reads exactly the
archive. Polars and DuckDB do not; for them `<root>/topic=*/day=*/*.parquet` is exactly the archive.

1. The batch is written below `staging`, and made durable.
2. Its record is published by one rename, which is the commit of the batch. The record names every file and
   its final place, and the positions in the log at which the next batch begins.
3. The files are moved to their places. The record gives their names, so repeating this changes nothing.
4. The staging directory is removed.

A failure before step 2 leaves nothing that readers see, and the batch is written again. After step 2, the
next run completes the batch.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from dledger.formats.store_files import parse_segment_name, segment_name
from dledger.runtime.atomic_file import read_file, write_synced
from dledger.runtime.files import File, Files
from dledger.spark.jobs.errors import JobError

RECORDS_DIR = "_archive"
VERSION = 2
"""Version of the records. Records of version 1 have no `lives`, and their files no column `life`."""

LOG = "log"
Gap = tuple[str, int, int]
"""A range that was deleted before it could be archived: "log" or "topic/queue", then its first and its
last index (of the log) or offset (of the queue)."""
Positions = dict[str, dict[str, int]]
"""Maps a broker group to the point up to which it is archived: {"log": next index of the log} or
{"topic/queue": next offset}."""

Lives = Mapping[str, Mapping[str, str]]
"""Maps a broker group to {topic: its life, as text of `formats.life`}."""


@dataclass(frozen=True)
class ArchivedFile:
    """A data file of a batch. `staged`: its path in the staging directory; `path`: its final path below
    the root."""

    staged: str
    path: str
    rows: int


@dataclass(frozen=True)
class Batch:
    """The record of a batch. `positions` and `queues` describe the whole archive as it is after this
    batch."""

    number: int
    group: str
    cluster: str
    selection: Mapping[str, str]
    """Options that choose what is archived. They are the same for all batches of an archive."""
    positions: Positions
    queues: Positions
    """Maps a broker group to {"topic/queue": next offset}. Messages with lower offsets are in the archive,
    or were skipped."""
    files: tuple[ArchivedFile, ...] = ()
    skipped: tuple[Gap, ...] = ()
    lives: Lives = field(default_factory=dict)
    """The life of each topic to which its offsets in `queues` belong. A topic is missing if it has no
    messages in the archive, or if its life is not known."""
    renewed: tuple[str, ...] = ()
    """Topics of this batch that were deleted and made again since the batch before. The archive lacks what
    they got between that batch and their deletion."""
    version: int = VERSION

    @property
    def rows(self) -> int:
        """Number of messages of this batch."""
        return sum(file.rows for file in self.files)


@dataclass
class ArchiveFiles:
    """An archive. Opening it locks out other writers until `close`. Methods are blocking."""

    files: Files
    root: str
    last: Batch | None = None
    """The record of the newest batch; None when there is none."""
    _lock: File | None = field(default=None, repr=False)

    def open(self) -> None:
        """Make the directories, take the lock, and complete the last batch of an earlier run. Raises
        JobError."""
        if not self.files.is_dir(self._records) and self.files.is_dir(self.root):
            others = sorted(self.files.listdir(self.root))
            if others:  # readers of the archive would read them, too
                text = f"{self.root} is not an archive, and holds {others[0]}"
                raise JobError(f"{text}: give a new or an empty directory")
        self.files.mkdir(self._staging)
        try:
            self._lock = self.files.lock(f"{self._records}/lock")
        except BlockingIOError as error:
            raise JobError(f"{self.root}: another job is archiving there: wait for it to end") from error
        try:
            self._recover()
        except BaseException:
            self.close()
            raise

    def _recover(self) -> None:
        numbers = self.numbers()
        if numbers:
            self.last = self.read(numbers[-1])
            if self.files.is_dir(self.staging(self.last.number)):
                self._put_in_place(self.last)
        for name in self.files.listdir(self._staging):
            self.files.rmtree(f"{self._staging}/{name}")

    def close(self) -> None:
        """Release the lock, so that other writers can open the archive."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    @property
    def next_number(self) -> int:
        """The number of the next batch to be written."""
        return self.last.number + 1 if self.last else 0

    def staging(self, number: int) -> str:
        """Return the path of the directory in which a batch is staged. It has subdirectories
        `topic=<topic>/day=<day>`."""
        return f"{self._staging}/{segment_name(number)}"

    def commit(self, batch: Batch, rows_of: Callable[[str], int]) -> Batch:
        """Make the files in the staging directory part of the archive. Return the batch's record, with its
        files."""
        staged = [name for name in self._walk(self.staging(batch.number), "") if name.endswith(".parquet")]
        found = []
        for count, name in enumerate(staged):
            path = f"{self.staging(batch.number)}/{name}"
            place = f"{name.rpartition('/')[0]}/{segment_name(batch.number)}-{count:05d}.parquet"
            found.append(ArchivedFile(name, place, rows_of(path)))
            self._make_durable(path)
        for directory in dict.fromkeys(name.rpartition("/")[0] for name in staged):
            self.files.sync_dir(f"{self.staging(batch.number)}/{directory}")
        whole = Batch(**{**vars(batch), "files": tuple(found)})
        self._publish(whole)
        self.last = whole
        self._put_in_place(whole)
        self.files.rmtree(self.staging(whole.number))
        return whole

    def numbers(self) -> list[int]:
        """Return the numbers of all batches, ascending."""
        names = self.files.listdir(self._records)
        parsed = [parse_segment_name(name.removesuffix(".json")) for name in names if name.endswith(".json")]
        return sorted(number for number in parsed if number is not None)

    def read(self, number: int) -> Batch:
        """Read the record of one batch. Raises JobError if it is not valid."""
        path = f"{self._records}/{segment_name(number)}.json"
        data = read_file(self.files, path)
        try:
            return _decode(json.loads(data or b""))
        except (ValueError, KeyError, TypeError) as error:
            raise JobError(f"{path} is not a record of an archive: {error}") from error

    def gap_since(self, group: str, queue: str) -> bool:
        """Whether retention deleted messages of this broker group after the batch with the queue's newest
        archived message.

        Until the next message of the queue is archived, even many batches later, it is not known which of
        the queue's offsets were deleted.
        """
        batch = self.last
        known = _next_offset(batch, group, queue)
        while batch is not None:
            before = self.read(batch.number - 1) if batch.number else None
            if _next_offset(before, group, queue) != known:
                return False  # this batch brought the newest message: what it skipped lies before that
            if batch.group == group and any(of in (LOG, queue) for of, _, _ in batch.skipped):
                return True
            batch = before
        return False

    @property
    def _records(self) -> str:
        return f"{self.root}/{RECORDS_DIR}"

    @property
    def _staging(self) -> str:
        return f"{self._records}/staging"

    def _walk(self, directory: str, prefix: str) -> Iterator[str]:
        for name in self.files.listdir(directory):
            if self.files.is_dir(f"{directory}/{name}"):
                yield from self._walk(f"{directory}/{name}", f"{prefix}{name}/")
            else:
                yield prefix + name

    def _make_durable(self, path: str) -> None:
        file = self.files.open(path)
        try:
            file.fdatasync()
        finally:
            file.close()

    def _publish(self, batch: Batch) -> None:
        path = f"{self._records}/{segment_name(batch.number)}.json"
        write_synced(self.files, path + ".tmp", json.dumps(asdict(batch)).encode())
        self.files.rename(path + ".tmp", path)
        self.files.sync_dir(self._records)

    def _put_in_place(self, batch: Batch) -> None:
        """Move the files of the batch that are still in the staging directory to their places. Raises
        JobError if a file is neither in the staging directory nor in its place."""
        directories = dict.fromkeys(file.path.rpartition("/")[0] for file in batch.files)
        for directory in directories:
            self.files.mkdir(f"{self.root}/{directory}")
        for file in batch.files:
            staged, place = f"{self.staging(batch.number)}/{file.staged}", f"{self.root}/{file.path}"
            if self.files.exists(staged):
                self.files.rename(staged, place)
            elif not self.files.exists(place):
                raise JobError(f"{place} of batch {batch.number} is missing: restore it from a backup")
        for directory in directories:
            self.files.sync_dir(f"{self.root}/{directory}")


def _next_offset(batch: Batch | None, group: str, queue: str) -> int | None:
    return batch.queues.get(group, {}).get(queue) if batch else None


def topic_of(queue: str) -> str:
    """Return the topic of a queue, `<topic>/<number>`."""
    return queue.rpartition("/")[0]


def _decode(value: dict[str, Any]) -> Batch:
    if value["version"] > VERSION:
        raise ValueError(f"version {value['version']} is newer than this program's {VERSION}")
    value["files"] = tuple(ArchivedFile(**file) for file in value["files"])
    value["skipped"] = tuple((str(of), int(first), int(last)) for of, first, last in value["skipped"])
    value["renewed"] = tuple(map(str, value.get("renewed", ())))
    return Batch(**value)
