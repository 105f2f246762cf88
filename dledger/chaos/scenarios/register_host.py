"""The replicated state machine of the simulated groups: a register for each key, and a list of what was done.

A body of a client is `<unique>|<key>|<filling>`: it is appended to the list and becomes the key's value.
The whole state has a digest, so that two replicas are compared in one step. It is rebuilt from the log at
every start; `State.encode` makes it ready for snapshots.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b, shake_128

from dledger.formats.entry import HEADER_SIZE, EntryHeader, Kind, unpack_header
from dledger.formats.record import decode_record
from dledger.host import Chunk, LogReader, Role


@dataclass
class State:
    """What all entries up to `index` made."""

    index: int = -1
    digest: bytes = b""
    count: int = 0
    """Values of clients applied."""
    registers: dict[str, str] = field(default_factory=dict)

    def apply(self, header: EntryHeader, record: bytes | memoryview) -> None:
        """One entry; total: what is no value of a client only moves the digest."""
        summary = f"{header.index} {header.term} {header.kind} {header.body_crc}".encode()
        self.digest = blake2b(self.digest + summary, digest_size=16).digest()
        self.index = header.index
        if header.kind == Kind.RAW:
            self.count += 1
            unique, _, rest = decode_record(record).body.partition(b"|")
            self.registers[rest.partition(b"|")[0].decode()] = unique.decode()

    def encode(self) -> bytes:
        """Canonical: equal states give equal bytes."""
        value = [self.index, self.digest.hex(), self.count, sorted(self.registers.items())]
        return json.dumps(value).encode()

    @classmethod
    def decode(cls, data: bytes) -> State:
        """Inverse of `encode`."""
        index, digest, count, registers = json.loads(data)
        return cls(index, bytes.fromhex(digest), count, dict(registers))


class HostEvents:
    """Who wants to know what the node told its host; the probe overrides what it needs."""

    def opening(self, log: LogReader) -> None:
        """The store is recovered."""

    def restored(self, content: bytes, index: int) -> None:
        """The host has the state of a snapshot that is true at `index`; `content` is that state, encoded."""

    def role(self, role: Role, term: int) -> None:
        """The node's role changed."""

    def serving(self, term: int) -> None:
        """The node serves."""

    def stopped_serving(self, term: int) -> None:
        """It does not any more."""

    def committed(self, index: int) -> None:
        """The node's commit index moved."""

    def applied(self, header: EntryHeader) -> None:
        """An entry was applied."""


class RegisterHost:
    """The host of one life of one node."""

    def __init__(
        self, events: HostEvents, ballast: int = 0, dawdles: Callable[[], float] | None = None
    ) -> None:
        """`ballast`: bytes that a snapshot has besides, so that it travels in pieces. `dawdles`: the time (s)
        that it takes for what is awaited."""
        self.state: State = State()
        self._events = events
        self._ballast = ballast
        self._dawdles = dawdles

    @property
    def index(self) -> int:
        """Of the last entry applied."""
        return self.state.index

    def content(self) -> bytes:
        """The whole state, as `State.encode` has it."""
        return self.state.encode()

    async def open(self, log: LogReader) -> int:
        """Rebuilt from the log."""
        self._events.opening(log)
        return -1

    def snapshot(self) -> Iterable[tuple[str, bytes]]:
        """The whole state."""
        ballast = shake_128(self.state.digest).digest(self._ballast)
        return [("ballast", ballast), ("state", self.state.encode())]

    async def restore(self, parts: Mapping[str, bytes], index: int, pos: int) -> None:
        """Go on from a state that another replica, or this one, had."""
        await self._dawdle()
        self.state = State.decode(parts["state"])
        self._events.restored(self.state.encode(), index)

    async def log_begins(self, parts: Mapping[str, bytes], index: int, pos: int) -> None:
        """Nothing of the state depends on where the log begins."""
        await self._dawdle()

    async def kept_from(self) -> int | None:
        """Nothing of the log is needed any more when it is applied."""
        return None

    async def _dawdle(self) -> None:
        if self._dawdles is not None:
            await asyncio.sleep(self._dawdles())

    def apply(self, chunk: Chunk) -> None:
        """Entries in order."""
        offset = 0
        for _ in range(chunk.count):
            header = unpack_header(chunk.data, offset)
            end = offset + header.size
            self.state.apply(header, chunk.data[offset + HEADER_SIZE : end])
            self._events.applied(header)
            offset = end

    def on_role(self, role: Role, term: int, leader_id: str | None) -> None:
        self._events.role(role, term)

    def on_serving(self, term: int) -> None:
        self._events.serving(term)

    def on_commit(self, commit_index: int) -> None:
        self._events.committed(commit_index)

    def on_stopped_serving(self, term: int) -> None:
        self._events.stopped_serving(term)


def body_of(unique: str, key: str, size: int) -> bytes:
    """What a client appends: at least `size` bytes."""
    return f"{unique}|{key}|".encode().ljust(size, b".")
