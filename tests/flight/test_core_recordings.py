"""Recorded cores without a node: under random schedules, and for calls that are rare in a running group."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from dledger.chaos.cores import SETTINGS, Entry, ListLog
from dledger.chaos.cores import group as core_group
from dledger.chaos.flight_replay import check_invariants
from dledger.election.elector import Chance, ElectionSettings
from dledger.flight.blocks import FORMAT, Begin, Block, Kind
from dledger.flight.calls import FOLLOW, LEAD
from dledger.flight.cores import (
    RecordedChance,
    RecordedElector,
    RecordedFollower,
    RecordedLeader,
    RecordedLog,
    follower_digest,
    leader_digest,
)
from dledger.flight.reading import FlightFile
from dledger.flight.replaying import replay
from dledger.flight.states import dump
from dledger.flight.steps import Replay
from dledger.flight.tape import Tape
from dledger.flight.version import core_version
from dledger.formats.store_files import HardState
from dledger.messages import (
    Append,
    Code,
    Compare,
    InstallResponse,
    PushResponse,
    ReadIndexRequest,
    Truncate,
    VoteRequest,
)
from dledger.replication.install import Offer
from dledger.replication.leader import PushState
from tests.dledger.test_core_schedules import STEPS, Schedule

NAMES = ("n0", "n1", "n2")


class RecordedLife:
    """The recorded core of one member, from one start to its end."""

    def __init__(
        self,
        settings: ElectionSettings,
        name: str,
        voters: Iterable[str],
        hard_state: HardState,
        log: Any,
        chance: Chance,
        now: float,
        *,
        may_vote: bool = True,
    ) -> None:
        self.tape = Tape()
        self.tape.limit = 1 << 60
        self.log = RecordedLog(self.tape, log)
        noted = RecordedChance(self.tape, chance)
        self.elector = RecordedElector(self.tape, settings, name, self.log, noted)
        self.leader: RecordedLeader | None = None
        self.follower: RecordedFollower | None = None
        state = dump(self.elector, None, None)
        self.begin = Begin(FORMAT, core_version(), name, 1, now, 0, 0, state)
        self.tape.running = True
        self.elector.open(hard_state, tuple(voters), now, may_vote=may_vote)

    def lead(
        self, term: int, *, offer: Callable[[], Offer | None] = lambda: None, **limits: int
    ) -> RecordedLeader:
        """Begin a leadership whose first entry is the next one of the log."""
        if self.leader is not None:
            self.leader.discard()
        opening = self.log.last_index + 1
        limits = {"push_bytes": 300, "inflight_bytes": 600} | limits
        leader = self.leader = RecordedLeader(
            self.tape, term, "n0", NAMES, NAMES, self.log, -1, opening, offer=offer, **limits
        )
        self.tape.note(LEAD, (term, "n0", NAMES, NAMES, -1, opening), limits, None, leader_digest(leader))
        return leader

    def follow(self, term: int, leader: str) -> RecordedFollower:
        """Begin to follow a leader."""
        if self.follower is not None:
            self.follower.discard()
        follower = self.follower = RecordedFollower(self.tape, term, leader, self.log)
        self.tape.note(FOLLOW, (term, leader), {}, None, follower_digest(follower))
        return follower

    def replayed(self) -> Replay:
        """Replay everything so far, and compare the state at the end."""
        content, events = bytes(self.tape.buffer), self.tape.events
        block = Block(Kind.CALLS, 1, events, content, 0)
        end = dump(self.elector, self.leader, self.follower)
        files = [
            FlightFile("begin", 1, self.begin, 0, (block,), False),
            FlightFile(
                "end", 2, Begin(FORMAT, core_version(), self.begin.node, 1, 0.0, 0, 0, end), 2, (), False
            ),
        ]
        return replay(files, check=check_invariants, keep=10**6)


def calls_of(result: Replay) -> set[str]:
    """The names of the calls of a replay, such as `leader pause`."""
    return {step.event.partition("(")[0] for step in result.steps}


def test_cores_under_random_schedules_replay(monkeypatch: pytest.MonkeyPatch) -> None:
    lives: list[RecordedLife] = []
    by_log: dict[int, RecordedLife] = {}

    def elector(*args: Any, **named: Any) -> RecordedElector:
        life = RecordedLife(*args, **named)
        lives.append(life)
        by_log[id(args[4])] = life
        return life.elector

    def leader(
        term: int, name: str, voters: Any, peers: Any, log: Any, commit: int, opening: int, **limits: int
    ) -> Any:
        life = by_log[id(log)]
        if life.leader is not None:
            life.leader.discard()
        args = (term, name, tuple(voters), tuple(peers))
        made = life.leader = RecordedLeader(
            life.tape,
            *args,
            life.log,
            commit,
            opening,
            offer=lambda: None,
            **limits,  # type: ignore[arg-type]
        )
        life.tape.note(LEAD, (*args, commit, opening), limits, None, leader_digest(made))
        return made

    monkeypatch.setattr(core_group, "Elector", elector)
    monkeypatch.setattr(core_group, "LeaderReplication", leader)
    monkeypatch.setattr(
        core_group, "FollowerReplication", lambda term, name, log: by_log[id(log)].follow(term, name)
    )
    steps, calls = 0, set[str]()
    for seed in range(6):
        schedule = Schedule(seed, 3, 1)
        for _ in range(STEPS):
            schedule.step()
        schedule.finish()
    for life in lives:
        result = life.replayed()
        assert result.agrees, (result.problems, result.steps[-3:])
        steps += result.total_steps
        calls |= calls_of(result)
    assert steps > 5000
    assert {"elector hand_over", "elector leader_refused", "leader set_members", "leader peer_down"} <= calls


def test_rare_calls_of_an_elector_replay() -> None:
    life = RecordedLife(SETTINGS, "n0", NAMES, HardState(1, None), ListLog(), random.Random(1), 0.0)
    elector = life.elector
    elector.set_members(NAMES, NAMES, 0.0)
    elector.trust(False)
    elector.trust(True)
    elector.feels(3, may_stand=True, patience_s=0.5)
    elector.receive("n1", VoteRequest(5000, "n1", 9, 9), 3.0)
    elector.ask_term("n2", 4.0)
    elector.step_towards(1 << 40, 5.0)
    elector.saved(0.25)
    elector.higher_term(3000, 6.0)
    elector.leader_contact("n1", 3000, 7.0)
    elector.leader_refused("n1", 7.1)
    elector.tick(99.0)
    elector.start_round(100.0)
    elector.peer_feels("n1", 4)
    elector.step_down(101.0, "a test")
    elector.hand_over("n1", commanded=True)
    with pytest.raises(TypeError):
        elector.receive("n1", ReadIndexRequest(1, "n1", 1), 102.0)
    result = life.replayed()
    assert not life.tape.running, "a message that no call can note ends the recording"
    assert result.agrees, result.problems


def test_rare_calls_of_a_leader_replay() -> None:
    log: Any = ListLog()
    life = RecordedLife(SETTINGS, "n0", NAMES, HardState(1, None), log, random.Random(1), 0.0)
    offers: list[Offer | None] = [None]
    leader = life.lead(3, offer=lambda: offers[0], inflight_frames=5)
    log.append([Entry(3, f"x{number}") for number in range(8)])
    leader.extended()
    leader.peer_up("n1", True)
    leader.peer_counts("n1", False)
    leader.peer_counts("n1", True)
    leader.response("n1", PushResponse(3, Code.SUCCESS, -1, -1, -1))
    leader.pause("n1")
    leader.resume_paused()
    leader.response("n1", PushResponse(3, Code.DISK_FULL, -1, -1, -1))
    log._entries, log.first_index = log._entries[4:], 4  # retention removed the others
    leader.peer_up("n2", True)
    leader.response("n2", PushResponse(3, Code.INCONSISTENT_STATE, -1, -1, -1, 0, -1))
    assert leader.progress["n2"].state is PushState.INSTALL
    offers[0] = Offer(3, 3, 400, 77, 10, "digest")
    leader.offers_changed()
    leader.install_response("n2", InstallResponse(3, Code.SUCCESS, 3, 5))
    leader.install_failed("n2", 3)
    leader.install_response("n2", InstallResponse(3, Code.SUCCESS, 3, 10))
    leader.set_members(("n0", "n1"), ("n0", "n1", "n2"), ("n2",))
    leader.local_durable()
    leader.peer_down("n1")
    result = life.replayed()
    assert result.agrees, result.problems
    assert "SendInstall" in str(result.steps)
    leader.progress["n1"].stored = 7  # changed from outside, without a call
    assert "leader.progress" in str(life.replayed().problems)


def test_rare_calls_of_a_follower_replay() -> None:
    log: Any = ListLog()
    log.append([Entry(1, f"x{number}") for number in range(4)])
    log.durable_index = 3
    life = RecordedLife(SETTINGS, "n1", NAMES, HardState(3, None), log, random.Random(1), 0.0)
    follower = life.follow(3, "n0")
    follower.trust(False)
    follower.receive(Compare(3, "n0", 3, 1, 2), -1)
    follower.receive(Truncate(3, "n0", 4, 3, 2), 2)
    follower.receive(Append(3, "n0", 3, 1, 4, 5, 400, 3, memoryview(b"entries")), 2)
    follower.overlap(2, [1, 1, 3], 2)
    follower.stored(3)
    follower.disk_full()
    follower.installed(3)
    follower.trust(True)
    follower.durable_moved()
    result = life.replayed()
    assert result.agrees, result.problems
    assert any("7 bytes with CRC" in step.event for step in result.steps)
    assert {step.role for step in result.steps} == {"FOLLOWER"}
