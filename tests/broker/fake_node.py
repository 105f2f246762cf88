"""A single-node stand-in of `dledger.node.node.Node`: the log is a byte array, commits come on demand."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgpack

from dledger.config import NodeConfig, NodeSettings
from dledger.formats.entry import HEADER_SIZE, Kind, encode_entry, unpack_header
from dledger.formats.record import Record, decode_record, system_record, system_record_size
from dledger.formats.state import state_version
from dledger.host import Chunk, Host, Role
from dledger.log.appender import Run
from dledger.messages import Code
from dledger.peers.proofs import Proofs
from dledger.runtime.env import Env


class FakeLog:
    """The log. What lies below `cold_below` is not in the hot window."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.entries: list[tuple[int, int]] = []
        self.chain = 0
        self.cold_below = 0
        self.first_index = 0
        self.begin_pos = 0
        self.segment_size = 1 << 40

    @property
    def last_index(self) -> int:
        return len(self.entries) - 1

    @property
    def end_pos(self) -> int:
        return len(self.data)

    @property
    def durable_pos(self) -> int:
        return len(self.data)

    def term_of(self, index: int) -> int | None:
        if index < 0:
            return -1
        if index not in range(self.first_index, len(self.entries)):
            return None
        return unpack_header(self.data, self.entries[index][0]).term

    async def find(self, index: int) -> tuple[int, int]:
        if index not in range(self.first_index, len(self.entries)):
            raise KeyError(index)
        return self.entries[index]

    def view(self, pos: int, size: int) -> memoryview | None:
        if pos < self.cold_below or pos + size > len(self.data) or self._crosses(pos, size):
            return None
        return memoryview(bytes(self.data[pos : pos + size]))

    def is_hot(self, pos: int) -> bool:
        return pos >= max(self.cold_below, self.begin_pos)

    async def read(self, pos: int, size: int) -> bytes:
        await asyncio.sleep(0.001)
        if pos < self.begin_pos or pos + size > len(self.data) or self._crosses(pos, size):
            raise ValueError("not in the log")
        return bytes(self.data[pos : pos + size])

    def _crosses(self, pos: int, size: int) -> bool:
        return pos // self.segment_size != (pos + size - 1) // self.segment_size

    def roll(self) -> None:
        """End the segment with a blank tail."""
        self.data += bytes(-len(self.data) % self.segment_size)

    def append(self, body: bytes, term: int, kind: int = Kind.MESSAGE, remaining: int = 0) -> int:
        pos = len(self.data)
        entry = encode_entry(len(self.entries), term, pos, body, self.chain, kind, remaining)
        self.chain = unpack_header(entry).chain_crc
        self.data += entry
        self.entries.append((pos, len(entry)))
        return len(self.entries) - 1


def batches(log: FakeLog) -> list[list[Record | Mapping[str, Any]]]:
    """What is in the log, batch by batch: messages as records, and operations of the replicated state."""
    found: list[list[Record | Mapping[str, Any]]] = [[]]
    for pos, size in log.entries:
        header = unpack_header(log.data, pos)
        record = decode_record(bytes(log.data[pos : pos + size]), HEADER_SIZE)
        if header.kind == Kind.SYSTEM:
            found[-1].append(msgpack.unpackb(record.body, strict_map_key=False))
        elif header.kind == Kind.MESSAGE:
            found[-1].append(record)
        if not header.batch_remaining:
            found.append([])
    return [batch for batch in found if batch]


class FakeAppender:
    """Seals straight into the log."""

    def __init__(self, log: FakeLog, term: int, added: Callable[[], None], now_ms: Callable[[], int]) -> None:
        self.term = term
        self.now_ms = self.clock_ms = now_ms
        self.refusal: Code | None = None
        self.state_version = state_version()
        self.log = log
        self._added = added
        self.room_index = self.room_pos = self.stop_pos = 1 << 62
        """Limits of the runs that are opened (`Run`)."""

    max_batch = 1 << 22

    def reserve(self, total_size: int) -> int:
        assert total_size <= self.max_batch
        return len(self.log.data)

    def add(
        self, parts: tuple[bytes, ...], size: int, kind: int = Kind.MESSAGE, batch_remaining: int = 0
    ) -> int:
        body = b"".join(parts)
        assert len(body) == size
        index = self.log.append(body, self.term, kind, batch_remaining)
        self._added()
        return index

    def open_run(self) -> Run | None:
        return None if self.refusal is not None else self.open_batch(0)

    def open_batch(self, total_size: int) -> Run:
        self.reserve(total_size)
        log = self.log
        return Run(
            len(log.entries),
            len(log.data),
            log.chain,
            self.term,
            0,
            self.now_ms(),
            [],
            [],
            self.room_index,
            self.room_pos,
            self.stop_pos,
            self.max_batch,
        )

    def close_batch(self, run: Run, following: int) -> None:
        self.close_run(run)

    def close_run(self, run: Run) -> None:
        at = len(self.log.data)
        self.log.data += b"".join(run.parts)
        for size in run.sizes:
            self.log.entries.append((at, size))
            at += size
        self.log.chain = run.chain
        if run.sizes:
            self._added()

    def add_system(self, body: bytes) -> int:
        return self.add_reserved(body)

    def add_reserved(self, body: bytes, kind: int = Kind.SYSTEM, batch_remaining: int = 0) -> int:
        pos = self.reserve(HEADER_SIZE + system_record_size(len(body)))
        record = system_record(body, pos + HEADER_SIZE, self.now_ms())
        return self.add((record,), len(record), kind, batch_remaining)


