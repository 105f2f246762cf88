"""Runs of whole seeds: a few in the default suite, many under `soak`; plans, shrinking, and the command."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import accumulate
from pathlib import Path

import pytest

from dledger.chaos.machine import Trace
from dledger.chaos.scenarios import command as shell
from dledger.chaos.scenarios.marks import LINES
from dledger.chaos.scenarios.plan import DURATION_MS, Fault, Plan, decode_plan, draw_plan
from dledger.chaos.scenarios.profiles import MARKS_FROM_SEEDS, MET_IN, PROFILES
from dledger.chaos.scenarios.register_host import RegisterHost, State
from dledger.chaos.scenarios.runner import Outcome, run_plan
from dledger.chaos.scenarios.shrink import shrink
from dledger.chaos.scenarios.totals import Totals
from dledger.context.applier import Applier
from dledger.log import reader
from dledger.log.hard_state import HardStateFile
from dledger.replication.leader import LeaderReplication
from tests.command_line import run

KINDS_OF_KILLS = [f"fault {draw.kind}" for draw in PROFILES["kills"].faults + PROFILES["kills"].also]
ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    "profile",
    [
        "mixed",
        "all-power-loss",
        "five-nodes",
        "retention",
        "rot-elsewhere",
        "misdirected",
        "spread",
        "leases",
        "versions",
    ],
)
@pytest.mark.sample(5)  # `.ci/run` plays pinned seeds of all profiles, `scripts/deep` new ones
def test_one_seed_violates_nothing(profile: str) -> None:
    outcome = run_plan(draw_plan(len(profile), profile))
    totals = Totals()
    totals.add(outcome)
    assert not outcome.violation
    assert not totals.thin, f"less than a seed must do: {outcome}"
    assert outcome.history["acknowledged"] > 100
    assert all(outcome.checks.get(name, 0) for name in ("log matching", "committed is durable on a quorum"))


def test_damage_of_a_member_that_was_removed_is_over() -> None:
    """Regression: only seven of thirteen faults happened. A node lost a file and was removed, and after that
    nothing else could be damaged."""
    outcome = run_plan(draw_plan(261372204, "rot-elsewhere"))
    assert not outcome.violation
    assert outcome.faults["shrink"] == outcome.faults["lose-members"] == outcome.faults["rot"] == 1


def test_a_group_is_settled_only_when_a_machine_just_started_has_heard_of_the_leader() -> None:
    """The machine was started 6 ms earlier with a complete log, but the leader's connection still went to the
    process that had lost its power."""
    assert not run_plan(draw_plan(284003599, "disk-errors")).violation


def test_what_a_node_does_after_its_power_went_is_not_judged() -> None:
    """A false alarm of the long run: the first effect of a commit cut the leader's power. The rest of its
    turn was judged by what was left on its disk after ASYNC_FLUSH."""
    assert not run_plan(draw_plan(261132379, "async-flush")).violation


@pytest.mark.soak
@pytest.mark.parametrize("profile", tuple(PROFILES))
def test_many_seeds_of_each_profile_violate_nothing(profile: str) -> None:
    for seed in range(100, 115):
        outcome = run_plan(draw_plan(seed, profile))
        assert not outcome.violation, f"seed {seed}: {outcome.violation}"


# Plans


def test_a_plan_is_a_function_of_its_seed_and_survives_a_file() -> None:
    plan = draw_plan(7)
    assert plan == draw_plan(7) == decode_plan(plan.encode())
    assert plan != draw_plan(8)


@pytest.mark.parametrize("profile", sorted(PROFILES))
def test_plans_hold_what_a_seed_must_do(profile: str) -> None:
    for seed in range(20):
        plan = draw_plan(seed, profile)
        assert sum(one.count for one in plan.operations) >= 300
        assert len(plan.faults) >= 8 and len({fault.kind for fault in plan.faults}) >= 3
        assert all(0 <= fault.at_ms < plan.duration_ms for fault in plan.faults)
        sizes = list(accumulate({"grow": 1, "shrink": -1}.get(fault.kind, 0) for fault in plan.faults))
        assert min(sizes) >= 0 and max(sizes) <= plan.spares, "who never grew cannot shrink"


def test_seeds_take_turns_through_the_profiles() -> None:
    assert {draw_plan(seed).profile for seed in range(100)} == set(PROFILES)


# Determinism


def digest(seed: int) -> str:
    return run_plan(draw_plan(seed), Trace(lambda _: None)).digest


@pytest.mark.parametrize("seed", [3, pytest.param(12, marks=pytest.mark.slow)])
def test_one_seed_is_one_course_of_events_here_and_elsewhere(seed: int) -> None:
    trace = Trace()
    run_plan(draw_plan(seed), trace)
    ballast = [bytearray(number) for number in range(3000)]  # other addresses
    assert digest(seed) == trace.digest and ballast and trace.count > 10_000
    environment = {**os.environ, "PYTHONHASHSEED": "4711", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "dledger.chaos", "sim", "--seeds", "1", "--start", str(seed), "--trace"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout == "".join(line + "\n" for line in trace.lines)


DIGESTS = """
import sys
from dledger.chaos.machine import Trace
from dledger.chaos.scenarios.plan import draw_plan
from dledger.chaos.scenarios.profiles import MARKS_FROM_SEEDS, PROFILES
from dledger.chaos.scenarios.runner import run_plan

