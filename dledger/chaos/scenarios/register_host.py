"""The replicated state machine of the simulated groups. It has a register for each key, and a digest of all
entries.

The body of a client's append is `<unique>|<key>|<filling>`. Applying it sets the register of `key` to
`unique`. The whole state has a digest, so that two replicas are compared in one step. The state is rebuilt
from the log at every start; `State.encode` encodes it for snapshots.
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
    """The state after all entries up to `index`."""

    index: int = -1
    digest: bytes = b""
    count: int = 0
    """How many values of clients were applied."""
    registers: dict[str, str] = field(default_factory=dict)

    def apply(self, header: EntryHeader, record: bytes | memoryview) -> None:
        """Apply one entry. An entry that no client appended changes only the digest."""
        summary = f"{header.index} {header.term} {header.kind} {header.body_crc}".encode()
        self.digest = blake2b(self.digest + summary, digest_size=16).digest()
        self.index = header.index
        if header.kind == Kind.RAW:
            self.count += 1
            unique, _, rest = decode_record(record).body.partition(b"|")
            self.registers[rest.partition(b"|")[0].decode()] = unique.decode()

    def encode(self) -> bytes:
        """The state as bytes. Equal states give equal bytes."""
        value = [self.index, self.digest.hex(), self.count, sorted(self.registers.items())]
        return json.dumps(value).encode()

    @classmethod
    def decode(cls, data: bytes) -> State:
        """Inverse of `encode`."""
        index, digest, count, registers = json.loads(data)
        return cls(index, bytes.fromhex(digest), count, dict(registers))


class HostEvents:
    """Listener for the calls that a node makes to its host. The probe overrides the methods that it needs."""

    def opening(self, log: LogReader) -> None:
        """The store was opened, and its log is recovered."""

    def restored(self, content: bytes, index: int) -> None:
        """The host has restored a snapshot of the state at `index`; `content` is that state, encoded."""

    def role(self, role: Role, term: int) -> None:
        """The node's role changed."""

    def serving(self, term: int) -> None:
        """The node begins to serve."""

    def stopped_serving(self, term: int) -> None:
        """The node no longer serves."""

    def committed(self, index: int) -> None:
        """The node's commit index moved."""

    def applied(self, header: EntryHeader) -> None:
        """An entry was applied."""


class RegisterHost:
    """The host of one node, from one start of the node to its end."""

    def __init__(
        self, events: HostEvents, ballast: int = 0, dawdles: Callable[[], float] | None = None
    ) -> None:
        """`ballast` is how many bytes a snapshot has in addition, so that it is sent in several pieces.
        `dawdles` returns how many seconds the next asynchronous call takes."""
        self.state: State = State()
        self._events = events
        self._ballast = ballast
        self._dawdles = dawdles

    @property
    def index(self) -> int:
        """Index of the last entry applied."""
        return self.state.index

    def content(self) -> bytes:
        """The whole state, encoded by `State.encode`."""
        return self.state.encode()

    async def open(self, log: LogReader) -> int:
        """Begin with an empty state, which is rebuilt from the log."""
        self._events.opening(log)
        return -1

    def snapshot(self) -> Iterable[tuple[str, bytes]]:
        """The parts of a snapshot: the whole state, and the ballast."""
        ballast = shake_128(self.state.digest).digest(self._ballast)
        return [("ballast", ballast), ("state", self.state.encode())]

    async def restore(self, parts: Mapping[str, bytes], index: int, pos: int) -> None:
        """Replace the state by that of a snapshot, which this or another replica has taken."""
        await self._dawdle()
        self.state = State.decode(parts["state"])
        self._events.restored(self.state.encode(), index)

    async def log_begins(self, parts: Mapping[str, bytes], index: int, pos: int) -> None:
        """Changes nothing, because the state does not depend on the beginning of the log. It may take some
        time."""
        await self._dawdle()

    async def kept_from(self) -> int | None:
        """Returns None, because the state machine needs no entry again that was applied."""
        return None

    async def _dawdle(self) -> None:
        if self._dawdles is not None:
            await asyncio.sleep(self._dawdles())

    def apply(self, chunk: Chunk) -> None:
        """Apply entries in order."""
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
    """The body of a client's append, at least `size` bytes long."""
    return f"{unique}|{key}|".encode().ljust(size, b".")
