"""The `runtime.files.Files` and `File` of one simulated process. They work on the simulated disk of its
machine."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from dledger.chaos.machine.disk import Directory, Disk
from dledger.chaos.machine.inode import FileOp, Inode, page_ends
from dledger.runtime.files import Buffer, DiskUsage

if TYPE_CHECKING:
    from dledger.chaos.machine.node import Process


class SimFile:
    """An open file of a simulated process."""

    def __init__(self, files: SimFiles, path: str, inode: Inode) -> None:
        self.path = path
        self._files = files
        self._inode: Inode | None = inode
        self._number = files.opened(inode)
        self._view: memoryview | None = None
        self._mapped = False

    def _open_inode(self) -> Inode:
        if self._inode is None:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF), self.path)
        return self._inode

    def size(self) -> int:
        """Length in bytes."""
        return len(self._open_inode().content)

    def pread(self, length: int, offset: int) -> bytes:
        """Read up to `length` bytes from `offset`. The result is shorter only at the end of the file."""
        inode = self._open_inode()
        self._files.reads(self.path)
        if self._files.on_loop:
            self._files.against_the_rules(f"pread {self.path}: on the event loop, not in a worker (S8)")
        return inode.read(offset, length)

    def pread_now(self, length: int, offset: int) -> bytes | None:
        """Read without waiting for the device. Returns None if a part of the range is not in memory."""
        inode, disk = self._open_inode(), self._files.disk
        if (disk.forgetful and disk.rng.random() < disk.forgetful) or not inode.in_memory(offset, length):
            disk.world.cold_reads += 1
            return None
        self._files.reads(self.path)
        return inode.read(offset, length)

    def pwritev(self, parts: Sequence[Buffer], offset: int) -> None:
        """Write all parts one after another into the page cache. After ENOSPC or EIO a part of the data may
        be written."""
        data = bytes(parts[0]) if len(parts) == 1 else b"".join(parts)
        inode = self._open_inode()
        if not data:
            return
        ends = page_ends(offset, len(data))
        if ends and self._files.dies_in_write(self.path):
            self._tear(inode, offset, data, ends)
            return
        alive = self._files.alive
        if not self._files.effect("write", self.path, offset, len(data)):
            if alive and self._files.killed_here():
                self._tear(inode, offset, data, [0, *ends, len(data)])
            return
        if not self._files.disk.troubled:
            inode.take_room(offset, offset + len(data), None)
            self._change(inode, (offset, data))
            return
        disk = self._files.disk
        error = disk.failure("write", self.path)
        if error is not None:
            data = data[: disk.rng.randint(0, len(data))]
        else:
            offset = disk.place(self.path, inode, offset, len(data))
        if data:
            fits = inode.take_room(offset, offset + len(data), disk.free()) - offset
            if fits < len(data):
                error = disk.full(self.path)
            if fits:
                self._change(inode, (offset, data[:fits]))
        if error is not None:
            raise error

    def _tear(self, inode: Inode, offset: int, data: bytes, ends: list[int]) -> None:
        """Simulate a kill -9 in the middle of a write: the kernel ends the write between two pages."""
        disk = self._files.disk
        kept = disk.rng.choice(ends)
        fits = inode.take_room(offset, offset + kept, disk.free()) - offset if kept else 0
        if fits:
            self._change(inode, (offset, data[:fits]))
            disk.world.fault(disk.name, "torn_write", f"{self.path} {offset}+{fits} of {len(data)}")

    def start_writeback(self, length: int, offset: int) -> None:
        """Does nothing. After a crash of the simulated machine any part of the unsynced writes may be kept,
        with or without this call."""
        self._open_inode()

    def allocate(self, size: int) -> None:
        """Reserve blocks up to `size`; they read as zeros."""
        inode = self._open_inode()
        if size <= self.size() and inode.has_room(size):
            return
        if self._files.effect("alloc", self.path, size):
            disk = self._files.disk
            disk.check("write", self.path)
            free = disk.free()
            if free is not None and inode.lacks_room(size) > free:
                raise disk.full(self.path)
            if size > self.size():
                self._change(inode, (size, None))
            inode.take_room(0, size, None)

    def truncate(self, size: int) -> None:
        """Set the length. New bytes read as zeros and have no blocks yet."""
        inode = self._open_inode()
        if size != self.size() and self._files.effect("trunc", self.path, size):
            self._files.disk.check("write", self.path)
            self._change(inode, (size, None))

    def _change(self, inode: Inode, op: FileOp) -> None:
        offset, data = op
        before = b"" if data is None else bytes(inode.content[offset : offset + len(data)])
        try:
            done = inode.write(op)
        except BufferError as error:
            raise NotImplementedError(
                f"{self.path}: simulated files keep their length while mapped"
            ) from error
        self._files.wrote(inode, done, before)

    def pwritev_synced(self, parts: Sequence[Buffer], offset: int) -> None:
        """Write and fsync. A crash may happen between the two."""
        self.pwritev(parts, offset)
        self.fdatasync()

    def fdatasync(self) -> None:
        """Make all earlier writes of this file durable. They are durable when the job that calls this
        ends."""
        inode = self._open_inode()
        if self._files.effect("fsync", self.path, durable=True):
            mark = inode.written
            error = self._files.disk.failure("fsync", self.path) if self._files.disk.troubled else None
            if error is not None:
                self._files.sync_failed(inode.fail_commit(self._files.disk.rng))
                raise error
            self._files.commit(lambda: inode.commit(min(mark, inode.written)))

    def view(self) -> memoryview:
        """A read-only view of the whole file at its current length. The view always shows the latest
        writes."""
        inode = self._open_inode()
        if not inode.content:
            raise ValueError("cannot mmap an empty file")
        if not self._files.alive:
            return memoryview(bytes(inode.content))  # the rest of a callback that a crash interrupted
        if self._view is None:
            self._view = memoryview(inode.content).toreadonly()
            self._mapped = True
            self._files.mapped.append(self)
        return self._view

    def close(self) -> None:
        """Close the file. Raises BufferError if a slice of `view()` is still in use; then the file stays
        open."""
        inode = self._inode
        if inode is None:
            return
        if self._mapped:
            if self._view is not None:
                self._view.release()
                self._view = None
            _check_no_exports(inode.content)
            self._mapped = False
            self._files.mapped.remove(self)
        if inode.lock_owner is self:
            inode.lock_owner = None
        self._files.closed(self._number)
        self._inode = None

    def unmap(self) -> None:
        """Release the file of a killed process. If the process holds slices of the view, the file continues
        with a copy of its content."""
        inode = self._open_inode()
        self._mapped = False
        try:
            if self._view is not None:
                self._view.release()
            _check_no_exports(inode.content)
        except BufferError:
            inode.leave_to_the_dead()

    def held_lock(self) -> bool:
        """Whether the process that opened this file still runs and has the file open."""
        return self._inode is not None and self._files.alive


def _check_no_exports(content: bytearray) -> None:
    # A bytearray refuses to change its length while a view of it is in use, as mmap refuses to close.
    try:
        content.append(content.pop())
    except BufferError:
        raise BufferError("cannot close exported pointers exist") from None


class SimFiles:
    """The file system of one simulated process. It shows the disk of its machine."""

    def __init__(self, disk: Disk, process: Process) -> None:
        self.disk = disk
        self._process = process
        self._world = process.world
        self.mapped: list[SimFile] = []
        self._open_numbers: dict[int, None] = {}

    @property
    def alive(self) -> bool:
        """Whether the process still runs."""
        return self._process.alive

    def effect(
        self,
        operation: str,
        path: str,
        start: int | None = None,
        length: int | None = None,
        *,
        durable: bool = False,
        ends_job: bool = True,
    ) -> bool:
        """Count and trace an operation. Returns False if the process is dead.

        Fails the run if one job makes two things durable, or if the event loop makes something durable.
        """
        world = self._world
        if world.job is not None and world.job.thread is not None:
            self._process.workers.pause()
        if not self._process.effect():
            return False
        if world.trace is not None:
            detail = f"{operation} {path}" + ("" if start is None else f" {start}")
            detail += "" if length is None else f"+{length}"
            world.trace.add(self._process.loop.now_ns(), self._process.name, "disk", detail)
        job = world.job
        if job is None:
            if durable and self.on_loop:
                self.against_the_rules(f"{operation} {path}: durable work on the event loop, not in a worker")
        else:
            job.touched = True
            if job.synced and (durable or operation != "write"):
                self.against_the_rules(f"{operation} {path}: a job ends with its one durable action")
            job.synced = job.synced or (durable and ends_job)
        return True

    @property
    def on_loop(self) -> bool:
        """Whether the current code runs on an event loop and not in a worker's job."""
        return self._world.job is None and self._world.current is not None

    def against_the_rules(self, text: str) -> None:
        """Fail the run for an access that would be harmful on real hardware."""
        if self._world.settings.strict_disk:
            self._world.fail(self._process, text, None)

    def _looks_up(self, operation: str, path: str) -> None:
        if self._world.settings.strict_names and self.on_loop:
            self.against_the_rules(f"{operation} {path}: on the event loop, not in a worker (S8)")

    def reads(self, path: str) -> None:
        """Called before content is read. Raises OSError if a failure of this read was requested with
        `disk.fail`."""
        job = self._world.job
        if job is not None:
            job.touched = True
            if job.thread is not None:
                self._process.workers.pause()
        if self.disk.troubled:
            self.disk.check("read", path)

    def wrote(self, inode: Inode, op: FileOp, before: bytes) -> None:
        """Note a write of the running job. If the process is killed while the job runs, the write may be cut
        off."""
        job = self._world.job
        if job is not None:
            job.writes.append((inode, op, before, len(job.commits)))

    def dies_in_write(self, path: str) -> bool:
        """Whether the process has to be killed in the middle of this write. If so, this method kills it."""
        below = self._process.dies_below
        if below is None or below not in path or not self.alive:
            return False
        self._process.dies_below = None
        self._world.kill(self._process.node)
        return True

    def killed_here(self) -> bool:
        """Whether the process was just ended by a kill and not by a power cut. A kill leaves the page
        cache."""
        return self._process.crash_power is None and self._process.node.powered

    def sync_failed(self, how: str) -> None:
        """Note that an fsync made nothing durable. So the same job may still make something else durable."""
        self._world.note(self._process.name, "unsynced", how)
        if self._world.job is not None:
            self._world.job.synced = False

    def opened(self, inode: Inode) -> int:
        """Register an open file. Returns its number."""
        number = self.disk.next_number()
        self.disk.open_inodes[number] = inode
        self._open_numbers[number] = None
        return number

    def closed(self, number: int) -> None:
        """Forget an open file. If the file has no name, its room is freed."""
        self.disk.open_inodes.pop(number, None)
        self._open_numbers.pop(number, None)

    def commit(self, action: Callable[[], None]) -> None:
        """Call `action`, which makes a change durable, when the running job ends. If no job runs, call it
        now."""
        if self._world.job is None:
            action()
        else:
            self._world.job.commits.append(action)

    def killed(self) -> None:
        """Clean up after the process was killed. The page cache stays; the mappings of the dead process are
        released."""
        for file in self.mapped:
            file.unmap()
        self.mapped.clear()
        for number in list(self._open_numbers):
            self.closed(number)

    def open(self, path: str, create: bool = False) -> SimFile:
        """Open for reading and writing. Raises FileNotFoundError if the file does not exist and `create` is
        not set."""
        self._looks_up("open", path)
        if self._world.job is not None:
            self._world.job.touched = True
        self.disk.check("open", path)
        if create and self.disk.find(path) is None:
            self.disk.directory(self.disk.split(path)[0])
            if self.effect("create", path):
                self.disk.check_room(path)
                return SimFile(self, path, self.disk.create(path))
            return SimFile(self, path, Inode(0))
        return SimFile(self, path, self.disk.inode(path))

    def open_read(self, path: str) -> SimFile:
        """Open for reading. Raises FileNotFoundError if the file does not exist."""
        return self.open(path)

    def exists(self, path: str) -> bool:
        """Whether a file or directory has this name."""
        self._looks_up("exists", path)
        return self.disk.find(path) is not None

    def size(self, path: str) -> int:
        """Length of a file in bytes."""
        self._looks_up("size", path)
        return len(self.disk.inode(path).content)

    def stamp(self, path: str) -> None:
        """Returns None, because simulated processes do not use stamps. Raises FileNotFoundError if the file
        does not exist."""
        self.disk.inode(path)

    def listdir(self, path: str) -> list[str]:
        """The names in a directory, sorted; empty if the directory does not exist."""
        self._looks_up("listdir", path)
        return sorted(self.disk.directory(path).names) if self.exists(path) else []

    def is_dir(self, path: str) -> bool:
        """Whether the name is a directory."""
        self._looks_up("is_dir", path)
        return isinstance(self.disk.find(path), Directory)

    def mkdir(self, path: str, *, sync: bool = True) -> None:
        """Make a directory with its parents; no error if it exists. With `sync`, their names are made
        durable."""
        if self.is_dir(path):
            return
        if not sync:
            if self.effect("mkdir", path):
                self.disk.check_room(path)
                self.disk.make_directory(path)
            return
        # It is harmless to repeat a mkdir, so one job may make several. All are durable when the job ends.
        if self.effect("mkdir", path, durable=True, ends_job=False):
            self.disk.check_room(path)
            missing = path
            above: list[str] = []
            while not self.is_dir(missing):
                missing = self.disk.split(missing)[0]
                above.append(missing)
            self.disk.make_directory(path)
            mark = self.disk.name_mark
            places = [self.disk.directory(name) for name in above]

            def commit() -> None:
                for place in reversed(places):
                    self.disk.sync_names(place, mark)

            self.commit(commit)

    def rename(self, old: str, new: str) -> None:
        """Rename a file, and replace atomically a file that has the new name. Durable after `sync_dir` of the
        parent directory or directories."""
        if self.effect("rename", f"{old} {new}"):
            self.disk.rename(old, new)

    def unlink(self, path: str) -> None:
        """Remove the name of a file. It is no error if the name does not exist."""
        if self.is_dir(path):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        if self.exists(path) and self.effect("unlink", path):
            self.disk.remove(path)

    def rmtree(self, path: str) -> None:
        """Remove the content of a directory, one name after another, then the directory. It is no error if
        the directory does not exist."""
        if not self.exists(path):
            return
        for name in sorted(self.disk.directory(path).names):
            inner = f"{path}/{name}"
            if self.is_dir(inner):
                self.rmtree(inner)
            else:
                self.unlink(inner)
        if self.effect("rmtree", path):
            self.disk.remove(path)

    def sync_dir(self, path: str) -> None:
        """Make the names in this directory durable. They are durable when the job that calls this ends."""
        directory = self.disk.directory(path)
        if self.effect("syncdir", path, durable=True):
            error = self.disk.failure("fsync", path) if self.disk.troubled else None
            if error is not None:
                self.sync_failed("names")
                raise error
            mark = self.disk.name_mark
            self.commit(lambda: self.disk.sync_names(directory, mark))

    def usage(self, path: str) -> DiskUsage:
        """Total and free bytes of the whole disk."""
        self._looks_up("usage", path)
        total = self.disk.capacity
        return DiskUsage(total, max(0, total - self.disk.used()))

    def lock(self, path: str) -> SimFile:
        """Create a file. Lock it and its directory against other processes until the file is closed. Raises
        BlockingIOError if one of the two is locked."""
        file = self.open(path, create=True)
        parent = self.disk.directory(path.rpartition("/")[0] or "/")
        places: tuple[Inode | Directory, ...] = (self.disk.inode(path), parent)
        for place in places:
            owner = place.lock_owner
            if isinstance(owner, SimFile) and owner.held_lock():
                raise BlockingIOError(errno.EWOULDBLOCK, os.strerror(errno.EWOULDBLOCK), path)
        for place in places:
            place.lock_owner = file
        return file
