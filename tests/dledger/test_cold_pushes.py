"""Pushes of entries that a worker has to read first: what is still sent when the read is over (R6)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dledger.config import NodeConfig
from dledger.flight.recorder import FlightRecorder
from dledger.formats.entry import HEADER_SIZE, Kind
from dledger.log.appender import Appender
from dledger.log.store import LogStore
from dledger.messages import Append, Code, Message, PushResponse
from dledger.peers.held import HeldMessages
from dledger.peers.replicator import Replicator
from dledger.replication.leader import LeaderReplication, PushState
from dledger.runtime.env import production_env
from tests.dledger.test_cold_units import ForgettingFiles, cold
from tests.dledger.test_log_races import indexed, use
from tests.dledger.test_snapshot_store import append

pytestmark = pytest.mark.usefixtures("index_in_memory")

PEERS = {name: f"127.0.0.1:{port}" for port, name in enumerate(("n0", "n1", "n2"), 1)}
TERM = 1


class Kit:
    """A leader's replicator over a log, with peers that only listen; `n1` agreed up to entry `agreed`."""

    def __init__(
        self,
        log: LogStore,
        files: ForgettingFiles,
        agreed: int,
        *,
        push_bytes: int = 9_000,
        leaving: tuple[str, ...] = (),
    ) -> None:
        self.files = files
        files.gate.clear()  # until `work`
        self.sent: list[Message] = []
        peers: Any = SimpleNamespace(connected=lambda peer: True, send=lambda peer, it: self.sent.append(it))
        events: Any = SimpleNamespace(committed=lambda before, index: None)
        config = NodeConfig("g", "n0", PEERS, ".")
        held = HeldMessages(lambda peer, message: None, lambda: None)
        self.replicator = Replicator(
            production_env(), config, log, peers, held, events, FlightRecorder(production_env(), config)
        )
        self.leader = LeaderReplication(
            TERM, "n0", PEERS, PEERS, log, agreed, 0, push_bytes=push_bytes, inflight_bytes=4 * push_bytes
        )
        self.leader.set_members(set(PEERS) - set(leaving), PEERS, leaving)
        self.replicator.leader = self.leader
        self.replicator.perform(self.leader.peer_up("n1", True))
        self.hears(agreed)

    def hears(self, stored: int) -> None:
        """n1 says how far it is."""
        answer = PushResponse(TERM, Code.SUCCESS, stored, stored, stored)
        if self.leader.progress["n1"].state is PushState.COMPARE:
            self.leader.progress["n1"].compare_index = stored  # as after some exchanges
        self.replicator.perform(self.leader.response("n1", answer))

    @property
    def appends(self) -> list[tuple[int, int]]:
        return [(message.first, message.last) for message in self.sent if isinstance(message, Append)]

    async def work(self, meanwhile: Callable[[], None] = lambda: None) -> None:
        """Let what is queued be read and sent; `meanwhile` happens while the first push is being read."""
        running = asyncio.create_task(self.replicator.cold.run())
        await asyncio.sleep(0)  # it is reading
        meanwhile()
        self.files.gate.set()
        async with asyncio.timeout(20):
            while self.replicator.cold.waits("n1"):  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    def ask_anew(self) -> None:
        """n1 is paused and then asked where its log agrees."""
        self.leader.pause("n1")
        self.replicator.resume_paused()
        assert self.leader.progress["n1"].state is PushState.COMPARE


def test_a_peer_that_is_asked_anew_gets_nothing_of_what_waited_for_it(tmp_path: Path) -> None:
    async def work(log: LogStore, files: ForgettingFiles) -> None:
        kit = Kit(log, files, 5)
        for _ in range(3):  # its disk is full, and stays so
            assert kit.replicator.cold.waits("n1")
            kit.ask_anew()
            kit.hears(5)
        await kit.work()
        assert kit.appends == [(6, 6)], "once, not once for each try"

    cold(tmp_path, work)


def test_a_push_that_was_read_for_an_older_window_is_not_sent(tmp_path: Path) -> None:
    async def work(log: LogStore, files: ForgettingFiles) -> None:
        kit = Kit(log, files, 5)
        await kit.work(kit.ask_anew)
        assert kit.appends == [] and not log.faulty

    cold(tmp_path, work)


def test_rot_met_for_an_older_window_does_not_pause_the_peer(tmp_path: Path) -> None:
    async def work(log: LogStore, files: ForgettingFiles) -> None:
        kit = Kit(log, files, 5)
        files.broken = True
        await kit.work(kit.ask_anew)
        assert 6 in log.faulty and kit.leader.progress["n1"].state is PushState.COMPARE

    cold(tmp_path, work)


def test_who_leaves_does_not_get_the_rest_of_a_batch_before_it_is_committed(tmp_path: Path) -> None:
    files = ForgettingFiles()

    async def work(log: LogStore) -> None:
        await append(log, 5)
        await append_batch(log, 4)  # entries 5..8
        await indexed(log)
        files.cold = True
        kit = Kit(log, files, 4, push_bytes=100, leaving=("n1",))
        kit.leader.commit_index = 6  # rot in entry 7 of a follower can bring that about
        kit.hears(4)
        await kit.work()
        assert kit.appends == [] and kit.leader.progress["n1"].state is PushState.PAUSED
        kit.leader.commit_index = 8
        kit.replicator.resume_paused()
        kit.hears(4)
        await kit.work()
        assert kit.appends == [(5, 8)]

    use(tmp_path, work, replace(production_env(), files=files))


async def append_batch(log: LogStore, count: int) -> None:
    """Entries of one client batch."""
    appender = Appender(log, TERM, pending_bytes=1 << 30, pending_entries=1 << 30, schedule_pump=lambda: None)
    for left in reversed(range(count)):
        appender.reserve(HEADER_SIZE + 100)
        appender.add((bytes(100),), 100, Kind.MESSAGE, left)
    for batch in appender.take():
        log.append(batch)
    async with asyncio.timeout(20):
        while log.durable_index < log.last_index:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