seeds = range(len(PROFILES))
for seed in seeds if sys.argv[1] == "forward" else reversed(seeds):
    trace = Trace(lambda _: None)
    outcome = run_plan(draw_plan(seed), trace)
    print(seed, trace.count, trace.digest, repr(outcome.violation), flush=True)
"""
"""A program that plays one seed of every profile, and prints the results."""


@pytest.mark.slow
def test_one_seed_of_every_profile_is_one_course_of_events_under_any_hash_seed() -> None:
    """The seeds are played in two processes, in opposite orders: hashes, addresses and earlier seeds do not
    matter."""
    started = [
        subprocess.Popen(
            [sys.executable, "-c", DIGESTS, order],
            env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for order, hash_seed in (("forward", "1"), ("backward", "4711"))
    ]
    one, other = (process.communicate(timeout=600)[0].splitlines() for process in started)
    parted = [line.split()[0] for line in one if line not in other]
    assert not parted, "see --seeds 1 --start SEED --trace under both hash seeds"
    assert len(one) == len(other) == len(PROFILES)
    assert all(line.endswith("''") and int(line.split()[1]) > 10_000 for line in one)


def test_watching_does_not_change_the_course() -> None:
    """A run with a trace and a run without one have the same events."""
    plan = draw_plan(5)
    plain, traced = run_plan(plan), run_plan(plan, Trace(lambda _: None))
    assert replace(traced, digest="") == plain


@pytest.mark.parametrize("effect", [2, 4])
def test_a_cut_crash_ends_a_node_within_its_truncation(effect: int) -> None:
    """The log on the disk is neither the one before the cut nor the one after. The node comes back, and all
    nodes agree."""
    plan = draw_plan(2, "asymmetric")  # it cuts one log
    assert "end during a truncation" not in run_plan(replace(plan, faults=_without_crashes(plan))).marks
    crash = Fault(0, "cut-crash", "any", 500, 0, effect)
    outcome = run_plan(replace(plan, faults=(crash, *_without_crashes(plan))))
    assert not outcome.violation and outcome.marks["end during a truncation"] == 1


def _without_crashes(plan: Plan) -> tuple[Fault, ...]:
    return tuple(fault for fault in plan.faults if fault.kind != "cut-crash")


# What the oracles are for


def test_a_broken_commit_rule_is_found_and_shrunk(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(LeaderReplication, "watermark", lambda self, peer: self.progress[peer].next - 1)
    assert command("--seeds", "1", "--json", "--replays", str(tmp_path)) == 1
    report = json.loads(capsys.readouterr().out.split("\n")[-2])
    (violation,) = report["violations"]
    assert report["seeds"] == 1 and "durable on" in violation["message"]
    assert violation["faults"] == [] and violation["operations"] <= 1
    (replay,) = tmp_path.iterdir()
    assert command("--replay", str(replay), "--json") == 1
    monkeypatch.undo()
    assert command("--replay", str(replay)) == 0


def test_a_vote_that_is_not_saved_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HardStateFile, "save", lambda self, state: None)
    assert "tells of term 1" in run_plan(draw_plan(0)).violation


def test_a_node_is_looked_at_after_each_kind_of_event() -> None:
    checks = run_plan(draw_plan(3)).checks
    events = (
        "an append",
        "a cut",
        "a saved term or vote",
        "an fsync",
        "an apply",
        "a commit",
        "a change of role",
    )
    assert all(checks[f"node after {event}"] for event in events)
    assert checks["node after an append"] + checks["node after an apply"] > 500


def test_an_applied_index_that_goes_back_for_an_instant_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = Applier._step

    async def step(self: Applier) -> bool:
        done = await whole(self)
        self.applied_index -= 1
        self._events.applied()
        self.applied_index += 1
        return done

    monkeypatch.setattr(Applier, "_step", step)
    assert "applied_never_falls" in run_plan(draw_plan(0)).violation


def test_an_install_moves_the_commit_index_no_later_than_the_applied_one() -> None:
    outcome = run_plan(draw_plan(48, "retention"))  # an install into an empty log
    assert outcome.checks["node after an install"] and not outcome.violation


def test_a_frame_that_splits_a_client_batch_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        reader, "cut_batch", lambda batch, first, size: (first, batch.sizes[first - batch.first])
    )
    assert "client batch is split" in run_plan(draw_plan(0)).violation


def test_a_snapshot_that_is_not_what_replay_makes_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = [("ballast", b""), ("state", State().encode())]
    monkeypatch.setattr(RegisterHost, "snapshot", lambda self: wrong)
    assert "snapshot equals replay" in run_plan(draw_plan(3, "retention")).violation


# Shrinking


def test_shrinking_keeps_what_is_needed_only() -> None:
    plan = draw_plan(4, "five-nodes")
    needed = (plan.faults[3], plan.faults[7])
    operation = plan.operations[20]
    tried: list[Plan] = []

    def fails(smaller: Plan) -> bool:
        tried.append(smaller)
        kinds = [(fault.kind, fault.at_ms) for fault in smaller.faults]
        return operation in smaller.operations and all((one.kind, one.at_ms) in kinds for one in needed)

    small = shrink(plan, fails, replays=500)
    assert small.nodes == 1 and small.operations == (operation,)
    assert [(one.kind, one.at_ms) for one in small.faults] == [(one.kind, one.at_ms) for one in needed]
    assert all(one.lasting_ms <= 100 for one in small.faults)
    assert small.duration_ms < DURATION_MS


@pytest.mark.parametrize("profile", ["partitions", "asymmetric", "bad-links", "operators"])
def test_a_group_that_was_shrunk_to_one_node_can_be_played(profile: str) -> None:
    plan = draw_plan(261126653, profile)
    alone = replace(plan, nodes=1, operations=plan.operations[::30])
    assert run_plan(alone).violation == ""


def test_shrinking_stops_when_its_budget_is_spent() -> None:
    tried: list[Plan] = []

    def fails(smaller: Plan) -> bool:
        tried.append(smaller)
        return False

    plan = draw_plan(4)
    assert shrink(plan, fails, replays=5) == plan
    assert len(tried) == 5


# The command


def command(*arguments: str) -> int:
    return run("sim", *arguments)


def test_the_last_line_of_json_is_one_object(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    results = tmp_path / "results.jsonl"
    arguments = ("--seeds", "2", "--start", "30", "--profile", "kills", "--json", "--resume", str(results))
    assert command(*arguments) == 0
    first = json.loads(capsys.readouterr().out.rstrip("\n").split("\n")[-1])
    assert first["seeds"] == 2 and first["violations"] == [] and first["start"] == 30
    assert first["simulated_s"] >= 120 and first["faults"]["kill"] and first["checks"]["log matching"]
    assert len(results.read_text().splitlines()) == 2
    assert command(*arguments) == 0  # nothing is run again
    again = json.loads(capsys.readouterr().out.rstrip("\n").split("\n")[-1])
    same = ("seeds", "events", "faults", "checks", "latencies", "marks", "violations")
    assert {key: again[key] for key in same} == {key: first[key] for key in same}
    assert (first["resumed"], again["resumed"]) == (0, 2)
    assert first["seeds_per_second"] > 0 and again["seeds_per_second"] == 0, "of the seeds played now"


def test_results_of_other_code_are_counted_only_when_asked_for(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    results = tmp_path / "results.jsonl"
    arguments = ("--seeds", "1", "--start", "30", "--profile", "kills", "--json", "--resume", str(results))
    assert command(*arguments) == 0
    capsys.readouterr()
    monkeypatch.setattr(shell, "code_fingerprint", lambda: "another")
    assert command(*arguments) == 2
    streams = capsys.readouterr()
    assert not streams.out and "1 of 1 results are of other code" in streams.err and "another" in streams.err
    assert command(*arguments, "--resume-any") == 0
    assert json.loads(capsys.readouterr().out.rstrip("\n").split("\n")[-1])["resumed"] == 1
    row = json.loads(results.read_text())
    del row["code"]  # as rows were before they told
    results.write_text(json.dumps(row) + "\n")
    assert command(*arguments) == 2 and "unknown" in capsys.readouterr().err


def test_the_fingerprint_covers_everything_that_a_run_loads() -> None:
    script = (
        "import sys; from dledger.chaos.scenarios.plan import draw_plan;"
        "from dledger.chaos.scenarios.runner import run_plan;"
        "import dledger.chaos.scenarios.broker_run, dledger.chaos.scenarios.command;"
        "print(*[m.__file__ for m in list(sys.modules.values()) if getattr(m, '__file__', None)], sep='\\n')"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True
    )
    files = [Path(line) for line in done.stdout.splitlines()]
    ours = [path.relative_to(ROOT).as_posix() for path in files if _is_ours(path)]
    simulated = tuple(f"dledger/{part}" for part in (*shell.SIMULATED, "chaos/__init__.py"))
    missing = [path for path in ours if not path.startswith(simulated)]
    assert len(ours) > 100 and not missing


def _is_ours(path: Path) -> bool:
    return path.is_relative_to(ROOT) and not path.relative_to(ROOT).parts[0].startswith(".")


def test_a_run_fails_on_thin_seeds_and_on_marks_that_nobody_reached() -> None:
    totals = Totals()
    good = Outcome(0, "kills", simulated_s=60.0, history={"operations": 300}, faults={"a": 6, "b": 1, "c": 1})
    totals.add(good)
    assert not totals.failed
    totals.add(replace(good, seed=1, faults={"a": 8}))
    assert totals.failed and totals.thin == [1]
    totals = Totals()
    for seed in range(MARKS_FROM_SEEDS):
        assert not totals.missing_marks()
        totals.add(replace(good, seed=seed))
        few = "no seed reached count from 100 seeds on" in "\n".join(totals.lines(1.0))
        assert few == (seed + 1 < MARKS_FROM_SEEDS), "the report says what does not count"
    assert totals.missing_marks() == [*PROFILES["kills"].marks, *KINDS_OF_KILLS] and totals.failed


def test_a_rare_mark_counts_when_enough_seeds_could_reach_it() -> None:
    (mark, needed), *_ = MET_IN.items()
    profile = next(name for name in PROFILES if mark in PROFILES[name].marks)
    good = Outcome(0, profile, simulated_s=60.0, history={"operations": 300}, faults={"a": 6, "b": 1, "c": 1})
    totals = Totals()
    for seed in range(MARKS_FROM_SEEDS):
        totals.add(replace(good, seed=seed, profile=profile if seed < needed - 1 else "kills"))
    assert mark in totals.uncounted_marks() and mark not in totals.missing_marks()
    assert any(line.startswith("not reached (too few") and mark in line for line in totals.lines(1.0))
    totals.add(good)
    assert mark in totals.missing_marks() and mark not in totals.uncounted_marks()
    totals.add(replace(good, marks={mark: 1}))
    assert mark not in totals.missing_marks() + totals.uncounted_marks()


def test_every_mark_that_the_code_sets_belongs_to_a_profile_and_the_other_way() -> None:
    listed = {mark for profile in PROFILES.values() for mark in profile.marks}
    settable = set(_marks_in_the_code(listed)) | {mark for _, mark in LINES}
    assert settable == listed
    assert set(MET_IN) <= listed


def _marks_in_the_code(listed: set[str]) -> Iterator[str]:
    """The marks in calls of `reach`: literals, and for a formatted string the listed marks that it can
    make."""
    for path in sorted((ROOT / "dledger/chaos/scenarios").glob("*.py")):
        for call in ast.walk(ast.parse(path.read_text())):
            if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
                continue
            if call.func.attr != "reach" or path.name == "marks.py":
                continue
            (mark,) = call.args
            if isinstance(mark, ast.JoinedStr):
                parts = [
                    re.escape(one.value) if isinstance(one, ast.Constant) else ".+" for one in mark.values
                ]
                found = [one for one in sorted(listed) if re.fullmatch("".join(parts), one)]
                assert found, f"{path.name}:{call.lineno}"
                yield from found
            else:
                assert isinstance(mark, ast.Constant), f"{path.name}:{call.lineno}: no literal"
                yield mark.value


def test_a_fault_is_one_value() -> None:
    fault = Fault(1, "kill", "any", 5)
    assert decode_plan(Plan(1, "kills", 3, 0, 1000, (), (fault,)).encode()).faults == (fault,)


def test_workers_end_with_a_run_that_is_killed(tmp_path: Path) -> None:
    """Each worker holds some hundred MB, and would otherwise wait for ever."""
    results = tmp_path / "results"
    command = [
        sys.executable,
        "-m",
        "dledger",
        "chaos",
        "sim",
        "--seeds",
        "1000",
        "--jobs",
        "2",
        "--resume",
        str(results),
    ]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    run = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL, start_new_session=True)
    deadline = time.monotonic() + 60
    while not results.exists() or not results.read_text().count("\n"):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert len(_session(run.pid)) >= 3
    run.kill()
    run.wait()
    while _session(run.pid):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def _session(leader: int) -> list[int]:
    """Ids of the processes that run in a session."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            state, *numbers = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue  # no process, or not any more
        if state != "Z" and int(numbers[2]) == leader:
            found.append(int(entry.name))
    return found
