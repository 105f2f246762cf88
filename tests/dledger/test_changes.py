"""`Reconfiguration`: to whom leadership may go without being asked for by name."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from dledger.config import NodeConfig
from dledger.messages import Health
from dledger.node.reconfiguration import Reconfiguration
from dledger.replication.leader import PushState
from tests.dledger.node_context import context

LAST = 5000
SIZE = 100
"""Bytes of each entry."""
CONFIG = NodeConfig(
    group="g0",
    self_id="n0",
    peers={name: f"{name}:1" for name in ("n0", "n1", "n2")},
    store_dir="/store",
    promote_lag_entries=1000,
    promote_lag_bytes=50_000,
)


class Leader:
    """What a leader knows of its peer n1; by default n1 could not be better."""

    def __init__(self) -> None:
        self.voters: tuple[str, ...] = ("n0", "n1", "n2")
        self.acknowledges = True
        self.connected = True
        self.progress = {"n1": SimpleNamespace(state=PushState.APPEND, durable=LAST)}
        self.peer_health: dict[str, int] = {"n1": int(Health.GOOD)}
        self.heard_before_s = 0.0
        self.first_index = 0
        self.leads = True

    def is_fit(self) -> bool:
        """Whether n1 is."""
        return asyncio.run(self._ask())

    async def _ask(self) -> bool:
        log = SimpleNamespace(
            last_index=LAST,
            first_index=self.first_index,
            end_pos=(LAST + 1) * SIZE,
            end_of=lambda index: (index + 1) * SIZE,
        )
        parts: dict[str, Any] = {
            "env": SimpleNamespace(log=SimpleNamespace(child=lambda name: None)),
            "config": CONFIG,
            "log": log,
            "members": SimpleNamespace(voters=self.voters),
            "peers": SimpleNamespace(connected=lambda peer: self.connected),
            "replicator": SimpleNamespace(
                leader=SimpleNamespace(progress=self.progress) if self.leads else None
            ),
            "elector": SimpleNamespace(health_of=self.peer_health.get),
        }
        membership: Any = SimpleNamespace(acknowledges=lambda peer: self.acknowledges)
        leadership: Any = SimpleNamespace(serving=False, term=None)
        changes = Reconfiguration(context(**parts), membership, leadership)
        changes.heard("n1", asyncio.get_running_loop().time() - self.heard_before_s)
        return changes.fit("n1")


def test_a_voter_that_is_connected_caught_up_and_well_is_fit() -> None:
    assert Leader().is_fit()


@pytest.mark.parametrize(
    "health",
    [Health.DISK_FULL, Health.FAULTY, Health.STALLED, Health.DISK_FULL | Health.STALLED],
    ids=lambda health: str(int(health)),
)
def test_who_says_that_it_is_sick_is_not_fit(health: Health) -> None:
    leader = Leader()
    leader.peer_health["n1"] = int(health)
    assert not leader.is_fit()


@pytest.mark.parametrize(("lag", "fit"), [(1, True), (500, True), (501, False), (1001, False), (5000, False)])
def test_who_lacks_too_many_bytes_is_not_fit(lag: int, fit: bool) -> None:
    leader = Leader()
    leader.progress["n1"].durable = LAST - lag
    assert leader.is_fit() is fit


@pytest.mark.parametrize(("lag", "fit"), [(1000, True), (1001, False)])
def test_who_lacks_too_many_entries_is_not_fit(lag: int, fit: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("test_changes.SIZE", 1)
    leader = Leader()
    leader.progress["n1"].durable = LAST - lag
    assert leader.is_fit() is fit


def test_who_lacks_what_the_log_does_not_begin_with_any_more_is_not_fit() -> None:
    leader = Leader()
    leader.progress["n1"].durable = LAST - 10
    leader.first_index = LAST - 9
    assert leader.is_fit()
    leader.first_index = LAST - 8
    assert not leader.is_fit()


@pytest.mark.parametrize("state", [state for state in PushState if state is not PushState.APPEND])
def test_who_is_not_being_sent_entries_is_not_fit(state: PushState) -> None:
    leader = Leader()
    leader.progress["n1"].state = state
    assert not leader.is_fit()


def test_who_has_been_silent_for_an_election_timeout_is_not_fit() -> None:
    leader = Leader()
    leader.heard_before_s = 0.9 * CONFIG.election_timeout_max_s
    assert leader.is_fit()
    leader.heard_before_s = 1.1 * CONFIG.election_timeout_max_s
    assert not leader.is_fit()


def test_who_is_not_connected_not_a_voter_or_another_store_is_not_fit() -> None:
    for name, value in (
        ("connected", False),
        ("voters", ("n0", "n2")),
        ("acknowledges", False),
        ("progress", {}),
        ("leads", False),
    ):
        leader = Leader()
        setattr(leader, name, value)
        assert not leader.is_fit(), name