class FakeNode:
    """Leads when told; commits by itself (`auto`) at the next turn of the loop, or when told."""

    def __init__(self, env: Env, config: NodeConfig, host: Host, log: FakeLog | None = None) -> None:
        self._env = env
        self.config = config
        self.host = host
        self.log = log or FakeLog()
        self.role = Role.FOLLOWER
        self.term = 0
        self.leader_id: str | None = None
        self.serving = False
        self.removed = False
        self.appender: FakeAppender | None = None
        self.commit_index = -1
        self.applied_index = -1
        self.auto = True
        self.meta: dict[str, Mapping[str, str]] = {}
        self.proofs = Proofs(config.self_id, b"own secret")
        self.peers_without_proofs: list[str] = []
        self.transfer_to: str | None = None
        self._scheduled = False
        self.tuned: NodeSettings = config
        self.expired = False
        self.confirms = True
        """Whether a quorum says that it leads; else who asked waits in `asked`."""
        self.asked: list[Callable[[int | None], None]] = []

    async def open(self) -> None:
        self.applied_index = self.commit_index = await self.host.open(self.log)

    def ask_read_point(self, timeout_s: float, done: Callable[[int | None], None]) -> None:
        if self.confirms:
            done(self.commit_index)
        else:
            self.asked.append(done)

    def retune(self, settings: NodeSettings) -> None:
        self.tuned = settings

    def delete_expired(self) -> None:
        self.expired = True

    async def run(self) -> None:
        await self.open()
        self.lead()
        await asyncio.get_running_loop().create_future()

    cluster_id = "cluster-1"

    def lead(self) -> None:
        """Win an election, open the term, serve."""
        self.stand()
        self.log.append(system_record(b"", len(self.log.data) + HEADER_SIZE, 0), self.term, Kind.TERM_OPENING)
        self.commit()
        self.serve()

    def stand(self) -> None:
        """Win an election; the term is not open yet."""
        self.term += 1
        self.role, self.leader_id = Role.LEADER, self.config.self_id
        self.host.on_role(self.role, self.term, self.leader_id)

    def serve(self) -> None:
        self.serving = True
        self.appender = FakeAppender(self.log, self.term, self._added, self._env.wall.now_ms)
        self.host.on_serving(self.term)

    def follow(self, leader: str | None) -> None:
        """Lose leadership; what is not committed is gone."""
        was_serving, old_term = self.serving, self.term
        self.term += 1
        self.role, self.leader_id = Role.FOLLOWER, leader
        self.serving, self.appender = False, None
        del self.log.entries[self.commit_index + 1 :]
        if self.log.entries:
            pos, size = self.log.entries[-1]
            del self.log.data[pos + size :]
        if was_serving:
            self.host.on_stopped_serving(old_term)
        self.host.on_role(self.role, self.term, leader)

    def commit(self) -> None:
        """Commit and apply everything."""
        self._scheduled = False
        last = self.log.last_index
        if last > self.commit_index:
            self.commit_index = last
            self.host.on_commit(last)
        if last > self.applied_index:
            pos, _ = self.log.entries[self.applied_index + 1]
            chunk = Chunk(
                self.applied_index + 1, last - self.applied_index, pos, memoryview(bytes(self.log.data[pos:]))
            )
            self.host.apply(chunk)
            self.applied_index = last

    def peer_meta(self, node_id: str) -> Mapping[str, str]:
        return self.meta.get(node_id, {})

    def prove(self, peer: str, content: Sequence[bytes]) -> str:
        return self.proofs.make(peer, content)

    def proves(self, proof: str, content: Sequence[bytes]) -> bool:
        return self.proofs.check(proof, content) in self.meta

    @property
    def proof_receivers(self) -> Sequence[str]:
        return self.proofs.receivers

    def role_changes(self) -> list[dict[str, Any]]:
        return [{"at_ms": 1, "role": self.role.value, "term": self.term, "leader": self.leader_id, "why": ""}]

    def status(self) -> dict[str, Any]:
        return {
            "role": self.role.value,
            "term": self.term,
            "leader": self.leader_id,
            "end_index": self.log.last_index,
            "end_pos": self.log.end_pos,
            "committed_index": self.commit_index,
            "applied_index": self.applied_index,
            "peers": {"n1": {"connected": True, "lag_entries": 3}},
            "reasons": [],
        }

    async def step_aside(self, timeout_s: float) -> bool:
        self.commit()
        if self.transfer_to is None:
            self.serve()
            return False
        self.follow(self.transfer_to)
        return True

    def _added(self) -> None:
        if self.auto and not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self.commit)
