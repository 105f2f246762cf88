"""Writes the calls of a node's core into a ring of files, in a worker and without fsync.

The tape is written when it holds BLOCK_BYTES, or FLUSH_S after its first call. One job writes at a time. When
a file is full, the state of the core is taken on the event loop, exactly after the calls that are written
before it, and a new file begins with it. The oldest file is removed.

An error of the disk ends the recording, never the node. If the disk is so slow that MAX_BUFFER bytes wait,
the calls that wait are dropped, and the next file begins with the state after them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from dledger.config import NodeConfig
from dledger.election.elector import ElectionSettings, Elector
from dledger.flight.blocks import FORMAT, Begin, Kind, encode_begin, encode_block, file_name, file_number
from dledger.flight.calls import FOLLOW, LEAD
from dledger.flight.cores import (
    CoreLog,
    RecordedChance,
    RecordedElector,
    RecordedFollower,
    RecordedLeader,
    RecordedLog,
    follower_digest,
    leader_digest,
)
from dledger.flight.states import CoreState, dump
from dledger.flight.tape import Tape
from dledger.flight.version import core_version
from dledger.formats.store_files import FLIGHT_DIR, HardState
from dledger.replication.follower import FollowerReplication
from dledger.replication.install import Offer
from dledger.replication.leader import LeaderReplication
from dledger.runtime import Env, File, Lane

MIB = 1024 * 1024
FILES = 4
"""Number of files of a ring. A new file takes the place of the oldest, so at least three quarters of the ring
are always there."""
BLOCK_BYTES = 128 * 1024
"""Size of the tape, in bytes, from which on it is written at once."""
MAX_BUFFER = 2 * 1024 * 1024
"""Limit of the tape in bytes. If the disk is so slow that more would wait, the calls that wait are
dropped."""
FLUSH_S = 0.25
"""Longest time, in seconds, that a call waits on the tape. It is lost if the process is killed in that
time."""
CLOSE_LIMIT_S = 2.0
"""Limit, in seconds, of the wait for the last write when the node stops."""


@dataclass(frozen=True)
class _Write:
    """The work of one job: a block of calls for the present file, then perhaps the beginning of the next."""

    calls: bytes
    events: int
    begin: Begin | None
    ends: bool = False


class _RingFiles:
    """The files of a ring. The methods block, and are called by one job at a time."""

    def __init__(self, env: Env, directory: str, size: int) -> None:
        self._files = env.files
        self._directory = directory
        self._size = size
        self._file: File | None = None
        self._number = 0
        self._block = 0
        self.offset = 0

    def open(self) -> int:
        """Make the directory, and return the number of the first file of this run."""
        self._files.mkdir(self._directory, sync=False)
        self._number = max(self._numbers(), default=0)
        return self._number + 1

    def write(self, work: _Write) -> int:
        """Write, and return the length of the present file. After an error nothing more is written."""
        try:
            if work.calls:
                self._append(encode_block(Kind.CALLS, self._block, work.events, work.calls))
            if work.begin is not None:
                self._begin(encode_begin(work.begin))
            if work.ends:
                self._append(encode_block(Kind.END, self._block, 0, b""))
        except OSError:
            self.close()
            raise
        if work.ends:
            self.close()
        return self.offset

    def close(self) -> None:
        """Close the present file."""
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def _append(self, block: bytes) -> None:
        if self._file is not None:
            self._file.pwritev([block], self.offset)
            self.offset += len(block)
            self._block += 1

    def _begin(self, content: bytes) -> None:
        self.close()
        self._number += 1
        for number in self._numbers():
            if number <= self._number - FILES:
                self._files.unlink(f"{self._directory}/{file_name(number)}")
        self._file = self._files.open(f"{self._directory}/{file_name(self._number)}", create=True)
        self._file.truncate(0)
        self.offset = 0
        self._append(encode_block(Kind.BEGIN, self._block, 0, content))

    def _numbers(self) -> list[int]:
        found = (file_number(name) for name in self._files.listdir(self._directory))
        return [number for number in found if number is not None]


class FlightRecorder:
    """The flight recorder of one node. It makes the core objects of the node; if it is switched off
    (`flightRecorderMb=0`), these are the plain ones."""

    def __init__(self, env: Env, config: NodeConfig) -> None:
        self._env = env
        self._say = env.log.child(f"flight.{config.self_id}")
        self._node = config.self_id
        self._file_size = config.flight_recorder_mb * MIB // FILES
        self._tape = Tape()
        self._ring = _RingFiles(env, f"{config.node_dir}/{FLIGHT_DIR}", self._file_size)
        self._elector: Elector | None = None
        self._leader: RecordedLeader | None = None
        self._follower: RecordedFollower | None = None
        self._log: RecordedLog | None = None
        self._run = 0
        self._version = ""
        self._loop: asyncio.AbstractEventLoop
        self._offset = 0
        self._writing = False
        self._timer: asyncio.TimerHandle | None = None
        self._lost = 0
        self._gap = False
        self._idle: asyncio.Event = asyncio.Event()
        self._idle.set()
        self.stopped_by: str = ""
        """Why the recording ended; empty while it runs, or if it is switched off."""

    @property
    def on(self) -> bool:
        """Whether the settings switch the recorder on."""
        return self._file_size > 0

    # The core objects

    def make_elector(self, settings: ElectionSettings, self_id: str, log: CoreLog) -> Elector:
        """Make the elector of an empty learner (see `Elector.open`). Called once."""
        if not self.on:
            chance = self._env.random
            return Elector(settings, self_id, (), HardState(), log, chance, 0.0, may_vote=False)
        chance_noted = RecordedChance(self._tape, self._env.random)
        elector = RecordedElector(self._tape, settings, self_id, self._noted(log), chance_noted)
        self._elector = elector
        return elector

    def make_leader(
        self,
        term: int,
        self_id: str,
        voters: tuple[str, ...],
        peers: tuple[str, ...],
        log: CoreLog,
        commit_index: int,
        opening_index: int,
        *,
        offer: Callable[[], Offer | None],
        **limits: int,
    ) -> LeaderReplication:
        """Make the replication of a new leadership (see LeaderReplication; `limits` are its limits)."""
        if not self.on:
            return LeaderReplication(
                term, self_id, voters, peers, log, commit_index, opening_index, offer=offer, **limits
            )
        if self._leader is not None:
            self._leader.discard()
        leader = self._leader = RecordedLeader(
            self._tape,
            term,
            self_id,
            voters,
            peers,
            self._noted(log),
            commit_index,
            opening_index,
            offer=offer,
            **limits,
        )
        if self._tape.running:
            args = (term, self_id, voters, peers, commit_index, opening_index)
            self._tape.note(LEAD, args, limits, None, leader_digest(leader))
        return leader

    def make_follower(self, term: int, leader: str, log: CoreLog) -> FollowerReplication:
        """Make the replication of a follower of a new leader."""
        if not self.on:
            return FollowerReplication(term, leader, log)
        if self._follower is not None:
            self._follower.discard()
        follower = self._follower = RecordedFollower(self._tape, term, leader, self._noted(log))
        if self._tape.running:
            self._tape.note(FOLLOW, (term, leader), {}, None, follower_digest(follower))
        return follower

    def _noted(self, log: CoreLog) -> RecordedLog:
        if self._log is None:
            self._log = RecordedLog(self._tape, log)
        return self._log

    # The recording

    async def open(self) -> None:
        """Begin the recording. The node calls this when its store is open, and before its elector is."""
        if not self.on:
            return
        self._loop = asyncio.get_running_loop()
        try:
            self._version, self._run = await self._env.workers.run(
                Lane.DISK, lambda: (core_version(), self._ring.open())
            )
        except OSError as error:
            self._stop(error)
            return
        self._tape.limit = BLOCK_BYTES
        self._tape.filled = self._filled
        self._tape.stopped = self._stop
        self._tape.running = True
        self._write(begin=self._begin())

    async def close(self) -> None:
        """Write what is on the tape, and end the recording. Waits at most CLOSE_LIMIT_S for the disk."""
        if not self._tape.running:
            return
        self._tape.running = False
        if self._timer is not None:
            self._timer.cancel()
        try:
            async with asyncio.timeout(CLOSE_LIMIT_S):
                await self._idle.wait()
                self._write(ends=True)
                await self._idle.wait()
        except TimeoutError:
            self._say.warning("the end of the flight recording was not written in time")

    def warnings(self) -> list[str]:
        """Return the warnings that /health shows: whether the recording ended because of an error."""
        return [f"the flight recorder has stopped: {self.stopped_by}"] if self.stopped_by else []

    def status(self) -> dict[str, object]:
        """Return what /health shows."""
        text = "off" if not self.on else "stopped" if self.stopped_by else "recording"
        return {"flight_recorder": text, "flight_recorder_lost": self._lost}

    def _begin(self) -> Begin:
        return Begin(
            FORMAT,
            self._version,
            self._node,
            self._run,
            self._loop.time(),
            self._env.wall.now_ms(),
            self._lost,
            self._state(),
        )

    def _state(self) -> CoreState:
        if self._elector is None:
            raise RuntimeError("the recorder was opened before it made an elector")
        return dump(self._elector, self._leader, self._follower)

    def _filled(self) -> None:
        """Called by the tape after the first call, and after each one while it is full."""
        if len(self._tape.buffer) < BLOCK_BYTES:
            if self._timer is None:
                self._timer = self._loop.call_later(FLUSH_S, self._due)
        elif not self._writing:
            self._write()
        elif len(self._tape.buffer) > MAX_BUFFER:
            _, events = self._tape.take()
            self._lost += events
            self._gap = True

    def _due(self) -> None:
        self._timer = None
        if self._tape.running and not self._writing and self._tape.events:
            self._write()

    def _write(self, *, begin: Begin | None = None, ends: bool = False) -> None:
        """Let a worker write the tape, and begin the next file if the present one is full."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        calls, events = self._tape.take()
        full = self._offset + len(calls) > self._file_size - BLOCK_BYTES or self._gap
        if self._gap:
            # Calls before these were dropped, so nothing can be replayed up to the new file.
            self._lost += events
            calls, events, self._gap = b"", 0, False
        if full and begin is None and not ends:
            begin = self._begin()
        work = _Write(calls, events, begin, ends)
        self._writing = True
        self._idle.clear()
        self._env.workers.start(Lane.DISK, lambda: self._ring.write(work), self._written)

    def _written(self, offset: int | None, error: BaseException | None) -> None:
        self._writing = False
        self._idle.set()
        if error is not None or offset is None:
            self._stop(error)
            return
        self._offset = offset
        if self._tape.running and self._tape.events:
            self._filled()

    def _stop(self, error: BaseException | None) -> None:
        """End the recording because of an error. The node goes on."""
        self._tape.running = False
        self._tape.take()
        if not self.stopped_by:
            self.stopped_by = repr(error)
            self._say.error("the flight recorder stops; the node goes on", error=repr(error))
