"""Content of one file: what the page cache shows, what the device holds, and the writes between the two."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable

BLOCK = 4096  # the unit in which a file system gives room
SECTOR = 512  # the unit that a device writes as a whole or not at all
_LARGE = 64 * 1024
# unit of the page cache, and where a kill cuts writes. It is much smaller than on real machines, because the
# files are, too.
_PAGE = 256

# A write (offset, bytes) or a new length (length, None).
FileOp = tuple[int, bytes | None]

MODES = ("prefix", "torn", "none", "all")


def apply_op(content: bytearray, op: FileOp) -> bytearray:
    """Apply one operation and return the content after it. The content is changed in place, or copied if it
    becomes more than twice as long.

    Raises BufferError if its length would change while views of it are in use.
    """
    offset, data = op
    length = offset if data is None else offset + len(data)
    if data is None and length < len(content):
        del content[length:]
    elif length > len(content):
        content = _longer(content, length)
    if data is not None:
        content[offset:length] = data  # not longer than what it replaces, so views stay valid
    return content


def _longer(content: bytearray, length: int) -> bytearray:
    # Zeros of a new bytearray take no memory until they are touched, and touching them takes most of the
    # time.
    if length - len(content) < max(_LARGE, len(content)):
        content.extend(bytes(length - len(content)))
        return content
    if content:
        content.append(content.pop())  # raises the BufferError that extend would raise
    return _copy(content, len(content), length)


def _copy(content: bytearray, used: int, length: int) -> bytearray:
    """A copy with this length. Only the first `used` bytes of the content may differ from zero."""
    result = bytearray(length)
    if used:
        with memoryview(content) as view:
            result[:used] = view[:used]
    return result


class Inode:
    """One file. It may have several names, or none."""

    __slots__ = (
        "_blocks",
        "_dirty_end",
        "_further_blocks",
        "_used",
        "cached",
        "content",
        "durable",
        "lock_owner",
        "number",
        "pending",
        "written",
    )

    def __init__(self, number: int) -> None:
        self.number: int = number
        self.content: bytearray = bytearray()
        self.durable: bytearray = bytearray()
        self.pending: deque[FileOp] = deque()
        self.written: int = 0  # number of operations since the creation or a power cut
        self._dirty_end = 0  # the content is zero from this offset on
        self._used = 0  # the same for all that was ever written, so for the durable content too
        self._blocks = 0  # how many blocks from the start have room on the device
        self._further_blocks: set[int] = set()  # the blocks with room that lie after a hole
        self.lock_owner: object | None = None
        self.cached: bytearray | None = None  # 1 for each page in memory; None if all are in memory

    # -- the page cache ------------------------------------------------------------------------------

    def write(self, op: FileOp) -> FileOp:
        """Write into the page cache. Returns the operation, which stays pending until it is synced. Raises
        BufferError if the length of a mapped file would change."""
        op = self._without_zeros(op)
        self.content = apply_op(self.content, op)
        self.pending.append(op)
        self.written += 1
        offset, data = op
        if data is None:
            self._dirty_end = min(self._dirty_end, offset)
            self._free_blocks(-(-len(self.content) // BLOCK))
        else:
            self._dirty_end = max(self._dirty_end, offset + len(data))
            self._used = max(self._used, self._dirty_end)
            self._now_cached(offset, len(data))
        return op

    def tear(self, op: FileOp, before: bytes, kept: int) -> bool:
        """Simulate kill -9 in the middle of a write: only the first `kept` bytes of the last operation were
        written.

        `before` is the content of the written range before the write. Returns False, and does nothing, if
        something else was written since.
        """
        offset, data = op
        if data is None or not self.pending or self.pending[-1] is not op:
            return False
        end = offset + len(data)
        if len(before) < len(data) and len(self.content) == end:
            del self.content[max(offset + len(before), offset + kept) :]
        rest = before[kept:]
        self.content[offset + kept : offset + kept + len(rest)] = rest
        self.pending[-1] = (offset, data[:kept])
        return True

    def _without_zeros(self, op: FileOp) -> FileOp:
        # Prepared segments are filled with megabytes of zeros. Zeros at the end need no memory until they are
        # touched.
        offset, data = op
        if data is None or len(data) < _LARGE or offset < self._dirty_end or data != bytes(len(data)):
            return op
        return (max(len(self.content), offset + len(data)), None)

    def read(self, offset: int, length: int) -> bytes:
        """Read from the page cache, and load missing pages into it. The result is short at the end of the
        file."""
        self._now_cached(offset, length)
        with memoryview(self.content) as view:
            return bytes(view[offset : offset + length])

    def evict(self) -> None:
        """Drop all pages of this file from the page cache. (Real kernels keep pages that are not durable, but
        a program must not rely on it.)"""
        self.cached = bytearray()

    def leave_to_the_dead(self) -> None:
        """Leave the current content object to a killed process that holds views of it. The file continues
        with a copy."""
        self.content = _copy(self.content, min(self._used, len(self.content)), len(self.content))

    def _now_cached(self, offset: int, length: int) -> None:
        if self.cached is not None and length > 0:
            first, end = offset // _PAGE, -(-(offset + length) // _PAGE)
            if end > len(self.cached):
                self.cached.extend(bytes(end - len(self.cached)))
            self.cached[first:end] = b"\1" * (end - first)

    def in_memory(self, offset: int, length: int) -> bool:
        """Whether this range is in memory, so that a read does not wait for the device."""
        if self.cached is None or length <= 0:
            return True
        first, end = offset // _PAGE, -(-(offset + length) // _PAGE)
        return end <= len(self.cached) and self.cached.find(0, first, end) < 0

    # -- room ----------------------------------------------------------------------------------------

    @property
    def room(self) -> int:
        """Bytes of the device that the file uses."""
        return (self._blocks + len(self._further_blocks)) * BLOCK

    def has_room(self, end: int) -> bool:
        """Whether everything below `end` has blocks."""
        return -(-end // BLOCK) <= self._blocks

    def lacks_room(self, end: int) -> int:
        """How many bytes of new blocks are needed so that everything below `end` has blocks."""
        count = -(-end // BLOCK)
        further = sum(1 for block in self._further_blocks if block < count)
        return max(0, count - self._blocks - further) * BLOCK

    def take_room(self, start: int, end: int, free: int | None) -> int:
        """Give blocks to the range [start, end). At most `free` bytes are available; None means no limit.
        Returns the end of the part of the range that has blocks."""
        first, last = start // BLOCK, (end - 1) // BLOCK
        if last < self._blocks:
            return end
        if free is None and first <= self._blocks and not self._further_blocks:
            self._blocks = last + 1
            return end
        for block in range(max(first, self._blocks), last + 1):
            if block in self._further_blocks:
                continue
            if free is not None:
                if free < BLOCK:
                    end = max(start, block * BLOCK)
                    break
                free -= BLOCK
            self._further_blocks.add(block)
        while self._blocks in self._further_blocks:
            self._further_blocks.discard(self._blocks)
            self._blocks += 1
        return end

    def _free_blocks(self, count: int) -> None:
        self._blocks = min(self._blocks, count)
        if self._further_blocks:
            self._further_blocks = {block for block in self._further_blocks if block < count}

    # -- durability ----------------------------------------------------------------------------------

    def commit(self, mark: int) -> None:
        """Make the first `mark` operations of this file durable. They are counted from the creation of the
        file, or from the last power cut."""
        count = len(self.pending) - (self.written - mark)
        for _ in range(count):
            self.durable = apply_op(self.durable, self.pending.popleft())

    def fail_commit(self, rng: random.Random) -> str:
        """Simulate an fsync that fails: a part of the writes is not on the device, and no one writes them
        again.

        As on Linux, the pages count as clean, so the next fsync succeeds. Returns "kept" if the pages show
        the written content, or "dropped" if they show the content of the device.
        """
        ops = list(self.pending)
        self.pending.clear()
        unlucky = rng.randrange(len(ops)) if ops else 0
        missed = [op for number, op in enumerate(ops) if number == unlucky or rng.random() < 0.5]
        for op in ops:
            if not any(op is other for other in missed):
                self.durable = apply_op(self.durable, op)
        if rng.random() < 0.5:
            return "kept"
        for offset, data in missed:
            if data is not None:
                end = min(offset + len(data), len(self.content))
                if end > offset:
                    self.content[offset:end] = self.durable[offset:end].ljust(end - offset, b"\0")
        return "dropped"

    def lose(self, mode: str, rng: random.Random) -> int:
        """Simulate a power cut. Returns the number of lost operations. The file continues with a new content
        object, because the dead process may have views of the old one."""
        ops = list(self.pending)
        if mode == "torn":
            self.durable, lost = torn(self.durable, ops, rng, self._used)
        else:
            kept = surviving(len(ops), mode, rng)
            lost = len(ops) - kept
            for op in ops[:kept]:
                self.durable = apply_op(self.durable, op)
        self.pending.clear()
        self.written = 0
        self.content = _copy(self.durable, min(self._used, len(self.durable)), len(self.durable))
        self._dirty_end = self._used  # a change to a shorter length may be lost
        self.evict()
        self._free_blocks(-(-len(self.content) // BLOCK))
        self.lock_owner = None
        return lost

    def flip(self, offset: int, bit: int) -> None:
        """Flip a bit in the cache, on the device, and in pending operations. Raises IndexError if `offset` is
        beyond the end."""
        self._rot(offset, offset + 1, lambda byte: byte ^ 1 << bit)

    def zero(self, offset: int, length: int) -> None:
        """Overwrite a range with zeros in the cache, on the device, and in pending operations. Raises
        IndexError if the range goes beyond the end."""
        self._rot(offset, offset + length, lambda byte: 0)

    def _rot(self, begin: int, end: int, change: Callable[[int], int]) -> None:
        self._used = max(self._used, end)
        self._dirty_end = max(self._dirty_end, min(end, len(self.content)))
        for at in range(begin, end):
            self.content[at] = change(self.content[at])
        for at in range(begin, min(end, len(self.durable))):
            self.durable[at] = change(self.durable[at])
        for number, (start, data) in enumerate(self.pending):
            if data is not None and start < end and begin < start + len(data):
                rotten = bytearray(data)
                for at in range(max(begin, start), min(end, start + len(data))):
                    rotten[at - start] = change(rotten[at - start])
                self.pending[number] = (start, bytes(rotten))


def page_ends(offset: int, length: int) -> list[int]:
    """How many bytes of a write may be written when a kill interrupts it. The kernel looks for a kill between
    two pages, so there is one number for each page boundary within the write."""
    return [page * _PAGE - offset for page in _pages(offset, length)[1:]]


def _pages(offset: int, length: int) -> range:
    return range(offset // _PAGE, -(-(offset + length) // _PAGE))


def surviving(count: int, mode: str, rng: random.Random) -> int:
    """How many of the `count` pending operations survive a power cut. They are the first ones in order."""
    if mode == "none" or not count:
        return 0
    return count if mode == "all" else rng.randint(0, count)


def torn(durable: bytearray, ops: list[FileOp], rng: random.Random, used: int) -> tuple[bytearray, int]:
    """Simulate a power cut of a device that may have written any sectors in any order. Returns the content of
    the device afterwards, and how many operations are incomplete.

    Each sector holds one of the states that it had, because writes to one sector are not reordered. The
    length is one that the file had. The durable content must be zero from `used` on.
    """
    if not ops:
        return durable, 0
    touching: dict[int, list[int]] = {}  # maps a sector to the numbers of the writes to it
    for number, (offset, data) in enumerate(ops):
        if data is not None:
            for sector in range(offset // SECTOR, (offset + len(data) - 1) // SECTOR + 1):
                touching.setdefault(sector, []).append(number)
    last = _last_writes(touching, len(ops), rng)
    lengths = rng.randint(0, len(ops))  # how many operations have changed the length
    content, length, lost = _copy(durable, min(used, len(durable)), len(durable)), len(durable), 0
    for number, (offset, data) in enumerate(ops):
        reached = number < lengths
        if data is None:
            if reached and offset < len(content):
                del content[offset:]
            length = offset if reached else length
        else:
            end = offset + len(data)
            length = max(length, end) if reached else length
            if end > len(content):
                content = _longer(content, end)
            for sector in range(offset // SECTOR, (end - 1) // SECTOR + 1):
                if number <= last[sector]:
                    low, high = max(offset, sector * SECTOR), min(end, (sector + 1) * SECTOR)
                    content[low:high] = data[low - offset : high - offset]
                else:
                    reached = False
        lost += not reached
    del content[length:]
    return (content if length <= len(content) else _longer(content, length)), lost


def _last_writes(touching: dict[int, list[int]], count: int, rng: random.Random) -> dict[int, int]:
    """Maps each sector to the number of the last write whose data it contains; -1 means none."""
    last: dict[int, int] = {}
    # every write is there as a whole or not at all, as far as the order within a sector allows it
    if rng.random() < 0.5:
        there = [rng.random() < 0.5 for _ in range(count)]
        for sector, writes in touching.items():
            missing = next((place for place, number in enumerate(writes) if not there[number]), len(writes))
            last[sector] = writes[missing - 1] if missing else -1
    else:  # for each sector separately
        for sector, writes in touching.items():
            kept = rng.choice((0, len(writes), rng.randint(0, len(writes))))
            last[sector] = writes[kept - 1] if kept else -1
    return last
