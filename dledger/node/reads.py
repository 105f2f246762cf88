"""Linearizable read points: ReadIndex (Raft dissertation 6.4), leases, reads by followers.

A read point is an index. Everything acknowledged before the read began is at or below this index. When the
index is applied here, the read may be answered from local state.

* **The leader**, while it serves (an entry of its term is committed), takes its commit index and sends a
  round of heartbeats at once. If a quorum of voters answers this round, or a later one, in this term, no
  other node led when the read began. If lease reads are on and the lease is valid *now*, the round is not
  needed.
* **A follower** asks its leader (ReadIndexRequest) and waits until it has applied the index itself.

Reads that arrive in one turn of the loop share a round. While a round is in flight, new reads wait for the
next one: they may not use a round that was sent before they began. So there is at most one round in flight,
whatever the load. If the leader changes, a read waits for the next leader until its own time-out. It may be
repeated, because reads change nothing.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable
from dataclasses import dataclass, field

from dledger.context.applier import Applier
from dledger.context.node_context import NodeContext
from dledger.election.elector import NO_READ, Elector
from dledger.host import Role
from dledger.messages import Code, ReadIndexRequest, ReadIndexResponse
from dledger.node.leadership import Leadership

READ_INDEX_VERSION = 2
"""Lowest version of the peer protocol that numbers rounds of heartbeats and knows read points."""
MAX_WAITING = 10_000
"""Largest number of reads that wait on one node; one more is refused."""

Done = Callable[[int | None], None]
"""Callback of a read, which is called once. It gets the read point when it is applied here, or None if there
was none in time."""


class ReadRefused(Exception):
    """There was no read point in time, or too many reads wait. Nothing was read; try again, perhaps on
    another node."""


@dataclass(slots=True)
class _Read:
    """One read that waits: a read of this node (`done`), or a follower's request for a read point (`peer`,
    `number`)."""

    done: Done | None = None
    peer: str = ""
    number: int = 0
    timer: asyncio.TimerHandle | None = None
    over: bool = False


@dataclass(slots=True)
class _Flight:
    """Reads in flight. They wait for a round of heartbeats of this leader (`round`), or for an answer of the
    leader to one of the requests `first..last`."""

    reads: list[_Read]
    term: int
    index: int = -1
    round: int = 0
    leader: str = ""
    first: int = 0
    last: int = 0


@dataclass(order=True, slots=True)
class _Applying:
    index: int
    order: int
    read: _Read = field(compare=False)


class ReadPoints:
    """The read points of one node. All methods must be called on the event loop."""

    def __init__(
        self, context: NodeContext, leadership: Leadership, applier: Applier, first_number: int = 0
    ) -> None:
        """`first_number` is the number before the first request to a leader. A leader may still answer a
        request that this node sent before a restart, so no two runs of a node may use the same numbers."""
        self._config = context.config
        self._peers = context.peers
        self._elector = context.elector
        self._elections = context.elections
        self._replicator = context.replicator
        self._leadership = leadership
        self._applier = applier
        self._new: list[_Read] = []
        self._flight: _Flight | None = None
        self._applying: list[_Applying] = []
        self._waiting = 0
        self._order = 0
        self._number = first_number
        self._scheduled = False
        self._retry: asyncio.TimerHandle | None = None
        self.rounds: int = 0
        """Number of rounds of heartbeats that were sent for reads, for metrics."""
        self.by_lease: int = 0
        """Number of reads that a lease answered."""

    # Asking

    async def read_index(self, timeout_s: float) -> int:
        """Return a read point that began now and is applied here. Raises ReadRefused if there is none in
        time."""
        future: asyncio.Future[int | None] = asyncio.get_running_loop().create_future()

        def done(index: int | None) -> None:
            if not future.done():
                future.set_result(index)

        self.ask(timeout_s, done)
        index = await future
        if index is None:
            raise ReadRefused(f"no read point within {timeout_s} s: {self.why()}")
        return index

    def ask(self, timeout_s: float, done: Done) -> None:
        """Ask for a read point as `read_index` does, but with a callback, for requests of the client
        protocol."""
        if self._waiting >= MAX_WAITING:
            raise ReadRefused(f"{MAX_WAITING} reads are already waiting: try again later")
        read = _Read(done)
        read.timer = asyncio.get_running_loop().call_later(timeout_s, self._finish, read, None)
        self._waiting += 1
        self._add(read)

    def why(self) -> str:
        """Return why a read still waits, for the text of a refusal."""
        elector = self._elector
        if elector.role is Role.LEADER:
            old = [peer for peer in elector.voters if self._speaks_old(peer)]
            if old:
                return f"voters {', '.join(old)} speak an older protocol"
            return (
                "a quorum did not confirm this leader" if self._leadership.serving else "the term is not open"
            )
        if elector.leader_id is None:
            return "no leader is known"
        if self._speaks_old(elector.leader_id):
            return f"the leader {elector.leader_id} speaks an older protocol"
        return f"the leader {elector.leader_id} gave no read point, or it is not applied here yet"

    def _speaks_old(self, peer: str) -> bool:
        return 0 < self._peers.version(peer) < READ_INDEX_VERSION

    # Events

    def receive(self, peer: str, message: ReadIndexRequest | ReadIndexResponse) -> None:
        """Handle a follower's request for a read point, or the leader's answer to such a request."""
        if isinstance(message, ReadIndexRequest):
            if message.number == NO_READ:
                self._answer(_Read(peer=peer, number=NO_READ), None)
                return
            self._new = [read for read in self._new if read.peer != peer]  # only the last request counts
            read = _Read(peer=peer, number=message.number)
            if self._elector.role is Role.LEADER:
                self._add(read)
            else:
                self._answer(read, None)
            return
        flight = self._flight
        if flight is None or flight.leader != peer or not flight.first <= message.number <= flight.last:
            return
        if message.code is Code.SUCCESS:
            self._landed(flight, message.index)
        else:
            self._back(flight)
            self._arm()

    def round_confirmed(self, number: int) -> None:
        """Note that a quorum answered this leader's round `number`, or a later one."""
        flight = self._flight
        if flight is None or not flight.round or flight.term != self._elector.term:
            return
        if number >= flight.round:
            self._landed(flight, flight.index)

    def role_changed(self) -> None:
        """Note that role, term or known leader changed. Reads in flight may never be answered, so they start
        again."""
        if self._flight is not None:
            self._back(self._flight)
        if self._elector.role is not Role.LEADER:
            for read in self._new:
                if read.peer:
                    self._answer(read, None)
            self._new = [read for read in self._new if not read.peer]
        self._schedule()

    def applied(self) -> None:
        """Note that the applied index moved, or that the node began to serve."""
        applied = self._applier.applied_index
        while self._applying and self._applying[0].index <= applied:
            item = heapq.heappop(self._applying)
            self._finish(item.read, item.index)
        if self._new and self._flight is None:
            self._schedule()

    def close(self) -> None:
        """Stop all timers, because the node ends. Reads get no more answers."""
        for handle in (self._retry, *(read.timer for read in self._new)):
            if handle is not None:
                handle.cancel()

    # The way of a read

    def _add(self, read: _Read) -> None:
        self._new.append(read)
        self._schedule()

    def _schedule(self) -> None:
        if not self._scheduled and self._new:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._start)

    def _start(self) -> None:
        """Start all reads that arrived in this turn of the loop together."""
        self._scheduled = False
        if self._flight is not None:
            return
        self._new = [read for read in self._new if not read.over]
        if not self._new:
            return
        elector = self._elector
        if self._leadership.serving:
            self._start_round(elector)
        elif elector.role is not Role.LEADER and elector.leader_id is not None:
            self._ask_leader(elector, elector.leader_id)
        self._arm()

    def _start_round(self, elector: Elector) -> None:
        now = asyncio.get_running_loop().time()  # after the requests were read (S17)
        reads, self._new = self._new, []
        index = self._replicator.commit_index
        if elector.lease_valid(now):
            self.by_lease += len(reads)
            for read in reads:
                self._point(read, index)
            return
        self._flight = _Flight(reads, elector.term, index=index, round=elector.round + 1)
        self.rounds += 1
        self._elections.perform(elector.start_round(now))

    def _ask_leader(self, elector: Elector, leader: str) -> None:
        if self._peers.version(leader) < READ_INDEX_VERSION:
            return
        reads, self._new = self._new, []
        self._flight = _Flight(reads, elector.term, leader=leader, first=self._number + 1)
        self._send_question(self._flight)

    def _send_question(self, flight: _Flight) -> None:
        self._number += 1
        flight.last = self._number
        question = ReadIndexRequest(flight.term, self._config.self_id, self._number)
        self._peers.send(flight.leader, question)

    def _arm(self) -> None:
        """Set a timer to check again, because requests and answers may be lost, and a hand-over may fail."""
        if self._retry is None and (self._new or self._flight is not None):
            loop = asyncio.get_running_loop()
            self._retry = loop.call_later(self._config.heartbeat_interval_s, self._again)

    def _again(self) -> None:
        self._retry = None
        flight = self._flight
        if flight is not None:
            if all(read.over for read in flight.reads):
                self._back(flight)
            elif flight.leader:
                self._send_question(flight)  # an answer to an earlier request counts, too
        self._schedule()
        self._arm()

    def _back(self, flight: _Flight) -> None:
        self._flight = None
        self._new = [*(read for read in flight.reads if not read.over), *self._new]

    def _landed(self, flight: _Flight, index: int) -> None:
        self._flight = None
        for read in flight.reads:
            self._point(read, index)
        self._schedule()

    def _point(self, read: _Read, index: int) -> None:
        """Handle a read whose read point is known now."""
        if read.peer:
            self._answer(read, index)
        elif index <= self._applier.applied_index:
            self._finish(read, index)
        else:
            if len(self._applying) >= MAX_WAITING:
                self._applying = [item for item in self._applying if not item.read.over]
                heapq.heapify(self._applying)
            self._order += 1
            heapq.heappush(self._applying, _Applying(index, self._order, read))

    def _answer(self, read: _Read, index: int | None) -> None:
        term = self._elector.term
        code = Code.NOT_LEADER if index is None else Code.SUCCESS
        response = ReadIndexResponse(term, code, read.number, -1 if index is None else index)
        self._peers.send(read.peer, response)

    def _finish(self, read: _Read, index: int | None) -> None:
        if read.over or read.done is None:
            return
        read.over = True
        self._waiting -= 1
        if read.timer is not None:
            read.timer.cancel()
        read.done(index)
