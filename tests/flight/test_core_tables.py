"""The tables of the flight recorder name everything of the core, so no change of the core is forgotten."""

from __future__ import annotations

import importlib
import inspect
import random
from typing import Any

import pytest

from dledger.chaos.cores import SETTINGS, ListLog
from dledger.election.elector import Elector
from dledger.flight import version
from dledger.flight.calls import BY_NUMBER, CALLS, ELECTOR, FOLLOW, FOLLOWER, LEAD, LEADER, QUERIES
from dledger.flight.cores import CLASSES, RecordedElector
from dledger.flight.states import (
    ELECTOR_STATE,
    FOLLOWER_STATE,
    LEADER_STATE,
    CoreState,
    differences,
    dump,
    restore_elector,
    restore_follower,
    restore_leader,
)
from dledger.formats.store_files import HardState
from dledger.messages import Code, Compare, PushResponse, VoteRequest
from dledger.replication.follower import FollowerReplication
from dledger.replication.leader import LeaderReplication

NAMES = ("n0", "n1", "n2")
INJECTED = {ELECTOR: {"_log", "_rng"}, LEADER: {"_log", "_offer"}, FOLLOWER: {"_log"}}
"""Attributes that are not state: a replay gets its own."""


def cores() -> tuple[Elector, LeaderReplication, FollowerReplication]:
    """One object of each class, with some state."""
    log: Any = ListLog()
    chance = random.Random(1)
    elector = Elector(SETTINGS, "n0", NAMES, HardState(3, "n1"), log, chance, 1.0)
    elector.set_members(NAMES, NAMES, 1.0)
    elector.receive("n1", VoteRequest(4, "n1", -1, -1), 9.0)
    elector.tick(99.0)
    leader = LeaderReplication(3, "n0", NAMES, NAMES, log, -1, 0, push_bytes=300, inflight_bytes=600)
    leader.peer_up("n1", True)
    leader.response("n1", PushResponse(3, Code.SUCCESS, -1, -1, -1))
    follower = FollowerReplication(3, "n1", log)
    follower.receive(Compare(3, "n1", -1, -1, -1), -1)
    return elector, leader, follower


@pytest.mark.parametrize("core", [ELECTOR, LEADER, FOLLOWER])
def test_each_event_of_the_core_is_recorded(core: str) -> None:
    plain, _ = CLASSES[core]
    public = {name for name in vars(plain) if not name.startswith("_")}
    events = {call.name for call in CALLS if call.core == core and call.number not in (LEAD, FOLLOW)}
    unknown = public - events - QUERIES[core]
    assert not unknown, (
        f"{plain.__name__}.{min(unknown)} is neither in CALLS nor in QUERIES of dledger/flight/calls.py: add "
        "it to CALLS if it changes the state or returns effects"
    )
    assert events | QUERIES[core] <= public


@pytest.mark.parametrize("call", CALLS, ids=lambda call: f"{call.core}-{call.name}")
def test_the_types_of_a_call_fit_its_method(call: Any) -> None:
    if call.number in (LEAD, FOLLOW):
        pytest.skip("made by a constructor")
    parameters = list(inspect.signature(getattr(CLASSES[call.core][0], call.name)).parameters.values())[1:]
    positional = [one for one in parameters if one.kind is not one.KEYWORD_ONLY]
    named = {one.name for one in parameters if one.kind is one.KEYWORD_ONLY}
    assert len(call.types) == len(positional) + (1 if call.pack else 0)
    assert named <= set(call.named)


def test_numbers_of_calls_are_unique() -> None:
    assert len(BY_NUMBER) == len(CALLS)


def test_the_state_tables_name_each_attribute() -> None:
    tables = (ELECTOR_STATE, LEADER_STATE, FOLLOWER_STATE)
    for core, table, injected in zip(cores(), tables, INJECTED.values(), strict=True):
        names = vars(core).keys() - injected
        assert names == table.keys(), (
            f"dledger/flight/states.py does not name the same attributes as {type(core).__name__}: "
            f"{sorted(names ^ table.keys())}"
        )


def test_a_restored_core_has_the_same_state() -> None:
    log: Any = ListLog()
    state = dump(*cores())
    elector = restore_elector(state, log, random.Random(1))
    again = dump(elector, restore_leader(state, log, lambda: None), restore_follower(state, log))
    assert differences(state, again) == []
    assert elector._votes is not elector._results or state.votes_are_results


def test_a_difference_of_states_is_named() -> None:
    elector, leader, follower = cores()
    state = dump(elector, leader, follower)
    leader.commit_index += 1
    follower.matched += 1
    elector.patience_s += 1.0
    assert differences(state, dump(elector, leader, follower)) == [
        "elector.patience_s",
        "leader.commit_index",
        "follower.matched",
    ]
    assert differences(state, CoreState(state.elector, None, None, state.votes_are_results))


def test_the_recorded_class_notes_every_event() -> None:
    for call in CALLS:
        if call.number not in (LEAD, FOLLOW):
            assert call.name in vars(CLASSES[call.core][1]), f"{call.core} {call.name} is not noted"
    assert RecordedElector.tick.__doc__ == Elector.tick.__doc__


def test_nothing_is_read_at_import_because_most_nodes_record_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    class Refusing:
        def get_data(self, path: str) -> bytes:
            raise OSError(path)

    monkeypatch.setattr(version.SOURCES[0], "__loader__", Refusing())
    importlib.reload(version)
    with pytest.raises(OSError, match="elector"):
        version.core_version()


def test_the_version_follows_the_source_of_the_core(monkeypatch: pytest.MonkeyPatch) -> None:
    before = version.core_version()
    assert len(before) == version.VERSION_DIGITS
    source = version._source_of
    for changed in version.SOURCES:
        with monkeypatch.context() as patch:
            patch.setattr(
                version, "_source_of", lambda one, other=changed: source(one) + b"#" * (one is other)
            )
            assert version.core_version() != before
