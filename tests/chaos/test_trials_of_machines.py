"""Whole trials with faults of power, disks and networks, on real processes. They are judged on safety
only."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from dledger.chaos.trials import arena
from dledger.chaos.trials.conductor import run_trial
from dledger.chaos.trials.namespaces import can_make_namespaces
from dledger.chaos.trials.result import Result
from dledger.chaos.trials.scenario import FaultSpec, Scenario, library

pytestmark = pytest.mark.slow
SECONDS = 12.0
NOT_TRIED = ("delays", "timers")
"""Verdicts about times, which have nothing to do with these faults."""


@pytest.fixture
def directory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="trial-") as found:
        yield Path(found) / "group"


def run(directory: Path, scenario: Scenario, seed: int = 1) -> Result:
    result = asyncio.run(run_trial(scenario, seed, directory, print))
    assert result.faults
    assert not [fault.error for fault in result.faults if fault.error]
    return result


def broken(result: Result) -> dict[str, str]:
    return {
        verdict.name: verdict.text
        for verdict in result.verdicts
        if not verdict.holds and verdict.name not in NOT_TRIED
    }


def blackouts(flush: str) -> Scenario:
    """All machines lose their power at once, and all that is not synced."""
    fault = FaultSpec("power-loss", "all", (6.0, 7.0), (0.2, 0.5))
    clients = ("probe", "producers", "pull")
    return Scenario("blackouts", "", "", clients, 2 * SECONDS, flush=flush, faults=(fault,))


def test_a_loss_of_power_of_all_machines_loses_nothing_that_was_synced(directory: Path) -> None:
    assert broken(run(directory, blackouts("SYNC_FLUSH"), seed=5)) == {}


def test_a_loss_of_power_of_all_machines_loses_what_was_acknowledged_before_its_sync(directory: Path) -> None:
    found = broken(run(directory, blackouts("ASYNC_FLUSH"), seed=5))
    assert "lost:" in found["sends"]


def test_one_rotten_store_harms_nobody(directory: Path) -> None:
    scenario = replace(library()["bit-rot"], seconds=SECONDS)
    assert set(broken(run(directory, scenario))) <= {"replicas"}  # what is not repaired yet


def test_a_group_survives_a_sick_disk(directory: Path) -> None:
    assert broken(run(directory, replace(library()["sick-disk"], seconds=SECONDS))) == {}


@pytest.mark.skipif(not can_make_namespaces(), reason="network namespaces cannot be made here")
def test_a_group_in_namespaces_survives_partitions(directory: Path) -> None:
    assert broken(run(directory, replace(library()["majority-partition"], seconds=SECONDS))) == {}


def test_a_group_behind_the_proxy_survives_partitions(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arena, "can_make_namespaces", lambda: False)
    assert broken(run(directory, replace(library()["majority-partition"], seconds=SECONDS))) == {}


def test_a_group_survives_storms_of_reconnecting_clients(directory: Path) -> None:
    assert broken(run(directory, replace(library()["reconnect-storm"], seconds=SECONDS))) == {}
