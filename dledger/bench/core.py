"""`dledger bench core`: how many microseconds one step of the election and replication code takes.

This code is pure: there is no disk, no network and no event loop, only the state machines and the encoding
of their messages. Each figure is the best of several runs of many steps, on one core.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable

from dledger.election.elector import ElectionSettings, Elector
from dledger.formats.entry import Kind, encode_entry, unpack_header
from dledger.formats.store_files import HardState
from dledger.log.incoming import check_run
from dledger.messages import (
    Append,
    Code,
    Heartbeat,
    HeartbeatResponse,
    Message,
    PushResponse,
    VoteRequest,
    VoteResponse,
    VoteResult,
)
from dledger.peers.wire import decode_frame, decode_message, encode_message
from dledger.replication.follower import FollowerReplication
from dledger.replication.leader import LeaderReplication

NODES = ("n0", "n1", "n2")
RUNS = 5
STEPS = 20_000
BODY = 1024


class CountingLog:
    """A log that keeps only the number of its entries. All its entries have the same term and size."""

    first_index = 0

    def __init__(self) -> None:
        self.last_index = -1
        self.last_term = 1
        self.durable_index = -1

    @property
    def durable_mark(self) -> int:
        """Return `durable_index`, because no entry of this log becomes corrupt."""
        return self.durable_index

    def term_of(self, index: int) -> int | None:
        """Return the term of an entry; -1 before the first entry, and None behind the last one."""
        return (1 if index >= 0 else -1) if index <= self.last_index else None

    def last_of_term_at_most(self, term: int, index: int) -> int:
        """Return the last index up to `index` whose entry has at most the term `term`."""
        return index if term >= 1 else -1

    def range_end(self, first: int, max_bytes: int) -> tuple[int, int]:
        """Return the last entry of a push that begins with `first`, and the number of bytes of this push."""
        last = min(self.last_index, first + max_bytes // BODY - 1)
        return last, (last - first + 1) * BODY


def measure(steps: int = STEPS) -> dict[str, float]:
    """Return microseconds per step, by name. `steps` is how many times each cheap step is run."""
    few = max(1, steps // 20)
    return {
        "election: heartbeats of a leader to two peers, answered": _best(_leader_round, steps),
        "election: heartbeat at a follower": _best(_follower_heartbeat, steps),
        "election: pre-vote request at a voter": _best(_pre_vote, steps),
        "election: whole election of one candidate": _best(_election, few),
        "replication: batch to two followers, acknowledged, committed": _best(_leader_batch, steps),
        "replication: batch at a follower, stored, durable": _best(_follower_batch, steps),
        "wire: heartbeat encoded and decoded": _best(
            lambda count: _wire(Heartbeat(7, "n0", 5), count), steps
        ),
        "wire: append of 32 KiB encoded and decoded": _best(
            lambda count: _wire(Append(7, "n0", 6, 3, 7, 38, 1234, 5, b"x" * 32768), count), steps
        ),
        "wire: append of 32 entries of 1 KiB checked": _best(_check_entries, few),
    }


def _best(run: Callable[[int], float], steps: int) -> float:
    return round(min(run(steps) for _ in range(RUNS)) / steps * 1e6, 2)


def _elector(self_id: str) -> Elector:
    settings = ElectionSettings(0.1, 0.4, 0.8, 0.02)
    elector = Elector(settings, self_id, NODES, HardState(1), CountingLog(), random.Random(1), 0.0)
    elector.set_members(NODES, NODES, 0.0)
    return elector


def _elect(elector: Elector, now: float) -> None:
    elector.tick(now)
    term = elector.term
    elector.receive("n1", VoteResponse(term, term + 1, True, VoteResult.ACCEPT), now)
    elector.receive("n1", VoteResponse(term + 1, term + 1, False, VoteResult.ACCEPT), now)


def _leader_round(count: int) -> float:
    elector = _elector("n0")
    _elect(elector, 1.0)
    now = 1.0
    began = time.perf_counter()
    for _ in range(count):
        now += 0.1
        elector.tick(now)
        elector.receive("n1", HeartbeatResponse(2, Code.SUCCESS, elector.round), now)
        elector.receive("n2", HeartbeatResponse(2, Code.SUCCESS, elector.round), now)
    return time.perf_counter() - began


def _follower_heartbeat(count: int) -> float:
    elector = _elector("n1")
    message = Heartbeat(2, "n0", 1)
    began = time.perf_counter()
    for _ in range(count):
        elector.receive("n0", message, 1.0)
    return time.perf_counter() - began


def _pre_vote(count: int) -> float:
    elector = _elector("n1")
    message = VoteRequest(2, "n0", 5, 1, pre=True)
    began = time.perf_counter()
    for _ in range(count):
        elector.receive("n0", message, 1.0)
    return time.perf_counter() - began


def _election(count: int) -> float:
    electors = [_elector("n0") for _ in range(count)]
    began = time.perf_counter()
    for elector in electors:
        _elect(elector, 1.0)
    return time.perf_counter() - began


def _leader_batch(count: int) -> float:
    log = CountingLog()
    leader = LeaderReplication(1, "n0", NODES, NODES, log, -1, 0, push_bytes=1 << 20, inflight_bytes=1 << 24)
    for peer in ("n1", "n2"):
        leader.peer_up(peer, True)
        leader.response(peer, PushResponse(1, Code.SUCCESS, -1, -1, -1))
    began = time.perf_counter()
    for _ in range(count):
        log.last_index += 32
        leader.extended()
        log.durable_index = log.last_index
        leader.local_durable()
        for peer in ("n1", "n2"):
            end = log.last_index
            leader.response(peer, PushResponse(1, Code.SUCCESS, end, end, end))
    seconds = time.perf_counter() - began
    if leader.commit_index != log.last_index:
        raise RuntimeError("the measured batches were not committed")
    return seconds


def _follower_batch(count: int) -> float:
    log = CountingLog()
    follower = FollowerReplication(1, "n0", log)
    pushes = [
        Append(1, "n0", at - 1, 1 if at else -1, at, at + 31, 0, at - 1, b"")
        for at in range(0, 32 * count, 32)
    ]
    began = time.perf_counter()
    for push in pushes:
        follower.receive(push, log.last_index)
        log.last_index = push.last
        follower.stored(push.last)
        log.durable_index = push.last
        follower.durable_moved()
    return time.perf_counter() - began


def _wire(message: Message, count: int) -> float:
    began = time.perf_counter()
    for _ in range(count):
        data = b"".join(encode_message(message))
        decode_message(decode_frame(memoryview(data)))
    return time.perf_counter() - began


def _check_entries(count: int) -> float:
    data, chain = b"", 0
    for index in range(32):
        entry = encode_entry(index, 1, len(data), b"x" * BODY, chain, Kind.MESSAGE)
        chain = unpack_header(entry).chain_crc
        data += entry
    began = time.perf_counter()
    for _ in range(count):
        check_run(data, 0, 31, 0, 1, 1, 0)
    return time.perf_counter() - began
