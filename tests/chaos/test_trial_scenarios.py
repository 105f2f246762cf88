"""Scenarios of trials: their files, and the plans that are drawn from them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from dledger.chaos.scenarios.broker_clients import Producer
from dledger.chaos.scenarios.broker_history import BrokerHistory
from dledger.chaos.trials.drawing import FIRST_FAULT_S, LAST_FAULT_S, draw_faults, draw_operations
from dledger.chaos.trials.nemeses import NEMESES
from dledger.chaos.trials.scenario import ScenarioError, library, parse_scenario

HEAD = 'name = "mine"\npurpose = "p"\nmust_hold = "m"\n'
FAULT = '[[faults]]\nkind = "kill"\ntarget = "leader"\nevery_s = [1, 2]\n'


def test_every_scenario_of_the_library_is_named_after_its_file_and_says_what_it_is_for() -> None:
    found = library()
    assert {"kill-leader", "kill-all", "pause-leader", "rolling-restart", "replace-node", "mixed"} <= set(
        found
    )
    for scenario in found.values():
        assert scenario.purpose.endswith(".") and scenario.must_hold.endswith(".")
        assert scenario.faults, "a scenario without faults shows nothing"


def test_a_scenario_has_the_defaults_that_the_page_names() -> None:
    scenario = parse_scenario(HEAD + FAULT, "mine.toml")
    assert (scenario.seconds, scenario.nodes, scenario.rate, scenario.flush) == (60.0, 3, 100, "SYNC_FLUSH")
    (fault,) = scenario.faults
    assert (fault.every_s, fault.lasts_s, fault.amount) == ((1.0, 2.0), (0.0, 0.0), (0, 0))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("name = ", "mine.toml: Invalid value"),
        ('name = "x"', "purpose is missing: give what is done"),
        (HEAD + "colour = 1", "there is no key 'colour'; the keys are name, purpose"),
        (HEAD + 'seconds = "ten"', "seconds is 'ten': give how long"),
        (HEAD + "seconds = true", "seconds is True"),
        (HEAD + "seconds = 0", "seconds: 0: give 1 to 86400"),
        (HEAD + "nodes = 4", "nodes: 4: give 3 or 5"),
        (HEAD + "rate = 100000", "rate: 100000: give 1 to 2000"),
        (HEAD + 'flush = "NONE"', "flush: NONE: SYNC_FLUSH or ASYNC_FLUSH"),
        (HEAD + 'send = "letters"', "send: letters: what the producers send: mixed"),
        (HEAD + 'clients = ["producers", "painter"]', "clients: painter unknown; client programs: producers"),
        (HEAD + 'clients = ["pull", "pull"]', "clients: give each only once"),
        (HEAD + "clients = []", "clients: there are none"),
        (HEAD + "clients = [1]", "clients: 1 unknown"),
        (HEAD + '[settings]\nflushDiskType = "X"', "settings: flushDiskType: the trial itself sets this"),
        (HEAD + "faults = [1]", "faults[0] is 1: write each fault as a table"),
        (HEAD + '[[faults]]\nkind = "kill"', "faults[0]: target is missing"),
        (HEAD + FAULT.replace("kill", "burn"), "kind is 'burn': give one of"),
        (HEAD + FAULT.replace("leader", "namesrv"), "target of kill is 'namesrv': give one of leader"),
        (
            HEAD + FAULT.replace("[1, 2]", "[2, 1]"),
            "every_s is [2, 1]: give two numbers, the smaller one first",
        ),
        (HEAD + FAULT.replace("[1, 2]", "[0, 1]"), "every_s begins with 0: give more than 0"),
        (HEAD + FAULT.replace("[1, 2]", "[1]"), "every_s is [1]"),
        (
            HEAD
            + FAULT.replace('"kill"', '"member"')
            + FAULT.replace('"kill"', '"bit-flip"').replace("leader", "same"),
            "faults: a node that is exchanged (member) cannot be the same",
        ),
        (HEAD + FAULT + "size = 3", "faults[0]: there is no key 'size'"),
    ],
)
def test_a_wrong_scenario_is_refused_with_the_key_and_the_rule(text: str, said: str) -> None:
    with pytest.raises(ScenarioError) as refused:
        parse_scenario(text, "mine.toml")
    assert said in str(refused.value) and "mine.toml" in str(refused.value)


def test_a_seed_fixes_the_plan() -> None:
    scenario = library()["mixed"]
    assert draw_faults(scenario, 7) == draw_faults(scenario, 7) != draw_faults(scenario, 8)
    assert draw_operations(scenario, 7) == draw_operations(scenario, 7) != draw_operations(scenario, 8)


def test_a_kind_that_is_added_changes_nothing_in_the_others() -> None:
    one = parse_scenario(HEAD + FAULT, "mine.toml")
    two = parse_scenario(HEAD + FAULT + FAULT.replace("leader", "follower"), "mine.toml")
    assert draw_faults(one, 3) == tuple(fault for fault in draw_faults(two, 3) if fault.target == "leader")


def test_faults_leave_the_beginning_and_the_end_of_a_trial_alone() -> None:
    for scenario in library().values():
        for fault in draw_faults(scenario, 1):
            assert FIRST_FAULT_S * 1000 <= fault.at_ms < (scenario.seconds - LAST_FAULT_S) * 1000
            assert fault.kind in NEMESES


def test_the_producers_begin_as_many_operations_as_the_rate_says() -> None:
    scenario = parse_scenario(HEAD + "seconds = 10\nrate = 50", "mine.toml")
    sends = [one for one in draw_operations(scenario, 1) if one.kind != "topic"]
    assert len(sends) == 500 and {one.client for one in sends} == {0, 1}
    assert all(0 <= one.at_ms < 10_000 for one in sends)


def test_a_producer_that_a_busy_machine_kept_back_does_not_make_up_for_it_after_the_trial() -> None:
    stage: Any = SimpleNamespace(client_names=("producers-0",), client_runs=lambda name: False)
    operations = draw_operations(library()["kill-leader"], seed=1)
    producer = Producer(stage, 0, BrokerHistory(), [], list(operations))
    assert not producer.done
    assert producer.leave_out_rest() == len(operations) and producer.done
    assert producer.leave_out_rest() == 0
